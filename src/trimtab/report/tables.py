"""Scorecards as tables: what was measured in which BN mode, and how far models differ.

Several seeds   the mean of their accuracies; the interval reaches from the lowest end to the highest
Difference      of two accuracies p and q with intervals (a, b) and (c, d), by the method of variance
                estimates recovery (Zou and Donner 2008):
                    p - q  from  p - q - sqrt((p - a)^2 + (d - q)^2)  to  p - q + sqrt((b - p)^2 + (q - c)^2)
                It takes the two for independent. Both usually come from the same images, which makes the
                true interval narrower, so a difference that is significant here is significant.
Mean            of several accuracies or differences: the mean of the ends, which holds however they depend on
                each other
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from trimtab.data.corruptions import EXTRA_CORRUPTIONS
from trimtab.evaluate import Card, Row, RunningMode
from trimtab.evaluate.bn_modes import BNModeRecord
from trimtab.evaluate.records import AttackRecord, ConditionRecord, CorruptionRecord

REFERENCE = RunningMode()
"""The BN mode that the others are compared with, where it was measured."""
CORRUPTED = ("noise", "corruption")
"""Kinds of conditions that no adversary chose."""
FEW = 6
"""Up to this many corruptions are listed one by one; more are shown as their mean and the worst."""


@dataclass(frozen=True)
class Estimate:
    """A fraction, a plain number, or a difference of two such, with its 95 % interval."""

    value: float
    low: float
    high: float
    n: int = 0
    """Number of images."""
    percentage: bool = True
    """Whether it is shown in percent."""

    @property
    def text(self) -> str:
        """The value as text."""
        return percent(self.value) if self.percentage else f"{self.value:.2f}"

    @property
    def range(self) -> str:
        """The ends of the interval as text."""
        low, high = (f"{100 * e:.1f}" if self.percentage else f"{e:.2f}" for e in (self.low, self.high))
        return f"{low}–{high}"

    @property
    def significant(self) -> int:
        """The sign of a difference; 0 if the interval contains 0."""
        return (self.low > 0) - (self.high < 0)

    def __str__(self) -> str:
        return f"{self.text} ({self.range})"


@dataclass(frozen=True)
class Line:
    """One line of a grid."""

    kind: str
    name: str
    """What was done to the images."""
    cells: tuple[Estimate | None, ...]
    """One per column; None where it was not measured."""
    bn_mode: str = ""
    """The BN mode, where it is not what the columns differ in."""
    condition: ConditionRecord | None = None
    """The condition; None for a mean over several."""


@dataclass(frozen=True)
class Grid:
    """Estimates by condition and column."""

    columns: tuple[str, ...]
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Table:
    """A table as text, for whoever prints it."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def percent(value: float) -> str:
    """Format a fraction in percent."""
    return f"{100 * value:.1f} %"


def points(gap: Estimate) -> str:
    """Format a difference with its interval; of fractions in percentage points."""
    ends = (gap.value, gap.low, gap.high)
    value, low, high = (f"{100 * e:+.1f}" if gap.percentage else f"{e:+.2f}" for e in ends)
    return f"{value}{' points' if gap.percentage else ''} ({low} to {high})".replace("-", "−")


def brief(condition: ConditionRecord) -> str:
    """Name a condition without its details."""
    return condition.brief if isinstance(condition, AttackRecord) else str(condition)


def bn_modes(card: Card) -> tuple[BNModeRecord, ...]:
    """Return the BN modes of a card, the reference first."""
    modes = dict.fromkeys(row.bn_mode for row in card.rows)
    return tuple(sorted(modes, key=lambda mode: mode != REFERENCE))


def estimates(card: Card, bn_mode: BNModeRecord) -> dict[ConditionRecord, Estimate]:
    """Return the estimate under each condition in one BN mode, over all seeds."""
    rows: dict[ConditionRecord, list[Row]] = {}
    for row in card.rows:
        if row.bn_mode == bn_mode and row.estimate:
            rows.setdefault(row.condition, []).append(row)
    return {condition: _over_seeds(of_condition) for condition, of_condition in rows.items()}


def _over_seeds(rows: Sequence[Row]) -> Estimate:
    values, lows, highs = zip(*(row.estimate for row in rows if row.estimate), strict=True)
    return Estimate(fmean(values), min(lows), max(highs), rows[0].n, percentage=rows[0].measure is None)


