"""AdvBN against its two passes; where the tail undoes a shift; and DenseNet-121 cut as the authors cut it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import torchvision
from tests.train.stock_layers import batch, buffers, grads, net
from torch import Tensor, nn

from nets import stack
from trimtab import models, norm, train
from trimtab.attacks.feature import ascend, perturbed
from trimtab.types import BadInput

CLASSES = 4


def images(n: int = 16, size: int = 8) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    return torch.rand(n, 3, size, size, generator=g), torch.arange(n) % CLASSES


def immediate() -> nn.Sequential:
    """A convolution, whose output a batch norm normalizes at once."""
    return stack(CLASSES, (8, 8))


@pytest.mark.parametrize("cut", ["0", "3"])
def test_a_cut_right_before_a_batch_norm_is_refused_with_the_number(cut: str) -> None:
    objective, (x, y) = train.AdvBN(cut=cut), images()
    model = objective.prepare(immediate()).train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(BadInput, match=r"undoes .* the logits by 0\.00\d of their std"):
        objective(model, x, y, seed=0)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("cut", ["1", "2"])
def test_a_cut_after_a_norm_layer_or_its_activation_trains(cut: str) -> None:
    objective, (x, y) = train.AdvBN(cut=cut), images()
    model = objective.prepare(immediate()).train()
    assert bool(objective(model, x, y, seed=0)["loss"].isfinite())
    without = {name.partition(".")[0] for name, p in model.named_parameters() if p.grad is None}
    assert without == {"0", "1"}  # the layers before the cut


def test_a_batch_norm_far_from_the_cut_is_noticed_too() -> None:
    """The mean over positions lies between: it commutes with a shift, which the batch norm then undoes."""
    objective, (x, y) = train.AdvBN(cut="4", rectify=False), images()
    late = nn.Sequential(
        *immediate()[:5], *immediate()[6:8], nn.BatchNorm1d(8, eps=1e-12), nn.ReLU(), immediate()[-1]
    )
    with pytest.raises(BadInput, match="undoes"):
        objective(objective.prepare(late).train(), x, y, seed=0)


@pytest.mark.parametrize("control", [train.AdvBN(cut="0", eps=0), train.AdvBN(cut="0", steps=0)])
def test_a_control_that_moves_nothing_is_not_refused(control: train.AdvBN) -> None:
    x, y = images()
    assert bool(control(control.prepare(immediate()).train(), x, y, seed=0)["loss"].isfinite())


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


# ---- AdvBN -------------------------------------------------------------------------------------------


def monotone() -> tuple[nn.Module, Tensor, Tensor]:
    """A tail whose loss is monotone in each multiplier: one linear score decides between two classes.

    The feature has two positions, a low and a high one, so mean and deviation act separately:
    the tail's logit for the true class is a . mean + b . (high - low).
    """

    class Tail(nn.Module):
        def forward(self, z: Tensor) -> Tensor:  # (N, C, 2)
            a, b = torch.tensor([1.0, -2.0, 0.5]).double(), torch.tensor([0.7, 0.4, -1.0]).double()
            score = z.mean(2) @ a + (z[:, :, 1] - z[:, :, 0]) @ b
            return torch.stack([score, torch.zeros_like(score)], 1)

    z = torch.tensor([[1.0, 3.0], [2.0, 5.0], [1.5, 2.0]]).double().expand(4, 3, 2)
    return Tail(), z, torch.zeros(4, dtype=torch.long)


def test_the_ascent_climbs_with_every_step_and_ends_in_the_worst_corner() -> None:
    tail, z, y = monotone()

    def loss(d_mu: Tensor, d_sigma: Tensor) -> float:
        return float(F.cross_entropy(tail(perturbed(z, d_mu, d_sigma, rectify=False)), y))

    path = [loss(*ascend(tail, z, y, eps=0.9, steps=steps, step=0.2, rectify=False)) for steps in range(7)]
    assert all(later > earlier for earlier, later in pairwise(path[:6]))
    corners = torch.cartesian_prod(*[torch.tensor([-0.9, 0.9], dtype=torch.float64)] * 6)
    worst = max(corners, key=lambda corner: loss(corner[:3], corner[3:]))
    d_mu, d_sigma = ascend(tail, z, y, eps=0.9, steps=6, step=0.2, rectify=False)
    assert torch.equal(torch.cat([d_mu, d_sigma]), worst)


def test_advbn_is_the_sum_of_a_clean_and_a_perturbed_pass_through_the_tail() -> None:
    x, y = batch()
    objective = train.AdvBN(cut="2", eps=0.5, steps=2, step_size=0.2)
    model = objective.prepare(net()).train()
    front, main = net()[:3].eval(), net()[3:].train()
    aux = net()[3:].train()
    z = front(x).detach()
    aux.eval()
    d_mu = torch.zeros(1, 6, 1, 1).double()
    d_sigma = torch.zeros(1, 6, 1, 1).double()
    mu = z.mean((0, 2, 3), keepdim=True)
    for _ in range(2):
        d_mu.requires_grad_(True), d_sigma.requires_grad_(True)
        moved = ((1 + d_sigma) * (z - mu) + (1 + d_mu) * mu).clamp(min=0)
        g = torch.autograd.grad(F.cross_entropy(aux(moved), y), (d_mu, d_sigma))
        d_mu, d_sigma = (
            (d.detach() + 0.2 * s.sign()).clamp(-0.5, 0.5) for d, s in zip((d_mu, d_sigma), g, strict=True)
        )
    moved = ((1 + d_sigma) * (z - mu) + (1 + d_mu) * mu).clamp(min=0)
    aux.train()
    (F.cross_entropy(main(z), y) + F.cross_entropy(aux(moved), y)).backward()

    before = buffers(model)
    objective(model, x, y)
    found = grads(model)
    assert not any(name.startswith(("0.", "1.")) for name in found)
    torch.testing.assert_close(found["4.weight"], main[1].weight.grad)
    torch.testing.assert_close(found["4.branches.aux.weight"], aux[1].weight.grad)
    torch.testing.assert_close(found["8.weight"], main[5].weight.grad + aux[5].weight.grad)
    after = buffers(model)
    assert all(torch.equal(after[name], before[name]) for name in before if name.startswith("1."))
    torch.testing.assert_close(after["4.branches.aux.running_mean"], aux[1].running_mean)


def test_advbn_trains_its_front_on_both_losses_if_that_is_not_frozen() -> None:
    x, y = batch()
    objective = train.AdvBN(cut="2", steps=0, freeze_front=False)
    model, plain = objective.prepare(net()).train(), net().train()
    objective(model, x, y)
    (2 * F.cross_entropy(plain(x), y)).backward()
    found, wanted = grads(model), grads(plain)
    for name in ("0.weight", "1.weight", "3.weight", "8.weight"):
        torch.testing.assert_close(found[name], wanted[name], msg=name)


class FunctionalDropout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(F.dropout(x, 0.5, self.training))


def test_advbn_refuses_a_network_whose_steps_depend_on_its_mode() -> None:
    with pytest.raises(BadInput, match=r"other steps in training than in evaluation; .* nn\.Dropout"):
        train.AdvBN(cut="net.2").prepare(FunctionalDropout().train())


def test_advbns_random_control_draws_within_the_cube_by_its_seed() -> None:
    x, y = batch()
    objective = train.AdvBN(cut="2", attack="random", eps=0.3)
    model = objective.prepare(net()).train()
    kept = norm.snapshot(model)
    first, second, again = (
        objective(norm.restore(model, kept), x, y, seed=seed)["adv"] for seed in (1, 2, 1)
    )
    assert first == again != second
