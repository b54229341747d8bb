"""The steering panel holds what the network does at every position, computed here with plain PyTorch."""

import base64
from itertools import product
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trimtab import norm
from trimtab.data import ImageSet, corrupt, load
from trimtab.report import panel as panels
from trimtab.report import stored_panel
from trimtab.report.panel import COARSE, FINE, Panel, panel

N = 40


@pytest.fixture(scope="module")
def images() -> ImageSet:
    return load("sample", "test").subset(slice(0, N))


def network(classes: int = 10) -> nn.Sequential:
    """One normalization layer, whose running statistics are not those of any batch."""
    torch.manual_seed(0)
    layers = [
        nn.Conv2d(1, 6, 5, stride=3),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(384, classes),
    ]
    net = nn.Sequential(*layers).eval()
    with torch.no_grad():
        net[1].weight.uniform_(0.5, 1.5)
        net[1].bias.uniform_(-0.3, 0.3)
        net[1].running_mean.uniform_(-0.2, 0.2)
        net[1].running_var.uniform_(0.05, 0.2)
    return net


@pytest.fixture(scope="module")
def branched() -> nn.Module:
    net = norm.add_branch(norm.steer(network()), "adv")
    torch.manual_seed(1)
    with torch.no_grad():
        for value in (*norm.affine_parameters(net, "adv"), *norm.running(net, "adv")["1"][:2]):
            value.add_(0.2 * torch.rand_like(value))
    return net


@pytest.fixture(scope="module")
def measured(branched: nn.Module, images: ImageSet) -> Panel:
    found = panel(branched, images.take(torch.arange(N)), images.classes, budget=1e9)
    assert found is not None
    return found


def by_hand(net: nn.Module, branch: str, x: Tensor, rho: float, d_mu: Tensor, d_sigma: Tensor) -> Tensor:
    """The logits, by the equation of a steered layer."""
    gamma, beta = norm.affine_parameters(net, branch)
    running = norm.running(net, branch)["1"]
    z = net[0](x)
    mu = rho * z.mean((0, 2, 3)) + (1 - rho) * running.mean
    own = (z.var((0, 2, 3), unbiased=False) + 1e-5).sqrt()
    sigma = rho * own + (1 - rho) * (running.var + 1e-5).sqrt()
    column = lambda v: v[None, :, None, None]  # noqa: E731
    normal = (z - column((1 + d_mu) * mu)) / column(sigma)
    return net[4](net[3](F.relu(column(gamma * (1 + d_sigma)) * normal + column(beta))))


def test_counts_and_probabilities_are_those_of_the_equation(
    branched: nn.Module, images: ImageSet, measured: Panel
) -> None:
    x, y, ids = images.take(torch.arange(N))
    assert measured.branches == ("main", "adv")
    shape = (len(measured.correct), 16, 3, 2)
    leading = torch.frombuffer(bytearray(base64.b64decode(measured.leading)), dtype=torch.uint8).view(shape)
    order = product(measured.branches, FINE.corruptions, FINE.severities, FINE.rhos, FINE.shifts)
    signs: dict[str, list[Tensor]] = {}
    for branch in measured.branches:
        deltas = [torch.zeros(6, requires_grad=True) for _ in range(2)]
        loss = F.cross_entropy(by_hand(branched, branch, x, 0.0, *deltas), y)
        signs[branch] = [grad.sign() for grad in torch.autograd.grad(loss, deltas)]
    for number, (branch, name, severity, rho, eps) in enumerate(order):
        shown = corrupt(x, name, severity, ids=ids) if severity else x
        with torch.no_grad():
            logits = by_hand(branched, branch, shown, rho, *(eps * sign for sign in signs[branch]))
        assert abs(measured.correct[number] - int((logits.argmax(1) == y).sum())) <= 1  # ties of rounding
        values = logits[:16].log_softmax(1).topk(3).values
        kept = -leading[number, :, :, 1].float() / measured.unit
        torch.testing.assert_close(kept, values.clamp_min(-255 / 32), atol=0.6 / 32, rtol=0)
    assert number + 1 == len(measured.correct)
    assert len(set(measured.correct)) > 5  # the controls change something


def test_names_labels_and_images_are_those_of_the_set(measured: Panel, images: ImageSet) -> None:
    assert set(measured.names) <= set(images.classes)
    assert measured.labels == [images.classes[k] for k in images.labels[:16].tolist()]
    assert [len(row) for row in measured.sheets] == [6, 6]
    assert len(measured.leading) < 100_000


def test_the_model_is_left_as_it_was(images: ImageSet) -> None:
    net = network()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    panel(net, images.take(torch.arange(16)), images.classes, budget=1e9)
    assert type(net[1]) is nn.BatchNorm2d
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_fewer_positions_are_offered_where_all_take_too_long(
    images: ImageSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, ticks = images.take(torch.arange(16)), iter([0.0, 1.0] * 3)  # one pass takes a second
    monkeypatch.setattr(panels.time, "perf_counter", lambda: next(ticks))
    fine = panel(network(), batch, images.classes, budget=FINE.size)
    coarse = panel(network(), batch, images.classes, budget=FINE.size - 1)
    assert fine
    assert len(fine.correct) == 2 * 6 * 5 * 4
    assert coarse
    assert len(coarse.correct) == COARSE.size == 4 * 3 * 2
    assert panel(network(), batch, images.classes, budget=COARSE.size - 1) is None


def test_few_images_have_no_panel(images: ImageSet) -> None:
    assert panel(network(), images.take(torch.arange(15)), images.classes) is None


def test_classes_beyond_a_byte_are_merged(images: ImageSet) -> None:
    net = network(classes=3000)
    found = panel(net, images.take(torch.arange(16)), images.classes, budget=1e9)
    assert found is not None
    assert len(found.names) <= 255
    assert any(name.startswith("class ") for name in found.names)


def test_a_stored_panel_is_read_and_belongs_to_model_and_images(
    images: ImageSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[float] = []
    first = stored_panel(network(), images, tmp_path, progress=lambda fraction, _: done.append(fraction))
    assert done == sorted(done)
    assert done[-1] == 1.0
    monkeypatch.setattr(panels, "panel", lambda *_, **__: None)
    again = stored_panel(network(), images, tmp_path)
    assert first
    assert again
    assert (again.correct, again.leading, again.sheets) == (first.correct, first.leading, first.sheets)
    assert stored_panel(network(), images.subset(slice(0, 30)), tmp_path) is None
    assert stored_panel(network(classes=5), images, tmp_path) is None
