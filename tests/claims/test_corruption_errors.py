"""Corruption errors: relative ones by their definitions, and over one set of images."""

from __future__ import annotations

import math

import pytest

from trimtab.claims import corruption, mix
from trimtab.claims.bench import Bench
from trimtab.claims.scales import SMOKE, scale_of
from trimtab.evaluate import Corrupted
from trimtab.measure.corruption_error import ALEXNET

FOUND = {"clean": 0.2, "fog": 0.5, "snow": 0.3}
BASE = {"clean": 0.1, "fog": 0.4, "snow": 0.101}


def test_off_imagenet_relative_error_is_a_ratio_of_means(tmp_path):
    bench = Bench(SMOKE, 0, tmp_path)
    assert corruption.mce(bench, FOUND, BASE) == pytest.approx((0.5 / 0.4 + 0.3 / 0.101) / 2)
    assert corruption.mce(bench, FOUND, BASE, relative=True) == pytest.approx((0.3 + 0.1) / (0.3 + 0.001))


def test_on_imagenet_each_corruption_is_relative_to_alexnets(tmp_path):
    bench = Bench(scale_of("paper", "adv"), 0, tmp_path)
    alex = ALEXNET.mean_errors
    plain = (0.5 / alex["fog"] + 0.3 / alex["snow"]) / 2
    less = (0.3 / (alex["fog"] - ALEXNET.clean) + 0.1 / (alex["snow"] - ALEXNET.clean)) / 2
    assert corruption.mce(bench, FOUND, BASE) == pytest.approx(plain)
    assert corruption.mce(bench, FOUND, BASE, relative=True) == pytest.approx(less)


def test_beside_a_baseline_that_loses_nothing_there_is_no_relative_error(tmp_path):
    bench = Bench(SMOKE, 0, tmp_path)
    assert math.isnan(corruption.mce(bench, FOUND, {"clean": 0.5, "fog": 0.5, "snow": 0.4}, relative=True))


def test_clean_error_is_that_of_the_corrupted_images(tmp_path):
    bench = Bench(SMOKE, 0, tmp_path)
    model = bench.network(mix.CLEAN)
    few = bench.images(n=SMOKE.corrupted)
    assert SMOKE.corrupted < SMOKE.test
    right = [
        float((model(batch.x).argmax(1) == batch.y).sum()) for batch in few.batches(len(few))
    ]  # all of them are one batch
    found = corruption.errors(bench, model, names=["fog"], severities=[3])
    assert found["clean"] == pytest.approx(1 - right[0] / len(few))
    assert found["fog"] == pytest.approx(1 - bench.accuracy(model, Corrupted("fog", 3), n=len(few)))
