"""Corruption cells of a card, judged against hand-made numbers."""

import pytest

from trimtab.data.corruptions import CORRUPTIONS
from trimtab.evaluate import Card, Row
from trimtab.evaluate.corruption import baseline_of, corruption_errors
from trimtab.types import BadInput


def card(accuracy, clean=0.9) -> Card:
    def row(condition, value):
        kind = "clean" if condition == "clean" else "corruption"
        return Row(kind, condition, "running", 0, value, (0, 1), 0, 1, "", {}, "")

    rows = [row("clean", clean)]
    for name in CORRUPTIONS:
        named = "frost (grown ice)" if name == "frost" else name.replace("_", " ")
        rows += [row(f"{named}, severity {s}", accuracy(s)) for s in range(1, 6)]
    return Card("net", "data", "corruptions", tuple(rows), ())


def test_errors_gap_and_ratios_follow_from_the_rows():
    weak, strong = card(lambda s: 0.9 - 0.1 * s), card(lambda s: 0.9 - 0.05 * s)
    judged = corruption_errors(strong, "running", baseline_of(weak))
    assert judged.mean_error == pytest.approx(0.25)
    assert judged.gap == pytest.approx(0.15)
    assert judged.mce == pytest.approx(0.25 / 0.4)
    assert judged.relative_mce == pytest.approx(0.15 / 0.3)
    assert judged.baseline == "net (running)"


def test_a_state_without_clean_accuracy_is_told():
    with pytest.raises(BadInput, match="clean accuracy"):
        corruption_errors(card(lambda s: 0.5), "adapted")
