"""Power, Holm's procedure and the crossed bootstrap, against closed forms, definitions and simulation."""

from __future__ import annotations

import base64
import math
import pickle
import struct
import zlib
from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from trimtab.claims.power import (
    PerImage,
    crossed_error,
    detectable,
    holm,
    mean,
    pack,
    power,
    ratio,
    too_small,
    unpack,
)
from trimtab.claims.verdicts import REFUTED, REPRODUCED, Above

LEDGERS = 1000


def confirmed(effects, seeds, std, rng):
    """How many of a thousand ledgers reproduce a planted effect, by scipy's paired test."""
    drawn = rng.normal(effects, std, (LEDGERS, seeds))
    return int((stats.ttest_1samp(drawn, 0, axis=1, alternative="greater").pvalue < 0.025).sum())


@pytest.mark.parametrize("seeds", [3, 5, 8])
def test_a_planted_effect_of_the_detectable_size_is_found_in_four_of_five_ledgers(seeds):
    effect = detectable(0.02, seeds)
    found = confirmed(effect, seeds, 0.02, np.random.default_rng(seeds))
    assert stats.binomtest(found, LEDGERS, 0.8).pvalue > 0.001
    assert power(effect, 0.02, seeds) == pytest.approx(0.8)


def test_a_planted_null_is_found_in_one_of_forty_ledgers():
    found = confirmed(0.0, 4, 0.02, np.random.default_rng(0))
    assert stats.binomtest(found, LEDGERS, 0.025).pvalue > 0.001
    assert power(0.0, 0.02, 4) == pytest.approx(0.025)


def test_with_many_seeds_the_detectable_effect_is_that_of_the_normal_test():
    expected = (stats.norm.ppf(0.975) + stats.norm.ppf(0.8)) * 0.1 / math.sqrt(10_000)
    assert detectable(0.1, 10_000) == pytest.approx(expected, rel=1e-3)
    assert detectable(0.1, 1) == math.inf


@pytest.mark.parametrize("seed", range(30))
def test_holm_is_the_closed_test_of_bonferroni(seed):
    """A hypothesis is rejected if Bonferroni rejects every intersection that it is in."""
    p = np.random.default_rng(seed).beta(0.4, 3, 5).tolist()
    alpha = 0.05

    def closed(i):
        others = [j for j in range(5) if j != i]
        subsets = [(i, *rest) for size in range(5) for rest in combinations(others, size)]
        return all(min(p[j] for j in subset) <= alpha / len(subset) for subset in subsets)

    assert holm(p, alpha) == [closed(i) for i in range(5)]


def test_where_seeds_agree_the_error_is_that_of_the_images():
    column = np.random.default_rng(0).integers(0, 2, 400).astype(float)
    values = np.tile(column, (4, 1))
    assert crossed_error(values, 4000) == pytest.approx(column.std() / math.sqrt(400), rel=0.05)


def test_where_images_agree_the_error_is_that_of_the_seeds():
    by_seed = np.array([0.1, 0.2, 0.4, 0.35, 0.15])
    values = np.tile(by_seed[:, None], (1, 50))
    assert crossed_error(values, 4000) == pytest.approx(by_seed.std(ddof=1) / math.sqrt(5), rel=0.05)
    judged = Above("gain", 0.0).judge([{"gain": PerImage(row)} for row in values])
    expected = stats.t.interval(0.95, 4, by_seed.mean(), by_seed.std(ddof=1) / math.sqrt(5))
    assert judged.over == "seeds and images"
    assert judged.interval == pytest.approx(expected, rel=0.05, abs=0.01)


def ledgers(effect, count, seeds=4, images=150):
    """Outcomes that vary with the seed, with the image, and with both."""
    rng = np.random.default_rng(7)
    for _ in range(count):
        between = rng.normal(0, 0.02, (seeds, 1)) + rng.normal(0, 0.3, (1, images))
        yield effect + between + rng.normal(0, 0.3, (seeds, images))


def verdicts(effect, count):
    rows = ([{"gain": PerImage(column)} for column in values] for values in ledgers(effect, count))
    return [Above("gain", 0.0, effect=0.05).judge(row) for row in rows]


