"""Scorecards as tables: what was measured under which norm state, and how far models lie apart.

Several seeds   the mean of their accuracies; the interval reaches from the lowest end to the highest
Difference      of two accuracies p and q with intervals (a, b) and (c, d), by the method of variance
                estimates recovery (Zou and Donner 2008):
                    p - q  from  p - q - sqrt((p - a)^2 + (d - q)^2)  to  p - q + sqrt((b - p)^2 + (q - c)^2)
                It takes the two for independent. Both usually come from the same images, which makes the
                true interval narrower, so a difference that counts here counts.
Mean            of several accuracies or differences: the mean of the ends, which holds however they depend on
                each other
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from trimtab.data.corruptions import EXTRA_CORRUPTIONS
from trimtab.evaluate import Card, Row

REFERENCE = "running"
"""The norm state that the others are compared with, where it was measured."""
DISTURBED = ("noise", "corruption")
"""Kinds of conditions that nobody chose against the model."""
EXTRA = tuple(name.replace("_", " ") for name in EXTRA_CORRUPTIONS)
"""Corruptions that are part of no mean."""
FEW = 6
"""So many corruptions are listed one by one; more are shown as their mean and the worst."""


@dataclass(frozen=True)
class Estimate:
    """A share, a plain number, or a difference of two such, with its 95 % interval."""

    value: float
    low: float
    high: float
    n: int = 0
    """Images behind it."""
    share: bool = True
    """Whether it is told in percent."""

    @property
    def text(self) -> str:
        return percent(self.value) if self.share else f"{self.value:.2f}"

    @property
    def range(self) -> str:
        low, high = (f"{100 * e:.1f}" if self.share else f"{e:.2f}" for e in (self.low, self.high))
        return f"{low}–{high}"

    @property
    def sure(self) -> int:
        """The sign of a difference; 0 if the interval holds 0."""
        return (self.low > 0) - (self.high < 0)

    def __str__(self) -> str:
        return f"{self.text} ({self.range})"


@dataclass(frozen=True)
class Line:
    kind: str
    name: str
    """What was done to the images."""
    cells: tuple[Estimate | None, ...]
    """One per column; None where it was not measured."""
    state: str = ""
    """The norm state, where it is not what the columns differ in."""


@dataclass(frozen=True)
class Grid:
    columns: tuple[str, ...]
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Table:
    """A table as text, for whoever prints it."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def points(gap: Estimate) -> str:
    """A difference, of shares in percentage points, with its interval."""
    ends = (gap.value, gap.low, gap.high)
    value, low, high = (f"{100 * e:+.1f}" if gap.share else f"{e:+.2f}" for e in ends)
    return f"{value}{' points' if gap.share else ''} ({low} to {high})".replace("-", "−")


def brief(condition: str) -> str:
    """A condition without its details.

    >>> brief("PGD-20 (ce), l_inf 8/255, step 1/255, any iterate")
    'PGD-20 (ce), l_inf 8/255'
    """
    return condition.split(", step ")[0]


def states(card: Card) -> tuple[str, ...]:
    """The norm states of a card, the reference first."""
    found = dict.fromkeys(row.state for row in card.rows)
    return tuple(sorted(found, key=lambda state: state != REFERENCE))


def estimates(card: Card, state: str) -> dict[tuple[str, str], Estimate]:
    """(kind, condition) and what was found there in one norm state, over all seeds."""
    rows: dict[tuple[str, str], list[Row]] = {}
    for row in card.rows:
        if row.state == state and row.told:
            rows.setdefault((row.kind, row.condition), []).append(row)
    return {asked: _over_seeds(found) for asked, found in rows.items()}


def _over_seeds(rows: Sequence[Row]) -> Estimate:
    values, lows, highs = zip(*(row.told for row in rows if row.told), strict=True)
    return Estimate(fmean(values), min(lows), max(highs), rows[0].n, share=not rows[0].instead)


def grid(card: Card) -> Grid:
    """Every condition under every norm state, side by side."""
    columns = states(card)
    return _side_by_side(columns, [estimates(card, state) for state in columns])


def comparison(cards: Sequence[Card]) -> Grid:
    """Every condition for every model, each norm state in lines of its own, drawn together as in `short`."""
    every = dict.fromkeys(state for card in cards for state in states(card))
    lines: list[Line] = []
    for state in every:
        part = short(_side_by_side(names(cards), [estimates(card, state) for card in cards]))
        lines += [replace(line, state=state) for line in part.lines]
    return Grid(names(cards), tuple(lines))


