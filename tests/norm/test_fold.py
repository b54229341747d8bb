"""Folding: the same function with fewer layers, and hands off what tracing cannot prove.

Also tests _trace.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nets import PUBLIC, Small, differing, images, public, season, small, state
from trimtab import norm


def norms(model: nn.Module) -> list[str]:
    return [name for name, m in model.named_modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]


def outputs(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Logits, and the gradient of their square."""
    x = x.detach().requires_grad_()
    logits = model(x)
    (slope,) = torch.autograd.grad(logits.pow(2).sum(), x)
    return logits.detach(), slope


def agree(model: nn.Module, folded: nn.Module, x: Tensor, tolerance: float = 1e-9) -> bool:
    pairs = zip(outputs(model.eval(), x), outputs(folded, x), strict=True)
    return all(float((a - b).abs().max() / a.abs().max()) < tolerance for a, b in pairs)


@pytest.mark.parametrize("name", PUBLIC)
def test_logits_and_input_gradients_stay_the_same_on_public_networks(name: str) -> None:
    model = public(name).double().eval()  # in float32 a ReLU near zero is on or off by how sums are ordered
    folded = norm.fold(norm.steer(model))
    x = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    assert agree(model, folded, x)
    left = norms(folded)
    if "densenet" in name:  # pre-activation: most of its layers follow a concatenation
        assert 0 < len(left) < len(norms(model))
    else:
        assert left == []


def test_a_pair_becomes_the_convolution_of_the_formula() -> None:
    model = season(nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)).double()).eval()
    conv, bn = model[0], model[1]
    folded: Any = norm.fold(model)
    scale = bn.weight / torch.sqrt(bn.running_var + bn.eps)
    assert torch.allclose(folded[0].weight, conv.weight * scale.view(-1, 1, 1, 1))
    assert torch.allclose(folded[0].bias, (conv.bias - bn.running_mean) * scale + bn.bias)
    assert isinstance(folded[1], nn.Identity)


@pytest.mark.parametrize(
    ("conv", "bn", "shape"),
    [
        (nn.Conv1d(2, 3, 3, groups=1), nn.BatchNorm1d(3, affine=False), (4, 2, 8)),
        (nn.Conv2d(4, 6, 3, groups=2, padding=1, padding_mode="circular"), nn.BatchNorm2d(6), (4, 4, 5, 5)),
        (nn.Conv3d(2, 3, 2, bias=False), nn.BatchNorm3d(3), (4, 2, 3, 3, 3)),
    ],
)
def test_convolutions_of_every_sort_are_folded(conv: nn.Module, bn: nn.Module, shape: Any) -> None:
    model = season(nn.Sequential(conv, bn).double())
    folded = norm.fold(model)
    assert norms(folded) == []
    assert agree(model, folded, images(*shape))


def test_the_model_given_is_untouched_and_the_copy_is_frozen() -> None:
    model = norm.steer(small()).train()
    before = state(model)
    folded = norm.fold(model)
    assert differing(before, state(model)) == []
    assert model.training
    assert all(p.requires_grad for p in model.parameters())
    assert not folded.training
    assert not any(p.requires_grad for p in folded.parameters())


# ---- settings in force ----------------------------------------------------------------------------------


@pytest.mark.parametrize("example", [None, images(4, 2, 5, 5)], ids=["unverified", "verified"])
def test_the_branch_in_force_is_folded(example: Tensor | None) -> None:
    model = norm.add_branch(norm.steer(small()), "adv").eval()
    for layer in norm.layers(model).values():
        for value in (*layer.holder("adv").parameters(), layer.holder("adv").running_mean):
            value.data.mul_(2).add_(0.5)
    x = images(4, 2, 5, 5)
    with norm.use(model, branch="adv"):
        folded = norm.fold(model, example)
        wanted = model(x)
    assert norms(folded) == []
    assert torch.allclose(folded(x), wanted)
    assert not torch.allclose(folded(x), model(x))


@pytest.mark.parametrize(
    "knobs",
    [
        {"source": "batch"},
        {"source": "blend", "rho": 0.5},
        {"update": 0.5},
        {"branch": [("main", 2), ("adv", 2)]},
        {"shift": {"bn1": norm.Shift(torch.ones(4, dtype=torch.float64))}},
    ],
    ids=str,
)
def test_layers_that_are_no_constant_map_are_left_alone(knobs: dict[str, Any]) -> None:
    model = norm.add_branch(norm.steer(small()), "adv").eval()
    with norm.use(model, **knobs):
        folded = norm.fold(model)
        wanted = copy.deepcopy(model)
        for layer, own in zip(norm.layers(wanted).values(), norm.layers(model).values(), strict=True):
            layer.setting = own.setting
    assert "bn1" in norms(folded)
    x = images(4, 2, 5, 5)
    assert torch.allclose(folded(x), wanted(x))


