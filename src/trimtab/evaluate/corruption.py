"""What the corruption cells of a card come to: mean error, gap to clean, mCE against a named baseline."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from trimtab.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS
from trimtab.evaluate.card import Card
from trimtab.evaluate.conditions import Corrupted
from trimtab.measure.corruption_error import Baseline, CorruptionError, corruption_error
from trimtab.types import BadInput


def corruption_errors(card: Card, state: str, baseline: Baseline | None = None) -> CorruptionError:
    """The errors of one norm state, averaged over seeds and judged; the clean error is of the same state."""
    seen: dict[str, list[float]] = {}
    for row in card.rows:
        if row.state == state:
            seen.setdefault(row.condition, []).append(1 - row.accuracy)
    found = {condition: fmean(errors) for condition, errors in seen.items()}
    if "clean" not in found:
        raise BadInput("corruption errors need the clean accuracy beside them; evaluate it, too")
    table = {name: _by_severity(found, name) for name in (*CORRUPTIONS, *EXTRA_CORRUPTIONS)}
    return corruption_error({name: row for name, row in table.items() if row}, found["clean"], baseline)


def _by_severity(found: Mapping[str, float], name: str) -> tuple[float, ...]:
    """Frost is of official or of grown ice, whichever the card has; of both, the official counts."""
    named = [[str(Corrupted(name, s, ice)) for s in range(1, 6)] for ice in ("official", None)]
    return max((tuple(found[at] for at in one if at in found) for one in named), key=len)


def baseline_of(card: Card, state: str | None = None) -> Baseline:
    """Another network's card as the baseline, by its first norm state unless told."""
    state = state or card.rows[0].state
    judged = corruption_errors(card, state)
    return Baseline.of(f"{card.model} ({state})", judged.errors, judged.clean)