def test_over_seeds_and_images_a_null_is_confirmed_in_at_most_one_of_forty_ledgers():
    judged = verdicts(0.0, 400)
    assert {one.over for one in judged} == {"seeds and images"}
    found = sum(one.verdict == REPRODUCED for one in judged)
    assert stats.binomtest(found, 400, 0.025, alternative="greater").pvalue > 0.001
    # Over seeds alone the images that all seeds share would be forgotten.
    alone = sum(
        Above("gain", 0.0).judge([{"gain": float(one)} for one in values.mean(1)]).verdict == REPRODUCED
        for values in ledgers(0.0, 400)
    )
    assert stats.binomtest(alone, 400, 0.025, alternative="greater").pvalue < 0.001


def test_over_seeds_and_images_a_large_effect_is_found():
    """Of three standard errors of the seeds' and images' own variances, by Student's quantile."""
    error = math.sqrt(0.02**2 / 4 + 0.3**2 / 150 + 0.3**2 / 600)
    judged = verdicts(6 * error, 200)
    assert sum(one.verdict == REPRODUCED for one in judged) > 0.8 * 200
    assert not any(one.verdict == REFUTED for one in judged)


def test_a_number_keeps_its_outcomes_through_differences_and_means():
    a, b = PerImage([1, 0, 1, 1]), PerImage([0, 0, 1, 0])
    assert float(a - b) == 0.5
    assert (a - b).values.tolist() == [1, 0, 0, 1]
    assert (1 - a).values.tolist() == [0, 1, 0, 0]
    assert (a - 0.5).values.tolist() == [0.5, -0.5, 0.5, 0.5]
    assert mean([a, b]).values.tolist() == [0.5, 0, 1, 0.5]
    assert (a / 2).values.tolist() == (0.5 * a).values.tolist() == [0.5, 0, 0.5, 0.5]
    assert sum([a, b]) == 1.0
    other = a - PerImage([1, 0])  # of other images: a number alone
    assert type(other) is float
    assert other == 0.25
    assert type(a * b) is type(a / b if b else 0.0) is float
    assert pickle.loads(pickle.dumps(a)).values.tolist() == a.values.tolist()


def test_outcomes_are_packed_into_two_bits_an_image_and_averages_into_a_byte():
    rng = np.random.default_rng(0)
    for values, size in ((rng.integers(-1, 2, 1001), 0.36), (rng.integers(0, 76, 1001) / 75, 1.4)):
        text = pack(PerImage(values))
        np.testing.assert_allclose(unpack(text).values, values, rtol=0, atol=1e-12)
        assert len(text) < 1001 * size + 20
        assert pack(unpack(text)) == text
    assert pack(PerImage([0.5, math.nan])) == ""


def test_other_outcomes_are_packed_as_float32():
    values = np.random.default_rng(0).normal(size=9)
    text = pack(PerImage(values))
    raw = zlib.decompress(base64.b64decode(text.removeprefix("9/f:")))
    assert [value for (value,) in struct.iter_unpack("<f", raw)] == values.astype(np.float32).tolist()
    assert unpack(text).values.tolist() == values.astype(np.float32).tolist()
    assert pack(unpack(text)) == text


def test_the_error_of_a_ratio_is_that_of_resampled_images():
    rng = np.random.default_rng(1)
    a, b = rng.integers(0, 76, 2000) / 75, rng.integers(0, 2, 2000).astype(float)
    a = 0.5 * a + 0.4 * b  # of the same images: they depend on each other
    found = ratio(PerImage(a), PerImage(b))
    resampled = rng.integers(0, 2000, (4000, 2000))
    means = a[resampled].mean(1) / b[resampled].mean(1)
    assert float(found) == pytest.approx(a.mean() / b.mean())
    assert found.values.std() / math.sqrt(2000) == pytest.approx(means.std(), rel=0.05)
    assert set(ratio(PerImage(b), PerImage(b)).values) == {1.0}
    assert type(ratio(PerImage(a), PerImage(b[:9]))) is type(ratio(0.2, 0.4)) is float
    assert math.isnan(ratio(0.2, 0.0))


def test_an_effect_that_the_setting_cannot_show_is_underpowered():
    rows = [{"a": value} for value in (0.0, 0.05, 0.1)]
    weak, strong = (Above("a", 0.0, paper=paper).judge(rows) for paper in (0.1, 10.0))
    assert weak.detectable == pytest.approx(detectable(0.05, 3))
    assert [too_small(judged.detectable, judged.paper) for judged in (weak, strong)] == [True, False]
