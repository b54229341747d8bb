"""The statistical rules by which a claim is judged, fixed before any measurement.

Each claim declares tests that name its rows. A test is of paired contrasts, one per unit: per training seed,
or per image where training does not vary (then each image's values are averaged over the networks first).
Over n contrasts of mean m and std s the interval is Student's, m +- t s / sqrt(n); where both sides have
per-image outcomes, on the same images for every seed, it is over seeds and images (`power.crossed_error`).

    Above   reproduced if the 95 % interval of high - low - by lies above 0; not reproduced if it lies below
            the smallest effect of interest; else inconclusive, also where it lies between the two: a
            significant effect that is smaller than of interest
    Close   two one-sided tests of 5 % each: reproduced if the 90 % interval of a - b lies within the margin,
            not reproduced if it lies wholly outside; else inconclusive

Each test is a part with a verdict of its own. The claim is reproduced if all its parts are. It is not
reproduced if a part is refuted at Holm's level, 2.5 % over all parts; else inconclusive, and the parts are
counted ("4 of 6").

    setting too weak            a precondition (`Needs`: a trained network, an attack that it survives) is
                                not met under some seed: no conclusion from any test
    outside the paper's scope   the paper itself exempts a small setting. This works both ways: such a part is
                                reported with its effect and interval, and counts neither for nor against; a
                                claim with no other parts has this verdict

One unit has no interval: inconclusive. `detectable` says what effect a test can find, with a probability of
0.8; where that is more than half of the paper's effect, the setting is too small (`power.too_small`).

Chance: a directional test of no effect is confirmed by chance in at most 2.5 % of cases, and an effect of
just the smallest size of interest refuted in 2.5 %; for equivalence both are 5 %.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from scipy.stats import t as student

from trimtab.claims import power
from trimtab.claims.power import PerImage
from trimtab.types import BadInput

REPRODUCED = "reproduced"
REFUTED = "not reproduced"
INCONCLUSIVE = "inconclusive"
EXEMPT = "outside the paper's scope"
SMALLER = "smaller than of interest"
TOO_WEAK = "setting too weak"
REFUTATION = 0.025
"""Family-wise level of refuting a claim by one of its parts."""

Numbers = Mapping[str, float]
"""One unit's numbers, by name."""


@dataclass(frozen=True)
class Judgement:
    """The outcome of a test."""

    test: str
    """The test, as text."""
    verdict: str
    """Reproduced, not reproduced or inconclusive."""
    note: str
    """More about the verdict."""
    mean: float
    """Mean of the contrast."""
    interval: tuple[float, float] | None
    """Confidence interval at the test's level; None with a single unit."""
    level: float
    """Confidence level."""
    units: int
    """Number of contrasts."""
    over: str
    """What the interval is over: "units", or "seeds and images"."""
    detectable: float | None
    """The smallest effect that is found with probability 0.8 at this n and std; None with a single unit."""
    paper: float | None
    """The paper's effect."""
    exempt: str
    """The paper's own reason why a small setting is no test."""
    p_refuted: float
    """p-value of the effect being within the bounds outside of which the test is refuted."""


