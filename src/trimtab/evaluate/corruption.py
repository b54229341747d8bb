"""What the corruption cells of a card come to: mean error, gap to clean, mCE against a named baseline."""

from __future__ import annotations

from trimtab.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS
from trimtab.evaluate.card import Card
from trimtab.evaluate.conditions import Corrupted
from trimtab.measure.corruption_error import ALEXNET, Baseline, CorruptionError, corruption_error
from trimtab.types import BadInput


def corruption_errors(card: Card, state: str, baseline: Baseline | None = None) -> CorruptionError:
    """The errors of one norm state, judged; the clean error is that of the same state."""
    found = {row.condition: 1 - row.accuracy for row in card.rows if row.state == state}
    if "clean" not in found:
        raise BadInput("corruption errors need the clean accuracy beside them; evaluate it, too")
    table = {
        name: tuple(found[at] for severity in range(1, 6) if (at := str(Corrupted(name, severity))) in found)
        for name in (*CORRUPTIONS, *EXTRA_CORRUPTIONS)
    }
    return corruption_error({name: row for name, row in table.items() if row}, found["clean"], baseline)


def baseline_of(card: Card, state: str | None = None) -> Baseline:
    """Another network's card as the baseline, by its first norm state unless told."""
    state = state or card.rows[0].state
    judged = corruption_errors(card, state)
    return Baseline.of(f"{card.model} ({state})", judged.errors, judged.clean)


__all__ = ["ALEXNET", "baseline_of", "corruption_errors"]
