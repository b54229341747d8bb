"""Corruption errors: relative ones by their definitions, and over one set of images."""

from __future__ import annotations

import math

import pytest

from trimtab.claims import corruption, mix
from trimtab.claims.bench import Bench
from trimtab.claims.scales import SMOKE
from trimtab.evaluate import Corrupted

FOUND = {"clean": 0.2, "fog": 0.5, "snow": 0.3}
BASE = {"clean": 0.1, "fog": 0.4, "snow": 0.101}


def test_errors_are_relative_to_those_of_the_standard_network():
    assert corruption.mce(FOUND, BASE) == pytest.approx((0.5 / 0.4 + 0.3 / 0.101) / 2)
    assert corruption.mce(FOUND, BASE, relative=True) == pytest.approx((0.3 + 0.1) / (0.3 + 0.001))


def test_beside_a_baseline_that_loses_nothing_there_is_no_relative_error():
    assert math.isnan(corruption.mce(FOUND, {"clean": 0.5, "fog": 0.5, "snow": 0.4}, relative=True))


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
