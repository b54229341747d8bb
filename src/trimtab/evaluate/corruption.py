"""The corruption rows of a card, summarized: mean error, gap to clean, mCE against a named baseline."""

from __future__ import annotations

from statistics import fmean

from trimtab.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS
from trimtab.evaluate.bn_modes import BNMode
from trimtab.evaluate.card import Card
from trimtab.evaluate.records import CleanRecord, ConditionRecord, CorruptionRecord
from trimtab.measure.corruption_error import Baseline, CorruptionError, corruption_error
from trimtab.types import BadInput


def corruption_errors(card: Card, bn_mode: BNMode, baseline: Baseline | None = None) -> CorruptionError:
    """Return the errors of one BN mode, averaged over seeds; the clean error is of the same mode.

    Args:
        card: a card with clean and corruption rows.
        bn_mode: whose rows count.
        baseline: whose errors divide them.
    """
    errors: dict[ConditionRecord, list[float]] = {}
    for row in card.rows:
        if row.bn_mode == bn_mode:
            errors.setdefault(row.condition, []).append(1 - row.accuracy)
    means = {condition: fmean(values) for condition, values in errors.items()}
    if CleanRecord() not in means:
        raise BadInput("corruption errors need the clean accuracy next to them; evaluate it as well")
    by_name = {name: _by_severity(means, name) for name in (*CORRUPTIONS, *EXTRA_CORRUPTIONS)}
    measured = {name: values for name, values in by_name.items() if values}
    return corruption_error(measured, means[CleanRecord()], baseline)


def _by_severity(means: dict[ConditionRecord, float], name: str) -> tuple[float, ...]:
    """Errors at severities 1 to 5; frost of official ice counts before generated one."""
    versions: dict[str | None, dict[int, float]] = {}
    for condition, error in means.items():
        if isinstance(condition, CorruptionRecord) and condition.name == name:
            versions.setdefault(condition.ice, {})[condition.severity] = error
    order = [versions.get(ice, {}) for ice in ("official", "grown", None)]
    longest = max(order, key=len)
    return tuple(longest[severity] for severity in sorted(longest))


def baseline_of(card: Card, bn_mode: BNMode | None = None) -> Baseline:
    """Return another network's card as the baseline, by its first BN mode unless given."""
    bn_mode = bn_mode or card.rows[0].bn_mode
    summary = corruption_errors(card, bn_mode)
    return Baseline.of(f"{card.model} ({bn_mode})", summary.errors, summary.clean)
