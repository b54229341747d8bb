"""Bounds against scipy.stats, published constants and exact enumeration."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest
from scipy import stats

from trimtab.certify import bounds, max_radius
from trimtab.types import BadInput


@pytest.mark.parametrize("alpha", [0.05, 0.001])
@pytest.mark.parametrize("n", [1, 17, 1000, 100_000])
def test_the_lower_bound_is_clopper_and_pearson_s(n: int, alpha: float) -> None:
    for k in {0, 1, n // 3, n // 2, n - 1, n}:
        exact = stats.binomtest(k, n, alternative="greater").proportion_ci(1 - alpha, method="exact").low
        assert bounds.p_lower(k, n, alpha) == pytest.approx(exact, rel=1e-9)


def test_the_lower_bound_makes_the_count_exactly_improbable() -> None:
    k = np.array([3, 40, 60, 100])
    low = bounds.p_lower(k, 100, 0.01)
    assert stats.binom.sf(k - 1, 100, low) == pytest.approx(np.full(4, 0.01))


def test_no_bound_exceeds_what_certain_agreement_gives() -> None:
    assert bounds.p_lower(500, 500, 0.001) == pytest.approx(0.001 ** (1 / 500))


@pytest.mark.parametrize(("n", "published"), [(100, 1.50), (1_000, 2.46), (10_000, 3.20), (100_000, 3.81)])
def test_the_largest_radius_is_as_published(n: int, published: float) -> None:
    assert round(max_radius(1.0, n, 0.001), 2) == published
    assert max_radius(0.25, n, 0.001) == pytest.approx(0.25 * max_radius(1.0, n, 0.001))


def test_the_radius_is_the_normal_quantile_and_zero_up_to_one_half() -> None:
    assert bounds.radius([0.0, 0.3, 0.5], 0.5).tolist() == [0, 0, 0]
    assert bounds.radius(stats.norm.cdf([0.2, 1.0, 3.0]), 0.5) == pytest.approx(np.array([0.1, 0.5, 1.5]))


@pytest.mark.parametrize("alpha", [0.3, 0.05, 0.001, 1e-6])
def test_the_needed_count_is_the_first_whose_bound_exceeds_one_half(alpha: float) -> None:
    for n in [*range(20, 60), 999, 1000, 12_345]:
        k = bounds.min_hits(n, alpha)
        assert bounds.p_lower(k, n, alpha) > 0.5 >= bounds.p_lower(k - 1, n, alpha)


def test_too_few_draws_are_refused_with_the_number_that_suffices() -> None:
    with pytest.raises(BadInput, match=r"9 samples can never certify at alpha 0.001.*at least 10"):
        bounds.min_hits(9, 0.001)
    assert bounds.min_hits(10, 0.001) == 10


def test_with_chance_zero_one_gives_up_exactly_when_out_of_reach() -> None:
    n, alpha = 200, 0.01
    k = bounds.min_hits(n, alpha)
    for m, floor in zip(range(1, n + 1), bounds.give_up_counts(n, alpha, range(1, n + 1), 0.0), strict=True):
        reachable = [hits for hits in range(m + 1) if hits + (n - m) >= k]
        assert floor == min(reachable, default=m + 1) - 1


def test_giving_up_costs_a_certificate_with_at_most_the_chance_stated() -> None:
    """Exact: of all orders of n draws with just enough hits, the share that is given up at some look."""
    n, alpha, chance, looks = 60, 0.01, 0.05, [10, 20, 30, 40, 50, 60]
    k = bounds.min_hits(n, alpha)
    floors = bounds.give_up_counts(n, alpha, looks, chance)
    alive = {0: 1}  # hits so far -> number of orders that were never given up
    for floor in floors:
        following: dict[int, int] = {}
        for hits, ways in alive.items():
            for more in range(11):
                if hits + more > floor:
                    following[hits + more] = following.get(hits + more, 0) + ways * comb(10, more)
        alive = following
    lost = 1 - alive[k] / comb(n, k)
    assert 0 < lost <= chance
    assert (np.array(floors) > bounds.give_up_counts(n, alpha, looks, 0.0)).any()


def test_the_winner_is_settled_by_scipy_s_binomial_test() -> None:
    counts = np.random.default_rng(0).multinomial(60, [0.5, 0.3, 0.2], size=200)
    for row, found in zip(counts, bounds.top_class(counts, 0.05), strict=True):
        second, first = sorted(row)[-2:]
        settled = stats.binomtest(int(first), int(first + second)).pvalue <= 0.05
        assert found == (row.argmax() if settled else -1)
    assert {-1, 0} <= set(bounds.top_class(counts, 0.05).tolist())
