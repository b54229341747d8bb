"""Corruption errors against hand computations in exact fractions."""

from __future__ import annotations

from fractions import Fraction

import pytest

from trimtab.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS
from trimtab.measure.corruption_error import ALEXNET, Baseline, corruption_error
from trimtab.types import BadInput


def table(offset: float = 0.0) -> dict[str, list[float]]:
    """Errors that differ by corruption and severity."""
    return {c: [0.02 * i + 0.05 * s + offset for s in range(1, 6)] for i, c in enumerate(CORRUPTIONS)}


def test_alexnet_has_all_nineteen_published_errors():
    assert set(ALEXNET.mean_errors) == {*CORRUPTIONS, *EXTRA_CORRUPTIONS}
    fifteen = sum(ALEXNET.mean_errors[name] for name in CORRUPTIONS) / 15
    assert fifteen == pytest.approx(0.788993, abs=1e-6)  # of google-research/augmix: imagenet.py
    assert ALEXNET.clean == 0.435


def test_mce_is_the_mean_of_ratios_of_sums():
    judged = corruption_error(table(), clean=0.04)
    ratios = []
    for i, name in enumerate(CORRUPTIONS):
        above = sum(Fraction(2 * i + 5 * s, 100) for s in range(1, 6))
        below = 5 * Fraction(str(ALEXNET.mean_errors[name]))
        ratios.append(above / below)
        assert judged.ce[name] == pytest.approx(float(ratios[-1]), rel=1e-12)
    assert judged.mce == pytest.approx(float(sum(ratios) / 15), rel=1e-12)


def test_relative_mce_subtracts_each_network_s_clean_error_inside_the_sum():
    judged = corruption_error(table(), clean=0.04)
    ratios = []
    for i, name in enumerate(CORRUPTIONS):
        above = sum(Fraction(2 * i + 5 * s, 100) - Fraction(4, 100) for s in range(1, 6))
        below = 5 * (Fraction(str(ALEXNET.mean_errors[name])) - Fraction(435, 1000))
        ratios.append(above / below)
    assert judged.relative_mce == pytest.approx(float(sum(ratios) / 15), rel=1e-12)


def test_a_network_is_as_bad_as_itself_and_half_as_bad_as_one_with_twice_its_errors():
    own = Baseline.of("own", table(), clean=0.04)
    assert corruption_error(table(), 0.04, own).mce == pytest.approx(1)
    half = {c: [e / 2 for e in row] for c, row in table().items()}
    judged = corruption_error(half, 0.02, own)
    assert (judged.mce, judged.relative_mce) == (pytest.approx(0.5), pytest.approx(0.5))
    assert judged.baseline == "own"


def test_mean_error_and_gap_are_over_fifteen_corruptions_and_five_severities():
    extra = {name: [0.9] * 5 for name in EXTRA_CORRUPTIONS}
    judged = corruption_error(table() | extra, clean=0.04)
    mean = 0.02 * 7 + 0.05 * 3  # the middle corruption at the middle severity
    assert judged.mean_error == pytest.approx(mean)
    assert judged.gap == pytest.approx(mean - 0.04)
    assert judged.mean_errors["spatter"] == pytest.approx(0.9)
    assert judged.ce["spatter"] == pytest.approx(0.9 / 0.717512)
    assert judged.mce == pytest.approx(corruption_error(table(), clean=0.04).mce)


def test_adaptation_shows_as_the_difference_of_two_tables():
    before, after = corruption_error(table(0.1), 0.1), corruption_error(table(), 0.12)
    assert before.gap - after.gap == pytest.approx(0.12)
    assert after.mce < before.mce


def test_without_a_baseline_there_is_a_mean_error_but_no_mce():
    judged = corruption_error(table(), 0.04, baseline=None)
    assert judged.mean_error > 0
    with pytest.raises(BadInput, match="mCE a baseline"):
        _ = judged.mce


def test_a_mean_over_fewer_corruptions_is_refused():
    some = {name: row for name, row in table().items() if name != "fog"}
    judged = corruption_error(some, 0.04)
    assert not judged.complete
    assert judged.ce["snow"] > 0
    with pytest.raises(BadInput, match="missing: fog"):
        _ = judged.mean_error


@pytest.mark.parametrize(
    ("errors", "clean", "message"),
    [
        ({"rain": [0.1] * 5}, 0.1, "no corruption 'rain'"),
        ({"fog": [0.1] * 4}, 0.1, "five severities, found 4"),
        ({"fog": [45.0] * 5}, 0.1, "divide percent by 100"),
        ({"fog": [float("nan")] * 5}, 0.1, "fractions in"),
        ({"fog": [0.1] * 5}, 23.9, "clean error must be a fraction"),
    ],
)
def test_tables_that_cannot_be_errors_are_refused(errors, clean, message):
    with pytest.raises(BadInput, match=message):
        corruption_error(errors, clean)


def test_a_baseline_must_know_the_corruption():
    small = Baseline.of("small", {"fog": [0.5] * 5}, clean=0.1)
    with pytest.raises(BadInput, match="small has no error for snow"):
        corruption_error({"snow": [0.5] * 5}, 0.1, small)
