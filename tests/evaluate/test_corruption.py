"""Corruption cells of a card, judged against hand-made numbers."""

from dataclasses import replace

import pytest

from trimtab.data.corruptions import CORRUPTIONS
from trimtab.evaluate import Card, PerBatchMode, Row, RunningMode
from trimtab.evaluate.corruption import baseline_of, corruption_errors
from trimtab.evaluate.records import CleanRecord, CorruptionRecord, ImagesRecord
from trimtab.types import BadInput


def card(accuracy, clean=0.9, seed=0, ice="grown") -> Card:
    def row(condition, value):
        images = ImagesRecord("data", "digest", 0, 1)
        return Row(condition, RunningMode(), images, seed, value, (0, 1), 0, 1)

    rows = [row(CleanRecord(), clean)]
    for name in CORRUPTIONS:
        kind = ice if name == "frost" else None
        rows += [row(CorruptionRecord(name, s, kind), accuracy(s)) for s in range(1, 6)]
    return Card("net", "data", "corruptions", tuple(rows), ())


def test_errors_gap_and_ratios_follow_from_the_rows():
    weak, strong = card(lambda s: 0.9 - 0.1 * s), card(lambda s: 0.9 - 0.05 * s)
    judged = corruption_errors(strong, RunningMode(), baseline_of(weak))
    assert judged.mean_error == pytest.approx(0.25)
    assert judged.gap == pytest.approx(0.15)
    assert judged.mce == pytest.approx(0.25 / 0.4)
    assert judged.relative_mce == pytest.approx(0.15 / 0.3)
    assert judged.baseline == "net (running)"


def test_a_state_without_clean_accuracy_is_told():
    with pytest.raises(BadInput, match="clean accuracy"):
        corruption_errors(card(lambda s: 0.5), PerBatchMode())


def test_errors_are_averaged_over_seeds():
    one, other = card(lambda s: 0.9 - 0.1 * s), card(lambda s: 0.7 - 0.1 * s, clean=0.8, seed=1)
    judged = corruption_errors(replace(one, rows=one.rows + other.rows), RunningMode())
    assert judged.clean == pytest.approx(0.15)
    assert judged.errors["fog"] == pytest.approx((0.3, 0.4, 0.5, 0.6, 0.7))


def test_frost_of_official_ice_counts_and_before_grown_ice():
    official = card(lambda s: 0.5, ice="official")
    assert corruption_errors(official, RunningMode(), baseline_of(official)).mce == pytest.approx(1.0)
    both = replace(official, rows=card(lambda s: 0.9).rows + official.rows[1:])
    assert corruption_errors(both, RunningMode()).errors["frost"] == pytest.approx((0.5,) * 5)