def test_a_part_that_normalizes_by_the_batch_is_left_and_the_rest_folded() -> None:
    model: Any = norm.steer(small()).eval()
    x = images(4, 2, 5, 5)
    with norm.use(model.bn1, source="batch", update=False):
        folded = norm.fold(model, x)
        wanted = model(x)
    assert norms(folded) == ["bn1"]
    assert torch.allclose(folded(x), wanted)


# ---- what cannot be proved ------------------------------------------------------------------------------


class Block(nn.Module):
    """A convolution and a norm layer, put together by the subclass."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3, padding=1)
        self.bn = nn.BatchNorm2d(2)
        season(self)
        self.double()


class ConvolutionTwice(Block):
    def forward(self, x: Tensor) -> Tensor:
        return self.bn(self.conv(self.conv(x)))


class NormTwice(Block):
    def forward(self, x: Tensor) -> Tensor:
        return self.bn(self.conv(self.bn(x)))


class OutputUsedElsewhere(Block):
    def forward(self, x: Tensor) -> Tensor:
        h = self.conv(x)
        return self.bn(h) + h


class SomethingBetween(Block):
    def forward(self, x: Tensor) -> Tensor:
        return self.bn(F.relu(self.conv(x)))


class WeightReadElsewhere(Block):
    def forward(self, x: Tensor) -> Tensor:
        return self.bn(self.conv(x)) + F.conv2d(x, self.conv.weight, padding=1)


class GainReadElsewhere(Block):
    def forward(self, x: Tensor) -> Tensor:
        return self.bn(self.conv(x)) * self.bn.weight.sum()


class StatisticsReadElsewhere(Block):
    def forward(self, x: Tensor) -> Tensor:
        return self.bn(self.conv(x)) * self.bn.running_var.sum()


class ForwardByValue(Block):
    def forward(self, x: Tensor) -> Tensor:
        h = self.bn(self.conv(x))
        return h if x.mean() > 100 else 2 * h


class TransposedConvolution(Block):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose2d(2, 2, 3, padding=1).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.bn(self.conv(x))


class SteersItself(Block):
    def __init__(self) -> None:
        super().__init__()
        norm.steer(self)

    def forward(self, x: Tensor) -> Tensor:
        with norm.use(self.bn, source="batch", update=False):
            return self.bn(self.conv(x))


UNPROVABLE = [
    ConvolutionTwice,
    NormTwice,
    OutputUsedElsewhere,
    SomethingBetween,
    WeightReadElsewhere,
    GainReadElsewhere,
    StatisticsReadElsewhere,
    ForwardByValue,
    TransposedConvolution,
    SteersItself,
]


@pytest.mark.parametrize("kind", UNPROVABLE)
def test_what_tracing_cannot_prove_is_left_alone(kind: type[Block]) -> None:
    torch.manual_seed(0)
    model = kind().eval()
    folded = norm.fold(model)
    assert norms(folded) == ["bn"]
    assert agree(model, folded, images(4, 2, 5, 5))


class OneConvolutionUnderTwoNames(Block):
    def __init__(self) -> None:
        super().__init__()
        self.again = self.conv
        self.bn2 = season(nn.BatchNorm2d(2).double(), 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn(self.conv(x)) + self.bn2(self.again(x))


class TiedWeights(Block):
    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Conv2d(2, 2, 3, padding=1).double()
        self.other.weight = self.conv.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.bn(self.conv(x)) + self.other(x)


@pytest.mark.parametrize("kind", [OneConvolutionUnderTwoNames, TiedWeights])
def test_shared_convolutions_still_compute_the_same(kind: type[Block]) -> None:
    torch.manual_seed(0)
    model = kind().eval()
    assert agree(model, norm.fold(model), images(4, 2, 5, 5))


class OneNormUnderTwoNames(Block):
    def __init__(self) -> None:
        super().__init__()
        self.alias = self.bn

    def forward(self, x: Tensor) -> Tensor:
        return self.alias(self.conv(x))


def test_one_norm_under_two_names_is_left_alone() -> None:
    torch.manual_seed(0)
    model = OneNormUnderTwoNames().eval()
    assert agree(model, norm.fold(model), images(4, 2, 5, 5))
    assert norms(norm.fold(model)) == ["bn"]


class BlockUnderTwoNames(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), season(nn.BatchNorm2d(2))).double()
        self.extractor = self.features

    def forward(self, x: Tensor) -> Tensor:
        return self.extractor(x)


def test_a_block_under_two_names_is_folded_inside() -> None:
    torch.manual_seed(0)
    model = BlockUnderTwoNames().eval()
    assert agree(model, norm.fold(model), images(4, 2, 5, 5))
    assert norms(norm.fold(model)) == []


@pytest.mark.parametrize("act", [nn.ReLU, nn.Sigmoid])
def test_a_relu_does_not_overwrite_the_activation_that_a_norm_layer_ends_in(act: type[nn.Module]) -> None:
    layer = pytest.importorskip("timm.layers").BatchNormAct2d(2, act_layer=act)
    model = nn.Sequential(nn.Conv2d(3, 2, 3), layer, nn.ReLU(), nn.Flatten()).eval()
    x = torch.rand(2, 3, 5, 5, requires_grad=True)
    grads = [
        torch.autograd.grad(one(x).square().sum(), x)[0] for one in (model, norm.fold(model, x.detach()))
    ]
    assert torch.allclose(*grads, atol=1e-6)


def test_one_convolution_under_two_names_is_left_alone() -> None:
    assert norms(norm.fold(OneConvolutionUnderTwoNames())) == ["bn", "bn2"]


@pytest.mark.parametrize("at", ["conv1", "bn1"])
@pytest.mark.parametrize("register", ["register_forward_hook", "register_forward_pre_hook"])
def test_hooked_modules_are_left_alone(at: str, register: str) -> None:
    model = small().eval()
    getattr(model.get_submodule(at), register)(lambda *_: None)
    assert norms(norm.fold(model)) == ["bn1"]


def test_parametrized_convolutions_are_left_alone() -> None:
    model = small()
    nn.utils.parametrizations.weight_norm(model.conv1)
    folded = norm.fold(model)
    assert norms(folded) == ["bn1"]
    assert agree(model, folded, images(4, 2, 5, 5))


def test_layers_without_running_statistics_are_left_alone() -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3, track_running_stats=False)).double()
    assert norms(norm.fold(model)) == ["1"]


# ---- verification ---------------------------------------------------------------------------------------


class Deceitful(Small):
    """Traces as it should, and runs otherwise: it reads the norm layer behind the tracer's back."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        hidden = dict(self.named_modules())["bn1"]
        return y + 1 if isinstance(hidden, nn.Identity) else y


