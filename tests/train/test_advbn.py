"""AdvBN where the tail undoes a shift, and DenseNet-121 cut as the authors cut it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torchvision
from torch import Tensor, nn

from nets import stack
from trimtab import models, norm, train
from trimtab.types import BadInput

CLASSES = 4


def images(n: int = 16, size: int = 8) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    return torch.rand(n, 3, size, size, generator=g), torch.arange(n) % CLASSES


def net() -> nn.Sequential:
    """A convolution, whose output a batch norm normalizes at once."""
    return stack(CLASSES, (8, 8))


@pytest.mark.parametrize("cut", ["0", "3"])
def test_a_cut_right_before_a_batch_norm_is_refused_with_the_number(cut: str) -> None:
    objective, (x, y) = train.AdvBN(cut=cut), images()
    model = objective.prepare(net()).train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(BadInput, match=r"undoes .* the logits by 0\.00\d of their std"):
        objective(model, x, y, seed=0)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("cut", ["1", "2"])
def test_a_cut_after_a_norm_layer_or_its_activation_trains(cut: str) -> None:
    objective, (x, y) = train.AdvBN(cut=cut), images()
    model = objective.prepare(net()).train()
    assert bool(objective(model, x, y, seed=0)["loss"].isfinite())
    without = {name.partition(".")[0] for name, p in model.named_parameters() if p.grad is None}
    assert without == {"0", "1"}  # the layers before the cut


def test_a_batch_norm_far_from_the_cut_is_noticed_too() -> None:
    """The mean over positions lies between: it commutes with a shift, which the batch norm then undoes."""
    objective, (x, y) = train.AdvBN(cut="4", rectify=False), images()
    late = nn.Sequential(*net()[:5], *net()[6:8], nn.BatchNorm1d(8, eps=1e-12), nn.ReLU(), net()[-1])
    with pytest.raises(BadInput, match="undoes"):
        objective(objective.prepare(late).train(), x, y, seed=0)


@pytest.mark.parametrize("control", [train.AdvBN(cut="0", eps=0), train.AdvBN(cut="0", steps=0)])
def test_a_control_that_moves_nothing_is_not_refused(control: train.AdvBN) -> None:
    x, y = images()
    assert bool(control(control.prepare(net()).train(), x, y, seed=0)["loss"].isfinite())


def test_a_weak_effect_is_a_warning_with_the_number() -> None:
    """The shift reaches the logits only through a skip connection of weight 0.1."""

    class Skip(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.front = nn.Conv2d(3, 8, 3)
            self.bn = nn.BatchNorm2d(8)
            self.fc = nn.Linear(8, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            z = self.front(x)
            return self.fc((self.bn(z).relu() + 0.1 * z).mean((2, 3)))

    objective, (x, y) = train.AdvBN(cut="front"), images(64)
    model = objective.prepare(Skip()).train()
    with pytest.warns(UserWarning, match=r"undoes most of .* 0\.0\d+ of their std"):
        objective(model, x, y, seed=0)
    objective(model, x, y, seed=1)  # measured once per model


# ---- DenseNet-121 ------------------------------------------------------------------------------------

FIRST_NORM = "features.denseblock2.denselayer1.norm1"


def densenet() -> nn.Module:
    """Untrained, but with the running statistics of some images."""
    torch.manual_seed(0)
    model = torchvision.models.densenet121(num_classes=CLASSES)
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = None  # their plain average
    with torch.no_grad():
        model.train()(images(8, 64)[0])
    return model


def moved_logits(model: nn.Module, place: str, x: Tensor) -> float:
    """By how many of their stds logits move in train mode as the place's output has its statistics moved."""

    def shift(module: nn.Module, inputs: object, z: Tensor) -> Tensor:
        mu = z.mean((0, 2, 3), keepdim=True)
        half = torch.where(torch.arange(z.shape[1]) % 2 == 0, 0.5, -0.5).view(1, -1, 1, 1)
        return (1 + half) * (z - mu) + (1 - half) * mu

    model.train()
    with torch.no_grad():
        clean = model(x)
        hook = model.get_submodule(place).register_forward_hook(shift)
        moved = model(x)
        hook.remove()
    return float((moved - clean).abs().mean() / clean.std(0).mean())


def test_the_densenet_recipe_cuts_where_a_shift_survives() -> None:
    objective = train.read_recipe("advbn-densenet121-paper").objective
    assert isinstance(objective, train.AdvBN)
    x, y = images(8, 64)
    stock = densenet()
    stock.get_submodule(FIRST_NORM.rpartition(".")[0]).norm1 = nn.Identity()  # what the authors' network is
    assert moved_logits(stock, objective.cut, x) > 0.2
    assert moved_logits(densenet(), "features.denseblock1", x) < 0.02

    model = objective.prepare(densenet()).train()
    assert FIRST_NORM not in norm.layers(model)
    fresh = densenet()
    fresh.get_submodule(FIRST_NORM.rpartition(".")[0]).norm1 = nn.Identity()
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(x), fresh.eval()(x))
    parts = objective(model.train(), x, y, seed=0)
    assert parts["adv"] != parts["clean"]


def test_densenet_cut_after_its_first_block_is_refused() -> None:
    objective = train.AdvBN(cut="features.denseblock1", rectify=False)
    model, (x, y) = objective.prepare(densenet()).train(), images(8, 64)
    with pytest.raises(BadInput, match="undoes"):
        objective(model, x, y, seed=0)


def test_a_network_without_its_dropped_norm_layer_is_saved_and_read_back(tmp_path: Path) -> None:
    model = models.load("timm:densenet121", classes=CLASSES)
    objective = train.AdvBN(cut="features.transition1", drop=(FIRST_NORM,), steps=1)
    objective.prepare(model)
    objective.prepare(model)  # a second time nothing is left to drop
    models.save(model, tmp_path / "saved")
    again = models.load(f"file:{tmp_path / 'saved'}")
    assert FIRST_NORM not in norm.layers(again)
    x, _ = images(2, 64)
    with torch.no_grad():
        torch.testing.assert_close(again.eval()(x), model.eval()(x))


@pytest.mark.parametrize("name", ["features.nothing", "features.conv0"])
def test_only_a_batch_norm_layer_can_be_dropped(name: str) -> None:
    with pytest.raises(BadInput, match=f"{name}.*no batch-norm layer"):
        train.AdvBN(cut="features.transition1", drop=(name,)).prepare(densenet())
