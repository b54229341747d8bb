"""The rules by which a claim is judged, written down before anything runs.

Each study declares tests over the names of its rows. A test looks at paired contrasts, one per unit: per
training seed, or per image where training is not what varies (then each image's values are averaged over the
networks first). Over n contrasts of mean m and deviation s the interval is Student's, m +- t s / sqrt(n).

    Above   reproduced if the 95 % interval of high - low - by lies above 0; not reproduced if it lies below
            the smallest effect of interest; else inconclusive, also where it lies between the two: an effect
            that is there, and smaller than of interest
    Close   two one-sided tests of 5 % each: reproduced if the 90 % interval of a - b lies within the margin,
            not reproduced if it lies wholly outside; else inconclusive

A claim is reproduced if all its tests are, not reproduced if any is refuted, else inconclusive. If the paper
itself exempts a small setting from every test that was refuted there, the claim is `outside the paper's
scope`. One unit has no interval: inconclusive. A claim may need something of its setting (`Needs`: a network
that has learnt, an attack that it survives); where the mean over units falls short, nothing follows from any
of its tests, and it is inconclusive: the setting is too weak to tell.

Chance: a directional test of no effect is confirmed by chance in at most 2.5 % of cases, and an effect of
just the smallest size of interest refuted in 2.5 %; for equivalence both are 5 %.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, stdev
from typing import ClassVar

from scipy.stats import t as student

from trimtab.types import BadInput

REPRODUCED = "reproduced"
REFUTED = "not reproduced"
INCONCLUSIVE = "inconclusive"
EXEMPT = "outside the paper's scope"
SMALLER = "smaller than of interest"
TOO_WEAK = "the setting is too weak to tell"

Row = Mapping[str, float]
"""One unit's numbers, by name."""


@dataclass(frozen=True)
class Judgement:
    """What a test came to."""

    test: str
    """The test, in words."""
    mean: float
    """Of the contrast."""
    interval: tuple[float, float] | None
    """At the test's level; None where one unit allows none."""
    level: float
    units: int
    verdict: str
    note: str = ""
    """What the verdict alone does not say."""
    exempt: str = ""
    """Why the paper itself expects nothing of a small setting."""


@dataclass(frozen=True)
class Above:
    """`high` exceeds `low`, a row's name or a number, by more than `by`."""

    high: str
    low: str | float
    by: float = 0.0
    effect: float = 0.01
    """The smallest effect of interest: below it, the claim counts as refuted."""
    exempt: str = ""
    """Why the paper itself expects nothing of a setting smaller than its own."""
    level: ClassVar[float] = 0.95

    def __str__(self) -> str:
        low = self.low if isinstance(self.low, str) else f"{self.low:g}"
        more = f" {'+' if self.by > 0 else '-'} {abs(self.by):g}" if self.by else ""
        return f"{self.high} > {low}{more} (of interest from {self.effect:g})"

    @property
    def names(self) -> tuple[str, ...]:
        return (self.high, self.low) if isinstance(self.low, str) else (self.high,)

    def judge(self, rows: Sequence[Row]) -> Judgement:
        contrasts = [_value(row, self.high) - _value(row, self.low) - self.by for row in rows]
        return _judged(self, contrasts, self._verdict)

    def _verdict(self, low: float, high: float) -> tuple[str, str]:
        if high < self.effect:
            return (INCONCLUSIVE, SMALLER) if low > 0 else (REFUTED, "")
        return (REPRODUCED if low > 0 else INCONCLUSIVE), ""


@dataclass(frozen=True)
class Close:
    """`a` and `b` differ by less than `margin`, in either direction."""

    a: str
    b: str | float
    margin: float
    exempt: str = ""
    """Why the paper itself expects nothing of a setting smaller than its own."""
    level: ClassVar[float] = 0.90

    def __str__(self) -> str:
        b = self.b if isinstance(self.b, str) else f"{self.b:g}"
        return f"{self.a} within {self.margin:g} of {b}"

    @property
    def names(self) -> tuple[str, ...]:
        return (self.a, self.b) if isinstance(self.b, str) else (self.a,)

    def judge(self, rows: Sequence[Row]) -> Judgement:
        return _judged(self, [_value(row, self.a) - _value(row, self.b) for row in rows], self._verdict)

    def _verdict(self, low: float, high: float) -> tuple[str, str]:
        if -self.margin < low and high < self.margin:
            return REPRODUCED, ""
        return (REFUTED if low > self.margin or high < -self.margin else INCONCLUSIVE), ""


Test = Above | Close


@dataclass(frozen=True)
class Needs:
    """A precondition: `name` is at least this much, averaged over units."""

    name: str
    least: float

    def __str__(self) -> str:
        return f"{self.name} at least {self.least:g}"

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    def unmet(self, rows: Sequence[Row]) -> str:
        """What is missing, in words; nothing if it is met."""
        found = fmean(_value(row, self.name) for row in rows)
        return "" if found >= self.least else f"{self.name} is {found:.3f}, needed is {self.least:g}"


def ordered(*names: str, by: float = 0.0, effect: float = 0.01) -> list[Test]:
    """Each name above the next: the parts of an ordering."""
    return [Above(high, low, by, effect) for high, low in pairwise(names)]


def interval(contrasts: Sequence[float], level: float) -> tuple[float, float] | None:
    """Student's interval of the mean; none for a single value or where one is not finite."""
    n = len(contrasts)
    if n < 2 or not all(map(math.isfinite, contrasts)):
        return None
    half = float(student.ppf((1 + level) / 2, n - 1)) * stdev(contrasts) / math.sqrt(n)
    return fmean(contrasts) - half, fmean(contrasts) + half


def overall(judgements: Sequence[Judgement], small: bool = True) -> str:
    """The verdict of a claim from those of its parts; `small`: at less than the paper's own scale."""
    refuted = [one for one in judgements if one.verdict == REFUTED]
    if refuted:
        return EXEMPT if small and all(one.exempt for one in refuted) else REFUTED
    return REPRODUCED if {one.verdict for one in judgements} == {REPRODUCED} else INCONCLUSIVE


def _judged(
    test: Test, contrasts: list[float], verdict: Callable[[float, float], tuple[str, str]]
) -> Judgement:
    at = interval(contrasts, test.level)
    word, note = verdict(*at) if at else (INCONCLUSIVE, "")
    return Judgement(str(test), fmean(contrasts), at, test.level, len(contrasts), word, note, test.exempt)


def _value(row: Row, name: str | float) -> float:
    if isinstance(name, float | int):
        return float(name)
    if name not in row:
        raise BadInput(f"a test asks for {name!r}, which its study did not measure: {', '.join(row)}")
    return float(row[name])
