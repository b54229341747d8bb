"""Networks start from weights that they can be trained from, with and without normalization."""

from __future__ import annotations

import math
from importlib.resources import files

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from trimtab import models
from trimtab.claims import everything, scale_of
from trimtab.claims.nets import closure
from trimtab.train import read_recipe
from trimtab.types import BadInput

NARROW = {"resnet50": {"width_per_group": 8}, "densenet121": {"bn_size": 1}}
WIDTHS = {"wrn34_10": 1}
"""Of networks that multiply their width themselves."""


def paper_networks() -> dict[str, float]:
    """The networks of all paper-scale studies and recipes, with the smallest learning rate of each."""
    recipes = [
        read_recipe(file.name.removesuffix(".yaml"))
        for file in files("trimtab.recipes").iterdir()
        if file.name.endswith("-paper.yaml")
    ]
    for claim in everything().values():
        scale = scale_of("paper", claim.paper)
        recipes += [net.at(scale, 0) for net in closure(claim.nets(scale), scale, 0).values()]
    rates: dict[str, float] = {}
    for recipe in recipes:
        rates[recipe.model] = min(recipe.optimizer.lr, rates.get(recipe.model, 0.1))
    return rates


def reduced(name: str) -> nn.Module:
    """The network of reduced width; without a norm wide enough to diverge if it starts from He's weights.

    Architectures of torchvision are those of published weights, which no test can fetch.
    """
    source = models.parse(name)
    if source.scheme != "net":
        return models.load(str(source), classes=10, **NARROW.get(source.name, {}))
    width = 16 if source.arguments.get("norm") == "none" else WIDTHS.get(source.name, 4)
    return models.load(str(source), **{**source.arguments, "width": width, "classes": 10})


@pytest.mark.parametrize(("name", "rate"), sorted(paper_networks().items()))
def test_every_network_of_the_papers_keeps_a_finite_loss(name: str, rate: float) -> None:
    torch.manual_seed(0)
    model = reduced(name).train()
    scalars = [p for p in model.parameters() if p.numel() == 1]  # Fixup: a tenth of the rate
    others = [p for p in model.parameters() if p.numel() > 1]
    groups = [{"params": others}, {"params": scalars, "lr": rate / 10}]
    optimizer = torch.optim.SGD(groups, lr=rate, momentum=0.9, weight_decay=5e-4)
    x, y = torch.rand(4, 3, 64, 64), torch.tensor([0, 3, 6, 9])
    losses = []
    for _ in range(20):
        seen = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(F.cross_entropy(model(seen), y), seen)
        attacked = (x + 4 / 255 * gradient.sign()).clamp(0, 1)
        loss = F.cross_entropy(model(attacked), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert all(math.isfinite(value) for value in losses), losses


@pytest.mark.parametrize("name", ["resnet8", "resnet50_cifar", "preact18", "wrn10_1", "vgg11"])
def test_networks_without_normalization_start_as_torch_starts_them(name: str) -> None:
    """torch draws from U(-b, b) with b = 1 / sqrt(fan in), biases too: the variance is b^2 / 3."""
    torch.manual_seed(0)
    convolutions = [m for m in models.build(name, norm="none").net.modules() if isinstance(m, nn.Conv2d)]
    for conv in convolutions:
        bound = 1 / math.sqrt(conv.weight[0].numel())
        assert float(conv.weight.detach().abs().max()) <= bound
        if conv.weight.numel() > 5000:
            assert float(conv.weight.detach().var()) == pytest.approx(bound**2 / 3, rel=0.1)


@pytest.mark.parametrize(("norm", "init"), [("bn", None), ("gn", None), ("none", "he"), ("fixup", None)])
def test_other_networks_start_as_he_does(norm: str, init: str | None) -> None:
    """He's normal initialization by fan-out: a variance of 2 / (outputs * kernel area)."""
    torch.manual_seed(0)
    given = {} if init is None else {"init": init}
    conv = models.build("resnet18_cifar", norm=norm, **given).net.conv1
    out, _, *kernel = conv.weight.shape
    assert float(conv.weight.detach().var()) == pytest.approx(2 / (out * math.prod(kernel)), rel=0.1)


def test_the_initialization_can_be_chosen_in_the_name_and_is_saved(tmp_path) -> None:  # type: ignore[no-untyped-def]
    torch.manual_seed(0)
    model = models.load("net:resnet8,norm=none,init=he")
    assert float(model.net.conv1.weight.detach().abs().max()) > 1 / math.sqrt(27)
    models.save(model, tmp_path)
    again = models.load(f"file:{tmp_path}")
    assert again.origin is not None
    assert again.origin.arguments["init"] == "he"


@pytest.mark.parametrize("norm", ["bn", "gn", "in"])
@pytest.mark.parametrize("name", ["resnet8", "resnet50_cifar"])
def test_blocks_that_start_at_zero_pass_on_what_came_in(name: str, norm: str) -> None:
    torch.manual_seed(0)
    net = models.build(name, width=4, norm=norm, init="zero-last").net
    block = net.layer1[1] if name == "resnet50_cifar" else net.layer1[0]
    x = torch.rand(2, block.conv1.in_channels, 8, 8)
    assert torch.equal(block(x), x)
    out, _, *kernel = net.conv1.weight.shape  # the rest starts as he does
    assert float(net.conv1.weight.detach().var()) == pytest.approx(2 / (out * math.prod(kernel)), rel=0.5)


def test_networks_without_residual_norms_cannot_start_at_zero() -> None:
    for name in ("vgg11", "preact18"):
        with pytest.raises(BadInput, match="zero-last is for ResNets"):
            models.build(name, init="zero-last")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"init": "xavier"}, "no initialization 'xavier'; choose he, torch or zero-last"),
        ({"norm": "fixup", "init": "torch"}, "fixup starts from he"),
        ({"norm": "none", "init": "zero-last"}, "zero-last is for ResNets with a norm and shortcuts"),
        ({"shortcut": False, "init": "zero-last"}, "zero-last is for ResNets with a norm and shortcuts"),
    ],
)
def test_an_initialization_that_cannot_be_is_refused(arguments: dict, complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint):
        models.build("resnet8", **arguments)
