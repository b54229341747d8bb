"""Planted defects each raise their flag; sound models raise none.

Also tests evaluate.attack_flags, evaluate.model_flags, evaluate.probes.
"""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nets import Net, trained
from trimtab import adapt, attacks, data, load, models
from trimtab.data import ImageSet
from trimtab.data.embedded import sample
from trimtab.data.sets import from_arrays
from trimtab.evaluate import Clean, Store, run, trust
from trimtab.evaluate.attack_flags import more_correct
from trimtab.evaluate.bn_modes import PerBatchMode, RunningMode
from trimtab.measure import clopper_pearson
from trimtab.models.pixels import Normalize
from trimtab.types import InputSpec


class Defect(nn.Module):
    """A sound network inside something that spoils it."""

    def __init__(self, eps: float = 0.0) -> None:
        super().__init__()
        self.inner = trained(eps)
        self.spec: InputSpec = self.inner.spec


class Quantized(Defect):
    def forward(self, x: Tensor) -> Tensor:
        return self.inner((x * 15).round() / 15)


class Softmaxed(Defect):
    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).softmax(1)


class DropoutOn(Defect):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.dropout(self.inner.net[:7](self.normal(x)), 0.3), *self.last)

    def normal(self, x: Tensor) -> Tensor:
        return (x - self.spec.mean[0]) / self.spec.std[0]

    @property
    def last(self) -> tuple[Tensor, Tensor]:
        return self.inner.net[7].weight, self.inner.net[7].bias


class StaysInTraining(Defect):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.3)

    def train(self, mode: bool = True) -> nn.Module:
        super().train(mode)
        self.drop.train(True)
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.inner(x))


class _NoGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        return x.clone()

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        return torch.zeros_like(grad)


class GradientKiller(Defect):
    def forward(self, x: Tensor) -> Tensor:
        return self.inner(_NoGradient.apply(x))


class Cut(Defect):
    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.detach())


class _FittedToOneStep(torch.autograd.Function):
    """Gradients that mislead at images as they come (whole levels of 255) and nowhere else."""

    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        (x,) = ctx.saved_tensors
        off_grid = ((x * 255) - (x * 255).round()).abs().amax((1, 2, 3), keepdim=True) > 1e-3
        return torch.where(off_grid, grad, -grad)


class Overfitted(Defect):
    def forward(self, x: Tensor) -> Tensor:
        return self.inner(_FittedToOneStep.apply(x))


class Rippled(Defect):
    """A fine ripple over the pixels drowns the gradient that matters."""

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x + 0.004 * torch.sin(2000 * x))


class WronglyNormalized(nn.Module):
    """A network of the zoo, which every machine has alike, and its constants."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = load("zoo:sample-standard")
        self.spec: InputSpec = self.inner.spec


class TwiceNormalized(WronglyNormalized):
    def forward(self, x: Tensor) -> Tensor:
        return self.inner((x - self.spec.mean[0]) / self.spec.std[0])


class NeverNormalized(WronglyNormalized):
    def forward(self, x: Tensor) -> Tensor:
        return self.inner.net(x)


class WantsBytes(WronglyNormalized):
    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x / 255)


def coupled() -> nn.Module:
    return adapt.per_batch(trained())


AT_EPS = (attacks.Linf("8/255"),)
PLANTED = {
    "quantized input": (Quantized, AT_EPS, {"no gradient", "black box"}),
    "gradient killer": (GradientKiller, AT_EPS, {"no gradient", "unbounded", "black box"}),
    "graph cut": (Cut, AT_EPS, {"cut"}),
    "FGSM-overfitted": (Overfitted, AT_EPS, {"one step"}),
    "rippled": (Rippled, AT_EPS, {"black box"}),
    "softmax output": (Softmaxed, (), {"probabilities"}),
    "dropout on": (DropoutOn, (), {"stochastic"}),
    "dropout that eval does not reach": (StaysInTraining, (), {"modes", "stochastic"}),
    "batch-coupled BN": (coupled, (), {"batch"}),
    "normalized twice": (TwiceNormalized, (), {"normalization"}),
    "never normalized": (NeverNormalized, (), {"normalization"}),
    "wants bytes": (WantsBytes, (), {"normalization"}),
}


class Constant(nn.Module):
    """It gives one class to every image, with gradients that lead somewhere else."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)[:, 300:310] + 20 * F.one_hot(torch.tensor(3), 10)