def names(cards: Sequence[Card]) -> tuple[str, ...]:
    """The models' names, made different where they are not."""
    taken: list[str] = []
    for card in cards:
        name, count = card.model, 2
        while name in taken:
            name, count = f"{card.model} ({count})", count + 1
        taken.append(name)
    return tuple(taken)


def short(whole: Grid) -> Grid:
    """The grid with many corruptions drawn together: their mean and, per column, the worst.

    Only those count that every column has which has any; the others are left out.
    """
    many = [line for line in whole.lines if line.kind == "corruption"]
    counted = [line for line in many if averaged(line.kind, line.name)]
    asked = [any(column) for column in zip(*(line.cells for line in counted), strict=True)]
    shared = [
        line
        for line in counted
        if all(cell or not some for cell, some in zip(line.cells, asked, strict=True))
    ]
    if len(many) <= FEW or not shared:
        return whole
    rest = [line for line in whole.lines if line.kind != "corruption"]
    if len(shared) <= FEW:
        return Grid(whole.columns, (*rest, *shared))
    across = zip(*(line.cells for line in shared), strict=True)
    per_column = [[cell for cell in column if cell] for column in across]
    those = "corruptions" if len(shared) == len(counted) else "corruptions that all faced"
    drawn = (
        Line("corruption", f"mean of {len(shared)} {those}", tuple(mean(c) for c in per_column)),
        Line("corruption", "worst of them", tuple(_worst(c) for c in per_column)),
    )
    return Grid(whole.columns, (*rest, *drawn))


def scorecard(card: Card) -> Table:
    """The card as text: conditions down, norm states across."""
    drawn = short(grid(card))
    rows = tuple((line.name, *(str(cell or "") for cell in line.cells)) for line in drawn.lines)
    header = ("accuracy, or what is named (95 % interval)", *drawn.columns)
    return Table(f"{card.model} on {card.data}", header, rows)


def figures(card: Card) -> Table:
    """What was measured beside what the scorecard shows; the points of curves are left to the charts."""
    rows = tuple(
        (row.condition, row.state, str(row.seed), name, f"{value:.4g}")
        for row in card.rows
        for name, value in row.figures.items()
        if not name.startswith((ITERATION, RADIUS)) and not row.instead
    )
    return Table("Further figures", ("condition", "norm state", "seed", "figure", "value"), rows)


ITERATION = "after "
"""How the figures of an iteration curve begin: accuracy after so many iterations."""
RADIUS = "radius "
"""How those of a certified curve begin: share certified at this radius."""


def curve(row: Row, prefix: str) -> dict[float, float]:
    """The points of a curve that a row carries in its figures."""
    found = {name.removeprefix(prefix): v for name, v in row.figures.items() if name.startswith(prefix)}
    return {float(at): value for at, value in sorted(found.items(), key=lambda point: float(point[0]))}


def difference(one: Estimate, other: Estimate) -> Estimate:
    """How far `one` lies above `other`."""
    gap = one.value - other.value
    return Estimate(
        gap,
        gap - math.hypot(one.value - one.low, other.high - other.value),
        gap + math.hypot(one.high - one.value, other.value - other.low),
        min(one.n, other.n),
        one.share,
    )


def averaged(kind: str, condition: str) -> bool:
    """Whether a condition may be part of a mean."""
    return kind != "corruption" or not condition.startswith(EXTRA)


def unlike(cards: Sequence[Card]) -> str:
    """What differs beside the models, so that a difference is not theirs alone; empty if nothing does."""
    sizes = sorted({card.provenance["batch"] for card in cards if card.provenance.get("batch")})
    told = ["on different images"] if len({str(c.provenance.get("data", c.data)) for c in cards}) > 1 else []
    counts = sorted({max(row.n for row in card.rows) for card in cards if card.rows})
    if len(counts) > 1:
        told.append(f"on {' and '.join(map(str, counts))} images")
    if len(sizes) > 1:
        told.append(f"in batches of {' and '.join(map(str, sizes))}")
    return " and ".join(told)


def mean(several: Iterable[Estimate]) -> Estimate | None:
    held = list(several)
    if not held:
        return None
    ends = (fmean(e.value for e in held), fmean(e.low for e in held), fmean(e.high for e in held))
    return Estimate(*ends, min(e.n for e in held), held[0].share)


def _worst(several: Sequence[Estimate]) -> Estimate | None:
    return min(several, key=lambda e: e.value, default=None)


def _side_by_side(columns: Sequence[str], found: Sequence[dict[tuple[str, str], Estimate]]) -> Grid:
    asked = dict.fromkeys(question for column in found for question in column)
    lines = (Line(kind, name, tuple(c.get((kind, name)) for c in found)) for kind, name in asked)
    return Grid(tuple(columns), tuple(lines))