def test_a_copy_that_differs_on_the_example_is_given_unfolded() -> None:
    torch.manual_seed(0)
    model = season(Deceitful().double()).eval()
    x = images(4, 2, 5, 5)
    assert norms(norm.fold(model)) == []
    checked = norm.fold(model, x)
    assert norms(checked) == ["bn1", "bn2"]
    assert agree(model, checked, x)


class Curious(Small):
    """Asks its norm layer for something that no tracer sees."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.bn1.eps


def test_a_copy_that_cannot_run_on_the_example_is_given_unfolded() -> None:
    assert norms(norm.fold(Curious().double(), images(4, 2, 5, 5))) == ["bn1", "bn2"]


def test_a_copy_that_agrees_on_the_example_is_folded() -> None:
    x = images(4, 2, 5, 5)
    assert norms(norm.fold(small(), x)) == []


class Answers(nn.Sequential):
    """It answers in float32, however it computes."""

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = super().forward(x)
        return z.float()


@pytest.mark.parametrize("kind", [nn.Sequential, Answers])
def test_rounding_under_autocast_is_no_reason_not_to_fold(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU())]
    model = season(kind(*layers, nn.Flatten(), nn.Linear(32, 4))).eval()
    x = torch.rand(4, 8, 14, 14)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        wanted, got = model(x), norm.fold(model)(x)
        assert float((got - wanted).abs().max()) > 1e-3 * float(wanted.abs().max())
        assert norms(norm.fold(model, x)) == []


class SlightlyDeceitful(Deceitful):
    """Off by half a percent where it is folded."""

    def forward(self, x: Tensor) -> Tensor:
        y = Small.forward(self, x)
        folded = isinstance(dict(self.named_modules())["bn1"], nn.Identity)
        return 1.005 * y if folded else y


@pytest.mark.parametrize("narrow", [False, True])
def test_a_fold_is_held_to_the_rounding_of_full_precision(narrow: bool) -> None:
    torch.manual_seed(0)
    model, x = season(SlightlyDeceitful()).eval(), images(4, 2, 5, 5).float()
    with torch.autocast("cpu", torch.bfloat16, enabled=narrow):
        assert norms(norm.fold(model)) == []
        assert norms(norm.fold(model, x)) == ["bn1", "bn2"]


def test_relus_overwrite_only_what_nobody_else_reads() -> None:
    class Peeks(nn.Module):
        """Reads a norm's output beside its ReLU, and rectifies a sigmoid, whose gradient needs its output."""

        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.bn1 = nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2)
            self.conv2, self.bn2 = nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2)
            self.conv3, self.bn3 = nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2)
            self.alone, self.summed, self.peeked, self.squashed = (nn.ReLU() for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            first = self.alone(self.bn1(self.conv1(x)))
            second = self.bn2(self.conv2(first))
            both = self.summed(self.bn3(self.conv3(x)) + self.peeked(second))
            return (both * second + self.squashed(torch.sigmoid(second))).flatten(1)

    model = season(Peeks().double()).eval()
    folded: Any = norm.fold(model)
    named = ("alone", "summed", "peeked", "squashed")
    assert [getattr(folded, name).inplace for name in named] == [True, True, False, False]
    assert not any(getattr(model, name).inplace for name in named)
    assert agree(model, folded, images(4, 2, 5, 5))


def test_a_relu_that_is_called_twice_overwrites_only_if_it_may_both_times() -> None:
    class Twice(nn.Module):
        """Rectifies a norm's output that is read again, then one that is not, with the same ReLU."""

        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.bn1 = nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2)
            self.conv2, self.bn2 = nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2)
            self.act = nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            first = self.bn1(self.conv1(x))
            second = self.act(self.bn2(self.conv2(self.act(first))))
            return (first * second).flatten(1)

    model = season(Twice().double()).eval()
    folded: Any = norm.fold(model)
    assert not folded.act.inplace
    assert agree(model, folded, images(4, 2, 5, 5))