def test_a_model_with_one_answer_is_called_that_and_not_masked() -> None:
    model = models.wrap(Constant(), InputSpec((28, 28), 1, (0.0,), (1.0,)))
    names = {flag.name for flag in trust.examine(model, sample())}
    assert "constant" in names
    assert not names & {"unbounded", "black box"}


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_defect_raises_its_flag(planted: str) -> None:
    make, budgets, expected = PLANTED[planted]
    found = trust.examine(make(), sample(), budgets)
    names = {flag.name for flag in found}
    assert expected <= names
    assert budgets or expected == names  # what is wrong with the model itself is named, and nothing else
    assert all(flag.saw and flag.advice for flag in found)


def test_images_for_another_network_or_class_by_class_raise_a_flag() -> None:
    def flags(model: nn.Module, images: ImageSet) -> set[str]:
        return {flag.name for flag in trust.examine(model, images, ())} & {"size", "classes", "order"}

    model, images = load("zoo:sample-standard"), data.load("sample")
    assert flags(model, images) == set()
    larger = torch.nn.functional.interpolate(images.take(torch.arange(128)).x, 40)
    few = from_arrays(larger.clamp(0, 1), images.labels[:128] % 3)
    assert flags(model, few) == {"size", "classes"}
    assert flags(model, images.subset(images.labels.argsort())) == {"order"}