def grid(card: Card) -> Grid:
    """Return every condition in every BN mode."""
    modes = bn_modes(card)
    return _joined([str(mode) for mode in modes], [estimates(card, mode) for mode in modes])


def comparison(cards: Sequence[Card]) -> Grid:
    """Return every condition for every model, each BN mode in lines of its own, summarized as in `short`."""
    every = dict.fromkeys(mode for card in cards for mode in bn_modes(card))
    lines: list[Line] = []
    for mode in every:
        part = short(_joined(names(cards), [estimates(card, mode) for card in cards]))
        lines += [replace(line, bn_mode=str(mode)) for line in part.lines]
    return Grid(names(cards), tuple(lines))


def names(cards: Sequence[Card]) -> tuple[str, ...]:
    """Return the models' names, numbered where they repeat."""
    taken: list[str] = []
    for card in cards:
        name, count = card.model, 2
        while name in taken:
            name, count = f"{card.model} ({count})", count + 1
        taken.append(name)
    return tuple(taken)


def short(whole: Grid) -> Grid:
    """Return the grid with many corruptions summarized: their mean and, per column, the worst.

    Only corruptions that every column with any corruption has are counted; the others are left out.
    """
    corruptions = [line for line in whole.lines if line.kind == "corruption"]
    counted = [line for line in corruptions if line.condition is None or averaged(line.condition)]
    has_any = [any(column) for column in zip(*(line.cells for line in counted), strict=True)]
    shared = [
        line
        for line in counted
        if all(cell or not some for cell, some in zip(line.cells, has_any, strict=True))
    ]
    if len(corruptions) <= FEW or not shared:
        return whole
    rest = [line for line in whole.lines if line.kind != "corruption"]
    if len(shared) <= FEW:
        return Grid(whole.columns, (*rest, *shared))
    columns = zip(*(line.cells for line in shared), strict=True)
    per_column = [[cell for cell in column if cell] for column in columns]
    which = "corruptions" if len(shared) == len(counted) else "corruptions measured for all"
    summary = (
        Line("corruption", f"mean of {len(shared)} {which}", tuple(mean(c) for c in per_column)),
        Line("corruption", "worst of them", tuple(_worst(c) for c in per_column)),
    )
    return Grid(whole.columns, (*rest, *summary))


def figures(card: Card) -> Table:
    """Return the scalars that the scorecard does not show; curves are left to the charts."""
    rows = tuple(
        (str(row.condition), str(row.bn_mode), str(row.seed), name, f"{value:.4g}")
        for row in card.rows
        for name, value in row.figures.items()
    )
    return Table("Further figures", ("condition", "BN mode", "seed", "figure", "value"), rows)


def difference(first: Estimate, second: Estimate) -> Estimate:
    """Return `first - second` with its interval.

    Args:
        first: an estimate.
        second: what is subtracted from it.
    """
    gap = first.value - second.value
    return Estimate(
        gap,
        gap - math.hypot(first.value - first.low, second.high - second.value),
        gap + math.hypot(first.high - first.value, second.value - second.low),
        min(first.n, second.n),
        first.percentage,
    )


def averaged(condition: ConditionRecord) -> bool:
    """Return whether a condition may be part of a mean; extra corruptions may not."""
    return not (isinstance(condition, CorruptionRecord) and condition.name in EXTRA_CORRUPTIONS)


def mean(several: Iterable[Estimate]) -> Estimate | None:
    """Return the mean of estimates and of their ends; None of none."""
    every = list(several)
    if not every:
        return None
    ends = (fmean(e.value for e in every), fmean(e.low for e in every), fmean(e.high for e in every))
    return Estimate(*ends, min(e.n for e in every), every[0].percentage)


def _worst(several: Sequence[Estimate]) -> Estimate | None:
    return min(several, key=lambda e: e.value, default=None)


def _joined(columns: Sequence[str], by_column: Sequence[dict[ConditionRecord, Estimate]]) -> Grid:
    conditions = dict.fromkeys(condition for column in by_column for condition in column)
    lines = (
        Line(c.kind, str(c), tuple(column.get(c) for column in by_column), condition=c) for c in conditions
    )
    return Grid(tuple(columns), tuple(lines))