class SumInPlace(nn.Module):
    """Adds its shortcut as torchvision does; `peeks` reads the sum again after its ReLU."""

    def __init__(self, peeks: bool) -> None:
        super().__init__()
        self.peeks, self.act = peeks, nn.ReLU()
        self.conv1, self.bn1 = nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2)

    def forward(self, x: Tensor) -> Tensor:
        out = kept = self.bn1(self.conv1(x))
        out += x
        y: Tensor = self.act(out)
        return (y * kept if self.peeks else y).flatten(1)


@pytest.mark.parametrize("peeks", [False, True])
def test_a_relu_overwrites_a_sum_in_place_only_if_nobody_reads_it_again(peeks: bool) -> None:
    model = season(SumInPlace(peeks).double()).eval()
    folded: Any = norm.fold(model)
    assert folded.act.inplace != peeks
    assert agree(model, folded, images(4, 2, 5, 5))


@pytest.mark.parametrize("at", ["1", "0", ""])
@pytest.mark.parametrize("register", ["register_forward_hook", "register_full_backward_hook"])
def test_what_a_hook_keeps_is_not_overwritten(register: str, at: str) -> None:
    layers = (nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2))
    model = nn.Sequential(nn.Sequential(*layers), nn.ReLU(), nn.Conv2d(2, 2, 1), nn.Flatten())
    model = season(model.double()).eval()
    kept: list[Tensor] = []

    def keep(module: nn.Module, into: Any, out: Any) -> None:
        shown = out if isinstance(out, Tensor) else out[0]
        if isinstance(shown, Tensor):  # not a tracer's stand-in
            kept.append(shown)

    getattr(model.get_submodule(at), register)(keep)
    assert agree(model, norm.fold(model), images(4, 2, 5, 5))
    theirs, ours = kept
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_tracing_leaves_nothing_on_the_copy() -> None:
    class Lazy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
            self.grid: Tensor | None = None

        def forward(self, x: Tensor) -> Tensor:
            if self.grid is None:
                self.grid = torch.ones_like(x[:1, :1])
            z: Tensor = self.body(x) * self.grid
            return z.flatten(1)

    net, x = Lazy().eval(), torch.rand(4, 3, 2, 2)
    folded = norm.fold(net, x)
    torch.testing.assert_close(folded(x), net(x))
    torch.testing.assert_close(norm.fold(Lazy().eval())(x).shape, net(x).shape)
