"""Tables and differences, against counts made by hand and exact enumeration."""

from dataclasses import replace
from itertools import product

import pytest
from scipy.stats import binom
from tests.report.report_cards import CLEAN, FROZEN, PER_BATCH, RUNNING, card, corruption, row

from trimtab.evaluate import BNMode, Card, Row
from trimtab.evaluate.records import Curve, OtherRecord
from trimtab.measure.accuracy import clopper_pearson
from trimtab.report import tables
from trimtab.report.tables import Estimate


def test_scorecard_has_a_column_per_norm_state_and_the_running_one_comes_first() -> None:
    mixed = replace(card(), rows=tuple(reversed(card().rows)))
    drawn = tables.grid(mixed)
    assert drawn.columns == ("running", str(FROZEN), str(PER_BATCH))
    assert {len(line.cells) for line in drawn.lines} == {3}


def test_scorecard_says_the_accuracy_and_its_interval() -> None:
    low, high = clopper_pearson(900, 1000)
    (clean,) = (line for line in tables.grid(card()).lines if line.name == "clean")
    assert str(clean.cells[0]) == f"90.0 % ({100 * low:.1f}–{100 * high:.1f})"


def test_what_was_not_measured_is_left_empty() -> None:
    (attacked,) = (line for line in tables.grid(card()).lines if line.name.startswith("PGD-20"))
    assert attacked.cells[1:] == (None, None)


def test_seeds_are_averaged_and_their_intervals_joined() -> None:
    rows = tuple(row(CLEAN, RUNNING, correct, seed=s) for s, correct in enumerate((880, 900, 950)))
    found = tables.estimates(replace(card(), rows=rows), RUNNING)[CLEAN]
    assert found.value == pytest.approx(0.91)
    assert (found.low, found.high) == (clopper_pearson(880, 1000)[0], clopper_pearson(950, 1000)[1])


def test_many_corruptions_are_shown_as_their_mean_and_the_worst() -> None:
    shares = (100, 200, 300, 400, 500, 600, 700)
    rows = tuple(row(corruption(f"kind {i}"), RUNNING, k) for i, k in enumerate(shares))
    drawn = tables.short(tables.grid(replace(card(), rows=rows)))
    assert [line.name for line in drawn.lines] == ["mean of 7 corruptions", "worst of them"]
    assert [str(line.cells[0])[:6] for line in drawn.lines] == ["40.0 %", "10.0 %"]


def corrupted(*names: str, correct: int = 500, state: BNMode = RUNNING) -> tuple[Row, ...]:
    return tuple(row(corruption(name), state, correct) for name in names)


def test_means_that_are_compared_are_over_the_same_corruptions() -> None:
    shared = [f"kind {i}" for i in range(8)]
    one = replace(card("a"), rows=corrupted(*shared) + corrupted("easy", correct=1000))
    other = replace(card("b"), rows=corrupted(*shared, correct=400))
    none = replace(card("c"), rows=(row(CLEAN, RUNNING, 900),))
    drawn = {line.name: line.cells for line in tables.comparison([one, other, none]).lines}
    assert [c and c.value for c in drawn["mean of 8 corruptions measured for all"]] == [0.5, 0.4, None]
    few = replace(one, rows=corrupted("kind 0", "easy"))
    assert [line.name for line in tables.comparison([few, other]).lines] == ["kind 0, severity 3"]


def test_extra_corruptions_are_part_of_no_mean() -> None:
    rows = corrupted(*(f"kind {i}" for i in range(7))) + corrupted("speckle_noise", "saturate", correct=0)
    drawn = tables.short(tables.grid(replace(card(), rows=rows)))
    found = {line.name: line.cells[0] for line in drawn.lines}
    assert list(found) == ["mean of 7 corruptions", "worst of them"]
    assert found["mean of 7 corruptions"] == found["worst of them"]


def test_models_of_one_name_are_told_apart() -> None:
    assert tables.names([card("a"), card("b"), card("a"), card("a")]) == ("a", "b", "a (2)", "a (3)")


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("q", [0.1, 0.45, 0.9])
def test_intervals_of_differences_hold_the_truth_in_at_least_95_percent_of_all_samples(
    p: float, q: float
) -> None:
    n = 25
    held = 0.0
    shares = [Estimate(k / n, *clopper_pearson(k, n), n) for k in range(n + 1)]
    for one, other in product(range(n + 1), repeat=2):
        gap = tables.difference(shares[one], shares[other])
        held += (gap.low <= p - q <= gap.high) * binom.pmf(one, n, p) * binom.pmf(other, n, q)
    assert held >= 0.95


def test_a_difference_turns_its_sign_with_its_sides() -> None:
    a, b = Estimate(0.7, 0.6, 0.75), Estimate(0.5, 0.45, 0.58)
    there, back = tables.difference(a, b), tables.difference(b, a)
    assert (there.value, there.low, there.high) == pytest.approx((-back.value, -back.high, -back.low))
    assert (there.significant, back.significant, tables.difference(a, a).significant) == (1, -1, 0)


def test_a_comparison_has_a_line_per_condition_and_norm_state() -> None:
    other: Card = replace(card("other"), rows=card().rows[:2])
    compared = tables.comparison([card(), other])
    assert compared.columns == ("net", "other")
    found = {(line.name, line.bn_mode): line.cells for line in compared.lines}
    assert len(found) == len(card().rows)
    assert found["clean", str(PER_BATCH)][1] is None
    first = found["clean", "running"][1]
    assert first is not None
    assert first.value == 0.9


def test_further_figures_are_listed_and_curves_are_not() -> None:
    points = Curve("iterations", ((20, 0.2), (100, 0.1)))
    made = row(OtherRecord("mine", "attack"), RUNNING, 1, figures={"queries": 0.9}, curve=points)
    assert tables.figures(replace(card(), rows=(made,))).rows == (("mine", "running", "0", "queries", "0.9"),)


def test_images_and_coupled_batches_are_named() -> None:
    assert card().measured_on == "first 1,000 images of sample, coupled batches of 256"
    alone = replace(card(), rows=tuple(r for r in card().rows if r.bn_mode == RUNNING))
    assert alone.measured_on == "first 1,000 images of sample"
