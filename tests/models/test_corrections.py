"""Corrections undo their faults exactly, and the comparison has margins on networks that are fixed."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn

from trimtab import data, load
from trimtab.models import corrections
from trimtab.models.corrections import (
    FIRST,
    GAIN,
    SIGNIFICANCE,
    UNLIKE,
    USUAL,
    Evidence,
    compare,
    is_certain,
    p_better,
    references,
    strongest,
    unlike_constants,
)  # fmt: skip
from trimtab.models.pixels import Normalize
from trimtab.types import InputSpec

N = 256
STRONG = ("not normalized", "wrong mean", "divided by 255")
"""Faults that cost every network far more than ten points."""
FAULTS = ("normalized twice", "not normalized", "wrong mean", "wrong constants", "0..255", "divided by 255")


class Faulty(nn.Module):
    """A network of the zoo whose normalization has a fault, hidden from whoever sees the module."""

    def __init__(self, name: str, fault: str) -> None:
        super().__init__()
        model = load(name)
        right, self.net = Normalize(model.spec.mean, model.spec.std), model.net
        other = Normalize(*USUAL[model.spec.channels]["[-1, 1]"])
        self.receives = {
            "": right,
            "normalized twice": lambda x: right(right(x)),
            "not normalized": lambda x: x,
            "wrong mean": lambda x: x / right.std,
            "wrong constants": other,
            "0..255": lambda x: right(x * 255),
            "divided by 255": lambda x: right(x / 255),
            "BGR": lambda x: right(x.flip(1)),
        }[fault]

    def forward(self, x: Tensor) -> Tensor:
        return self.net(self.receives(x))


def constants(spec: InputSpec) -> dict[str, corrections.Constants]:
    return {"the images": (spec.mean, spec.std)}


def best(name: str, fault: str) -> tuple[float, float, Evidence | None]:
    """The largest gain of a correction, its p-value, and what the check makes of it."""
    images = data.load("sample")
    x, y, _ = images.take(torch.arange(N))
    options = corrections.corrections(1, constants(images.spec))
    as_given, corrected = compare(Faulty(name, fault).eval(), x, y, options)
    row = corrected[int(corrected.sum(1).argmax())]
    gain = float(row.double().mean() - as_given.double().mean())
    return gain, len(options) * p_better(row, as_given), strongest(as_given, corrected, y, options)


@pytest.mark.parametrize(
    ("name", "fault"),
    [("zoo:sample-standard", fault) for fault in FAULTS]
    + [(f"zoo:sample-{name}", fault) for name in ("adversarial", "nobn") for fault in STRONG],
)
def test_a_planted_fault_is_found_with_a_margin(name: str, fault: str) -> None:
    gain, p_value, evidence = best(name, fault)
    assert evidence is not None
    assert gain > 1.5 * GAIN
    assert p_value < SIGNIFICANCE / 10


@pytest.mark.parametrize("name", ["standard", "adversarial", "mixture", "noise", "apart", "nobn"])
def test_a_sound_network_stays_below_half_of_the_threshold(name: str) -> None:
    gain, _, evidence = best(f"zoo:sample-{name}", "")
    assert evidence is None
    assert gain < GAIN / 2


@pytest.mark.parametrize("channels", [1, 3])
def test_a_correction_gives_the_network_what_the_right_constants_would(channels: int) -> None:
    x = torch.rand(2, channels, 4, 4, generator=torch.Generator().manual_seed(0))
    options = {option.name: option for option in corrections.corrections(channels)}
    for applied, wrong in USUAL[channels].items():
        for name, right in USUAL[channels].items():
            if option := options.get(f"re-normalized from {applied} to {name}"):
                torch.testing.assert_close(Normalize(*wrong)(option(x)), Normalize(*right)(x))
        twice, never = options[f"un-normalized by {applied}"], options[f"normalized as for {applied}"]
        torch.testing.assert_close(Normalize(*wrong)(twice(x)), x)
        torch.testing.assert_close(never(x), Normalize(*wrong)(x))
        if no_mean := options.get(f"minus the mean of {applied}"):
            std = torch.tensor(wrong[1]).view(-1, 1, 1)
            torch.testing.assert_close(no_mean(x) / std, Normalize(*wrong)(x))
        if no_std := options.get(f"divided by the std of {applied}"):
            mean = torch.tensor(wrong[0]).view(-1, 1, 1)
            torch.testing.assert_close(no_std(x) - mean, Normalize(*wrong)(x))


def test_a_constant_that_is_nearly_another_adds_no_candidate() -> None:
    near = tuple(value + 0.001 for value in USUAL[3]["ImageNet"][0])
    more = corrections.corrections(3, {"the images": (near, USUAL[3]["ImageNet"][1])})
    assert len(more) == len(corrections.corrections(3))


def test_the_p_value_is_that_of_a_fair_coin() -> None:
    base = torch.tensor([False] * 12)
    assert p_better(~base, base) == pytest.approx(2**-12)
    assert p_better(base, base) == 1.0
    three = torch.tensor([True] * 3 + [False])
    assert p_better(three, ~three) == pytest.approx((4 + 1) / 16)  # 3 or 4 heads of 4


def test_a_correction_that_does_not_help_first_is_not_tried_on_the_rest() -> None:
    shown: list[int] = []

    def call(x: Tensor) -> Tensor:
        shown.append(len(x))
        return torch.stack([x.mean((1, 2, 3)), 1 - x.mean((1, 2, 3))], 1)

    x, y = torch.full((2 * FIRST, 1, 2, 2), 0.9), torch.zeros(2 * FIRST, dtype=torch.long)
    darker = corrections.Correction("darker", "", (0.1,), (0.0,))
    as_given, corrected = compare(call, x, y, [darker])
    assert shown == [2 * FIRST, FIRST]
    assert as_given.all()
    assert not corrected[0, :FIRST].any()
    assert corrected[0, FIRST:].all()  # counts as no change


def test_a_correction_must_beat_a_constant_prediction() -> None:
    y = torch.tensor([0] * 90 + [1] * 10)
    all_zero, none = y == 0, torch.zeros(100, dtype=torch.bool)
    option = corrections.Correction("constant", "")
    assert strongest(none, all_zero[None], y, [option]) is None
    assert strongest(none, torch.ones(1, 100, dtype=torch.bool), y, [option]) is not None


def test_images_of_another_kind_are_told_by_their_own_mean_and_std() -> None:
    images = data.load("sample")
    x, _, ids = images.take(torch.arange(128))
    known = references(1, constants(load("zoo:sample-standard").spec))
    assert unlike_constants(x, known) < UNLIKE / 2
    for name in ("brightness", "contrast", "fog"):
        assert unlike_constants(data.corrupt(x, name, 5, ids=ids), known) > 1.5 * UNLIKE
    evidence = partial(Evidence, before=0.1, after=0.9, p_value=0.0)
    dark = x * 0.1
    by_kind = {option.advice: option for option in corrections.corrections(1)}
    spec = constants(images.spec)
    assert is_certain(evidence(by_kind[corrections.MISSING]), x, spec)
    assert not is_certain(evidence(by_kind[corrections.MISSING]), dark, spec)
    assert is_certain(evidence(by_kind[corrections.BYTES]), dark, spec)


def test_the_distance_is_in_stds_of_the_reference() -> None:
    x = torch.tensor([0.0, 1.0]).repeat(8).view(1, 1, 4, 4)  # mean 0.5, std sqrt(4/15)
    std = (4 / 15) ** 0.5
    assert unlike_constants(x, [((0.5,), (std,))]) == pytest.approx(0, abs=1e-6)
    assert unlike_constants(x, [((0.5 - 2 * std,), (std,))]) == pytest.approx(2)
    assert unlike_constants(x, [((0.5,), (std / 4,)), ((0.5,), (std / 8,))]) == pytest.approx(2)