class Test(ABC):
    """A test of the effect left - right - by: which effects are claimed, and outside which it is refuted."""

    by: float = 0.0
    exempt: str
    """The paper's own reason why a setting smaller than its own is no test."""
    paper: float | None = None
    """The paper's own effect, in the units of the rows."""
    controlled: bool = False
    """Whether a side is a control, which only the first seeds have (`Scale.seeds`)."""
    level: ClassVar[float]

    @property
    @abstractmethod
    def sides(self) -> tuple[str | float, str | float]:
        """Left and right: a row's name or a number."""

    @property
    @abstractmethod
    def bounds(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """The effects that are claimed, and those outside which the test is refuted."""

    @property
    def names(self) -> tuple[str, ...]:
        """The rows that it needs."""
        return tuple(side for side in self.sides if isinstance(side, str))

    def judge(self, rows: Sequence[Numbers]) -> Judgement:
        """Judge the contrasts of all units."""
        left, right = self.sides
        contrasts, n = [_value(row, left) - _value(row, right) - self.by for row in rows], len(rows)
        mean, error, over = power.mean_and_error(contrasts)
        verdict, note, interval, detectable, p_refuted = INCONCLUSIVE, "", None, None, 1.0
        if n > 1 and math.isfinite(mean) and math.isfinite(error):
            half = float(student.ppf((1 + self.level) / 2, n - 1)) * error
            low, high = interval = mean - half, mean + half
            (claimed_from, claimed_to), (refuted_below, refuted_above) = self.bounds
            reproduced = claimed_from < low and high < claimed_to
            refuted = high < refuted_below or low > refuted_above
            if reproduced and refuted:
                note = SMALLER
            elif reproduced or refuted:
                verdict = REPRODUCED if reproduced else REFUTED

            def below(bound: float) -> float:
                """Return the p-value of "the effect is at least `bound`"."""
                return float(student.cdf((mean - bound) / error, n - 1)) if error else float(mean >= bound)

            p_refuted = min(below(refuted_below), 1 - below(refuted_above))
            if math.isinf(claimed_to):
                detectable = power.detectable(error * math.sqrt(n), n, self.level)
        return Judgement(
            str(self), verdict, note, mean, interval, self.level, n, over, detectable, self.paper,
            self.exempt, p_refuted,
        )  # fmt: skip


@dataclass(frozen=True)
class Above(Test):
    """`high` exceeds `low` by more than `by`; each is a row's name or a number."""

    high: str | float
    low: str | float
    by: float = 0.0
    effect: float = 0.01
    """The smallest effect of interest, in the units of the rows: below it, the part counts as refuted."""
    exempt: str = ""
    paper: float | None = None
    controlled: bool = False
    level: ClassVar[float] = 0.95

    def __str__(self) -> str:
        high, low = map(_side, self.sides)
        more = f" {'+' if self.by > 0 else '-'} {abs(self.by):g}" if self.by else ""
        return f"{high} > {low}{more} (of interest from {self.effect:g})"

    @property
    def sides(self) -> tuple[str | float, str | float]:
        """The larger side and the smaller one."""
        return self.high, self.low

    @property
    def bounds(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Anything above 0 is claimed; refuted is what lies below the effect of interest."""
        return (0, math.inf), (self.effect, math.inf)


@dataclass(frozen=True)
class Close(Test):
    """`a` and `b` differ by less than `margin`, in either direction."""

    a: str
    b: str | float
    margin: float
    exempt: str = ""
    level: ClassVar[float] = 0.90

    def __str__(self) -> str:
        return f"{self.a} within {self.margin:g} of {_side(self.b)}"

    @property
    def sides(self) -> tuple[str | float, str | float]:
        """The two sides."""
        return self.a, self.b

    @property
    def bounds(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Differences within the margin are claimed, others refuted."""
        return (-self.margin, self.margin), (-self.margin, self.margin)


@dataclass(frozen=True)
class Needs:
    """A precondition: the row `name` is at least `least` and at most `most` under every seed."""

    name: str
    """A row."""
    least: float = -math.inf
    """Its lower bound."""
    most: float = math.inf
    """Its upper bound."""

    def __str__(self) -> str:
        return f"{self.name} {self._bound}"

    @property
    def _bound(self) -> str:
        bounds = (("at least", self.least), ("at most", self.most))
        return " and ".join(f"{word} {bound:g}" for word, bound in bounds if math.isfinite(bound))

    def unmet(self, rows: Sequence[Numbers]) -> str:
        """Return a message with the units that do not meet the precondition; "" if all do."""
        values = [float(_value(row, self.name)) for row in rows]
        outside = [
            f"{value:.3f} (unit {number})"
            for number, value in enumerate(values)
            if not self.least <= value <= self.most
        ]
        return f"{self.name} is {', '.join(outside)}, needed is {self._bound}" if outside else ""


def ordered(*names: str, by: float = 0.0, effect: float = 0.01) -> list[Test]:
    """Return tests that each name exceeds the next."""
    return [Above(high, low, by, effect) for high, low in pairwise(names)]


def overall(judgements: Sequence[Judgement], small: bool = True) -> str:
    """Return the verdict of a claim from those of its parts; `small`: at less than the paper's own scale."""
    parts = [part for part in judgements if not (small and part.exempt)]
    if not parts:
        return EXEMPT
    if {part.verdict for part in parts} == {REPRODUCED}:
        return REPRODUCED
    rejected = power.holm([part.p_refuted for part in parts], REFUTATION)
    refuted = any(holm and part.verdict == REFUTED for holm, part in zip(rejected, parts, strict=True))
    return REFUTED if refuted else INCONCLUSIVE


def tally(judgements: Sequence[Judgement], small: bool = True) -> str:
    """Return how many parts are reproduced, as "4 of 6 parts"; exempt parts are not counted."""
    parts = [part for part in judgements if not (small and part.exempt)]
    return f"{sum(part.verdict == REPRODUCED for part in parts)} of {len(parts)} parts" if parts else ""


def _side(side: str | float) -> str:
    return side if isinstance(side, str) else f"{side:g}"


def _value(row: Numbers, name: str | float) -> float:
    if isinstance(name, str) and name not in row:
        raise BadInput(f"a test needs the row {name!r}, which its study does not measure: {', '.join(row)}")
    value = row[name] if isinstance(name, str) else name
    return value if isinstance(value, PerImage) else float(value)