def test_images_of_one_of_two_classes_raise_a_flag() -> None:
    class Brightness(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            z = x.mean((1, 2, 3)) - 0.5
            return torch.stack([-z, z], 1)

    x = torch.rand(64, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    half = torch.arange(64) // 32
    by_class, mixed = (from_arrays(x, labels) for labels in (half, half[torch.arange(64) % 2 * 32]))
    for images, shown in ((by_class, {"order"}), (mixed, set())):
        first = images.subset(slice(0, 32))
        assert {flag.name for flag in trust.examine(Brightness(), first, ())} & {"order"} == shown


def test_one_image_of_each_class_in_their_order_raises_a_flag() -> None:
    class Levels(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return -(x.mean((1, 2, 3))[:, None] - torch.linspace(0, 1, 300)).abs()

    labels = torch.arange(300)
    x = (labels / 299)[:, None, None, None].expand(-1, 1, 8, 8).contiguous()
    mixed = torch.randperm(300, generator=torch.Generator().manual_seed(0))
    for order, shown in ((labels, {"order"}), (labels.flip(0), {"order"}), (mixed, set())):
        images = from_arrays(x[order], labels[order])
        assert {flag.name for flag in trust.examine(Levels(), images, ())} & {"order"} == shown


@pytest.mark.parametrize("eps", [0.0, 8 / 255], ids=["standard", "adversarially trained"])
def test_a_sound_model_raises_no_flag(eps: float, store: Store) -> None:
    card = run(trained(eps), sample(), store=store, limit=512)
    assert card.flags == ()
    assert card.trusted


def test_no_robust_accuracy_is_measured_on_pixels_normalized_twice(store: Store) -> None:
    suite = [Clean(), attacks.FGSM()]
    card = run(TwiceNormalized(), sample(), suite, store=store, limit=256)
    assert [row.kind for row in card.rows] == ["clean"]
    (warning,) = [flag for flag in card.flags if flag.name == "normalization"]
    assert "no attack" in warning.advice
    forced = run(TwiceNormalized(), sample(), suite, store=store, limit=256, force=True)
    assert len(forced.rows) == 2
    assert not any("no attack" in flag.advice for flag in forced.flags)


def test_few_images_raise_a_flag_with_their_interval(store: Store) -> None:
    card = run(trained(), sample(), [Clean()], store=store, limit=20)
    (flag,) = card.flags
    assert flag.name == "samples"
    assert "20 images" in flag.saw
    low, high = clopper_pearson(trust.ENOUGH // 2, trust.ENOUGH)  # the widest of all
    assert high - low <= trust.WIDEST


def test_a_curve_that_still_falls_raises_a_flag(store: Store) -> None:
    short = attacks.CurvePGD(
        attacks.Linf(0.2), steps=10, step_size="2/255", marks=(5, 10), random_start=False
    )
    card = run(trained(), sample(), [short], store=store, limit=128)
    flag = next(flag for flag in card.flags if flag.name == "curve")
    assert card.rows[0].curve is not None
    before, after = (accuracy for _, accuracy in card.rows[0].curve.points)
    assert before > after
    assert f"{before:.1%}" in flag.saw


def test_only_differences_beyond_chance_count() -> None:
    base = torch.tensor([True] * 50 + [False] * 50)
    one_way, both_ways = base.clone(), base.clone()
    one_way[50:60] = True  # ten images gained, none lost: p = 2 ** -10
    both_ways[50:60], both_ways[:8] = True, False
    assert more_correct(one_way, base)
    assert not more_correct(base, one_way)
    assert not more_correct(both_ways, base)


def test_a_suite_of_attacks_alone_may_end_without_rows(store: Store) -> None:
    card = run(Cut(), sample(), [attacks.FGSM()], store=store, limit=32)
    assert card.rows == ()
    assert [flag.name for flag in card.flags] == ["cut"]


def test_an_untrained_model_is_not_taken_for_a_wrongly_normalized_one() -> None:
    names = set()
    for seed in range(8):
        torch.manual_seed(seed)
        names |= {flag.name for flag in trust.examine(Net(sample().spec), sample(), ())}
    assert names == {"untrained"}


def test_a_shift_of_the_images_is_not_taken_for_a_wrong_normalization(store: Store) -> None:
    model, images = load("zoo:sample-standard"), data.load("sample")
    first = images.take(torch.arange(256))
    bright = from_arrays(
        data.corrupt(first.x, "brightness", 3, ids=first.ids), first.y, classes=images.classes
    )
    suite = [Clean(), attacks.FGSM()]
    for state in (RunningMode(), PerBatchMode()):
        card = run(model, bright, suite, store=store, bn_modes=[state], examine=False)
        assert len(card.rows) == 2
        assert "normalization" not in {flag.name for flag in card.flags}


def test_a_black_box_attack_runs_where_gradients_are_cut(store: Store) -> None:
    card = run(Cut(), sample(), [attacks.FGSM(), attacks.Square(queries=5)], store=store, limit=64)
    assert [str(row.condition)[:6] for row in card.rows] == ["Square"]


def test_classes_in_another_order_raise_a_flag() -> None:
    model, images = load("zoo:sample-standard"), data.load("sample")
    turned = from_arrays(images.take(torch.arange(64)).x, images.labels[:64], classes=images.classes[::-1])
    (flag,) = (flag for flag in trust.examine(model, turned, ()) if flag.name == "classes")
    assert images.classes[0] in flag.saw


def test_a_size_that_nobody_recorded_raises_no_flag(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "from torch import nn\ndef make():\n    return nn.Sequential(nn.Conv2d(3, 4, 3), "
        "nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))\n"
    )
    model = load(f"py:{tmp_path}/own.py:make")
    images = from_arrays(torch.rand(32, 3, 40, 40), torch.arange(32) % 2)
    assert "size" not in {flag.name for flag in trust.examine(model, images, ())}


def test_attacks_on_batches_say_which_iterate_counts(store: Store) -> None:
    pgd = attacks.PGD(steps=2, early_stop=True)
    card = run(
        trained(),
        sample(),
        [pgd],
        store=store,
        limit=64,
        bn_modes=[RunningMode(), PerBatchMode()],
        examine=False,
    )
    (row,) = card.without_early_stopping
    assert (row.bn_mode, row.iterate, row.batch_size) == (PerBatchMode(), "last iterate", 64)
    assert card.rows[0].iterate == "early stopping"


def test_a_recorded_size_counts_without_a_mean(tmp_path: Path) -> None:
    models.save(models.load("net:resnet8,width=4", classes=2), tmp_path / "saved")
    images = from_arrays(torch.rand(32, 3, 40, 40), torch.arange(32) % 2)
    assert "size" in {flag.name for flag in trust.examine(load(f"file:{tmp_path}/saved"), images, ())}


def test_channels_that_were_guessed_do_not_stop_an_attack(store: Store) -> None:
    """A network without a convolution tells nothing of its images, and one may begin with an attention."""

    class Attentive(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attend = nn.Conv2d(2, 1, 3, padding=1)
            self.net = nn.Sequential(nn.Conv2d(1, 4, 3, stride=4), nn.Flatten(), nn.LazyLinear(10))

        def forward(self, x: Tensor) -> Tensor:
            both = torch.cat([x.mean(1, keepdim=True), x.amax(1, keepdim=True)], 1)
            return self.net(x * self.attend(both).sigmoid())

    torch.manual_seed(0)
    images = sample("test").subset(slice(0, 16))
    for net in (nn.Sequential(nn.Flatten(), nn.Linear(784, 10)), Attentive()):
        net(images.take(torch.arange(2)).x)
        card = run(net, images, [Clean(), attacks.FGSM()], store, examine=False)
        assert [row.kind for row in card.rows] == ["clean", "attack"]
        assert "normalization" not in [flag.name for flag in card.flags]


def test_gray_images_that_only_broadcast_to_a_networks_colors_stop_attacks(store: Store) -> None:
    net = nn.Sequential(Normalize((0.5,) * 3, (0.2,) * 3), nn.Conv2d(3, 10, 28), nn.Flatten())
    images = sample("test").subset(slice(0, 16))
    card = run(net, images, [Clean(), attacks.FGSM()], store, examine=False)
    assert [row.kind for row in card.rows] == ["clean"]
