"""The rules that claims are judged by, against scipy and by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from trimtab.claims.verdicts import (
    EXEMPT,
    INCONCLUSIVE,
    REFUTED,
    REPRODUCED,
    Above,
    Close,
    Needs,
    ordered,
    overall,
    tally,
)
from trimtab.types import BadInput


def rows(a, b):
    return [{"a": float(x), "b": float(y)} for x, y in zip(a, b, strict=True)]


@pytest.mark.parametrize("n", [2, 3, 5, 200])
@pytest.mark.parametrize("level", [0.9, 0.95])
def test_the_interval_of_paired_contrasts_is_scipys(n, level):
    drawn = np.random.default_rng(n)
    a, b = drawn.normal(0.5, 0.1, n), drawn.normal(0.4, 0.1, n)
    expected = stats.ttest_rel(a, b).confidence_interval(level)
    test = Close("a", "b", margin=1.0) if level == 0.9 else Above("a", "b")
    judged = test.judge(rows(a, b))
    assert judged.level == level
    assert judged.interval == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_a_directional_claim_is_confirmed_exactly_when_the_one_sided_test_of_two_and_a_half_percent_is():
    drawn = np.random.default_rng(0)
    for _ in range(200):
        a, b = drawn.normal(0.02, 0.02, 5), np.zeros(5)
        p = stats.ttest_rel(a, b, alternative="greater").pvalue
        refuted = stats.ttest_1samp(a - b, 0.01, alternative="less").pvalue < 0.025
        expected = REFUTED if refuted else REPRODUCED if p < 0.025 else INCONCLUSIVE
        if refuted and p < 0.025:
            expected = INCONCLUSIVE
        assert Above("a", "b", effect=0.01).judge(rows(a, b)).verdict == expected


def test_an_effect_that_is_there_but_smaller_than_of_interest_decides_nothing():
    judged = Above("a", "b", effect=0.05).judge(rows([0.51, 0.511, 0.512], [0.5] * 3))
    assert (judged.verdict, judged.note) == (INCONCLUSIVE, "smaller than of interest")
    assert judged.interval[0] > 0
    judged = Above("a", "b", effect=0.01).judge(rows([0.51, 0.511, 0.512], [0.5] * 3))
    assert (judged.verdict, judged.note) == (REPRODUCED, "")


def test_closeness_is_two_one_sided_tests_of_five_percent():
    drawn = np.random.default_rng(1)
    seen = set()
    for mean in (0.0, 0.02, 0.03, 0.05, 0.1):
        for _ in range(60):
            d = drawn.normal(mean, 0.01, 4)
            low = stats.t.sf((d.mean() + 0.03) / (d.std(ddof=1) / 2), 3)
            high = stats.t.cdf((d.mean() - 0.03) / (d.std(ddof=1) / 2), 3)
            judged = Close("a", "b", margin=0.03).judge(rows(d, np.zeros(4)))
            assert (judged.verdict == REPRODUCED) == (max(low, high) < 0.05)
            assert (judged.verdict == REFUTED) == (min(1 - low, 1 - high) < 0.05)
            seen.add(judged.verdict)
    assert seen == {REPRODUCED, REFUTED, INCONCLUSIVE}


def test_of_no_effect_one_in_forty_is_confirmed_by_chance():
    drawn = np.random.default_rng(2)
    confirmed = sum(
        Above("a", "b").judge(rows(drawn.normal(0, 0.1, 5), np.zeros(5))).verdict == REPRODUCED
        for _ in range(2000)
    )
    assert stats.binomtest(confirmed, 2000, 0.025).pvalue > 0.001


def test_an_effect_of_the_size_of_interest_is_refuted_one_time_in_forty():
    drawn = np.random.default_rng(3)
    refuted = sum(
        Above("a", "b", effect=0.05).judge(rows(drawn.normal(0.05, 0.1, 4), np.zeros(4))).verdict == REFUTED
        for _ in range(2000)
    )
    assert stats.binomtest(refuted, 2000, 0.025).pvalue > 0.001


def test_one_seed_or_a_number_that_is_none_decides_nothing():
    assert Above("a", "b").judge(rows([1], [0])).verdict == INCONCLUSIVE
    judged = Above("a", "b").judge(rows([1, math.nan], [0, 0]))
    assert (judged.verdict, judged.interval) == (INCONCLUSIVE, None)


def test_contrasts_may_be_against_a_number_and_by_a_distance():
    assert Above("a", 0.5).judge(rows([0.6, 0.61, 0.62], [0, 0, 0])).verdict == REPRODUCED
    assert Above("a", "b", by=0.2).judge(rows([0.3, 0.31], [0.2, 0.2])).verdict == REFUTED
    assert Close("a", 1.0, margin=0.1).judge(rows([0.99, 1.01, 1.0], [0, 0, 0])).verdict == REPRODUCED


def test_a_claim_is_as_strong_as_its_weakest_part():
    tests = ordered("a", "b", "c")
    good = [{"a": 0.9, "b": 0.5, "c": 0.1}, {"a": 0.91, "b": 0.52, "c": 0.1}, {"a": 0.9, "b": 0.5, "c": 0.12}]
    judged = [test.judge(good) for test in tests]
    assert overall(judged) == REPRODUCED
    swapped = [{"a": row["a"], "b": row["c"], "c": row["b"]} for row in good]
    refuted = [test.judge(swapped) for test in tests]
    assert overall(refuted) == REFUTED
    assert overall([*judged, Above("a", "b").judge(good[:1])]) == INCONCLUSIVE


def test_what_the_paper_exempts_counts_neither_for_nor_against_a_small_setting():
    found = rows([0.5, 0.51, 0.5], [0.6, 0.6, 0.61])
    against, for_it = (Above(*names, exempt="small sets").judge(found) for names in ("ab", "ba"))
    good, bad = Above("b", "a").judge(found), Close("a", "b", 0.01).judge(found)
    assert [one.verdict for one in (against, for_it, good, bad)] == [REFUTED, REPRODUCED, REPRODUCED, REFUTED]
    assert overall([against]) == overall([for_it]) == overall([against, for_it]) == EXEMPT
    assert overall([against, good]) == REPRODUCED
    assert overall([for_it, bad]) == REFUTED
    assert overall([against, good], small=False) == REFUTED
    assert overall([for_it, good], small=False) == REPRODUCED


def test_parts_are_counted_without_the_exempt_ones():
    found = rows([0.5, 0.51, 0.5], [0.6, 0.6, 0.61])
    good, bad = Above("b", "a").judge(found), Above("a", "b").judge(found)
    exempt = Above("b", "a", exempt="small sets").judge(found)
    assert tally([good, bad, exempt]) == "1 of 2 parts"
    assert tally([good, bad, exempt], small=False) == "2 of 3 parts"
    assert tally([exempt]) == ""


@pytest.mark.parametrize(("parts", "expected"), [(1, REFUTED), (20, INCONCLUSIVE)])
def test_a_part_refutes_a_claim_of_many_parts_only_at_holms_level(parts, expected):
    contrast = [-0.07, 0.0, -0.05, -0.03, -0.02]
    p = stats.ttest_1samp(contrast, 0.01, alternative="less").pvalue
    assert 0.025 / 20 < p < 0.025
    part = Above("a", "b").judge(rows(contrast, [0] * 5))
    assert part.p_refuted == pytest.approx(p)
    assert part.verdict == REFUTED
    good = Above("b", "a").judge(rows([-0.5, -0.51, -0.5, -0.52, -0.5], [0] * 5))
    assert overall([part, *[good] * (parts - 1)]) == expected


def test_closeness_is_refuted_with_scipys_p_value():
    contrast = [0.07, 0.1, 0.05, 0.09]
    part = Close("a", "b", margin=0.02).judge(rows(contrast, [0] * 4))
    assert part.p_refuted == pytest.approx(stats.ttest_1samp(contrast, 0.02, alternative="greater").pvalue)
    mirrored = Close("b", "a", margin=0.02).judge(rows(contrast, [0] * 4))
    assert mirrored.p_refuted == pytest.approx(part.p_refuted)


def test_a_precondition_holds_under_every_seed():
    need = Needs("a", 0.25)
    assert need.unmet(rows([0.25, 0.9], [0, 0])) == ""
    assert need.unmet(rows([0.2, 0.9], [0, 0])) == "a is 0.200 (unit 0), needed is at least 0.25"
    assert need.unmet(rows([0.9, math.nan], [0, 0]))
    near = Needs("a", most=0.1)
    assert near.unmet(rows([0.02, 0.1], [0, 0])) == ""
    assert near.unmet(rows([0.02, 0.12], [0, 0])) == "a is 0.120 (unit 1), needed is at most 0.1"
    assert [str(one) for one in (need, near, Needs("a", 0.1, 0.2))] == [
        "a at least 0.25",
        "a at most 0.1",
        "a at least 0.1 and at most 0.2",
    ]


def test_a_test_that_asks_for_what_was_not_measured_says_so():
    with pytest.raises(BadInput, match="'d'"):
        Above("a", "d").judge(rows([1, 2], [0, 0]))
