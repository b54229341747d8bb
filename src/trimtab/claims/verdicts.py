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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, stdev
from typing import ClassVar

import numpy as np
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
    mean: float
    """Mean of the contrast."""
    interval: tuple[float, float] | None
    """Confidence interval at the test's level; None with a single unit."""
    level: float
    """Confidence level."""
    units: int
    """Number of contrasts."""
    verdict: str
    """Reproduced, not reproduced or inconclusive."""
    note: str = ""
    """More about the verdict."""
    exempt: str = ""
    """The paper's own reason why a small setting is no test."""
    p_refuted: float = 1.0
    """p-value of "the effect is at least of interest" (Above), or "it is within the margin" (Close)."""
    detectable: float | None = None
    """The smallest effect that is found with probability 0.8 at this n and std; None with a single unit."""
    paper: float | None = None
    """The paper's effect."""
    over: str = "units"
    """What the interval is over: "units", or "seeds and images"."""


@dataclass(frozen=True)
class Above:
    """`high` exceeds `low` by more than `by`; each is a row's name or a number."""

    high: str | float
    low: str | float
    by: float = 0.0
    effect: float = 0.01
    """The smallest effect of interest, in the units of the rows: below it, the part counts as refuted."""
    exempt: str = ""
    """The paper's own reason why a setting smaller than its own is no test."""
    paper: float | None = None
    """The paper's own effect, high - low - by, in the same units."""
    controlled: bool = False
    """Whether a side is a control, which only the first seeds have (`Scale.seeds`)."""
    level: ClassVar[float] = 0.95

    def __str__(self) -> str:
        high, low = (side if isinstance(side, str) else f"{side:g}" for side in (self.high, self.low))
        more = f" {'+' if self.by > 0 else '-'} {abs(self.by):g}" if self.by else ""
        return f"{high} > {low}{more} (of interest from {self.effect:g})"

    @property
    def names(self) -> tuple[str, ...]:
        """The rows that it needs."""
        return tuple(side for side in (self.high, self.low) if isinstance(side, str))

    def judge(self, rows: Sequence[Numbers]) -> Judgement:
        """Judge the contrasts of all units."""
        contrasts = [_value(row, self.high) - _value(row, self.low) - self.by for row in rows]
        return _judged(self, contrasts, self._verdict, lambda below: below(self.effect))

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
    """The paper's own reason why a setting smaller than its own is no test."""
    controlled: ClassVar[bool] = False
    level: ClassVar[float] = 0.90

    def __str__(self) -> str:
        b = self.b if isinstance(self.b, str) else f"{self.b:g}"
        return f"{self.a} within {self.margin:g} of {b}"

    @property
    def names(self) -> tuple[str, ...]:
        """The rows that it needs."""
        return (self.a, self.b) if isinstance(self.b, str) else (self.a,)

    def judge(self, rows: Sequence[Numbers]) -> Judgement:
        """Judge the contrasts of all units."""
        contrasts = [_value(row, self.a) - _value(row, self.b) for row in rows]
        return _judged(
            self, contrasts, self._verdict, lambda below: min(below(-self.margin), 1 - below(self.margin))
        )

    def _verdict(self, low: float, high: float) -> tuple[str, str]:
        if -self.margin < low and high < self.margin:
            return REPRODUCED, ""
        return (REFUTED if low > self.margin or high < -self.margin else INCONCLUSIVE), ""


Test = Above | Close


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

    @property
    def names(self) -> tuple[str, ...]:
        """The row that it needs."""
        return (self.name,)

    def unmet(self, rows: Sequence[Numbers]) -> str:
        """Return a message with the units that do not meet the precondition; "" if all do."""
        values = [float(_value(row, self.name)) for row in rows]
        outside = [
            (number, value) for number, value in enumerate(values) if not self.least <= value <= self.most
        ]
        if not outside:
            return ""
        seeds = ", ".join(f"{value:.3f} (unit {number})" for number, value in outside)
        return f"{self.name} is {seeds}, needed is {self._bound}"


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
    refuted = power.holm([part.p_refuted for part in parts], REFUTATION)
    part_verdicts = [part.verdict for part in parts]
    return (
        REFUTED
        if any(r and verdict == REFUTED for r, verdict in zip(refuted, part_verdicts, strict=True))
        else INCONCLUSIVE
    )


def tally(judgements: Sequence[Judgement], small: bool = True) -> str:
    """Return how many parts are reproduced, as "4 of 6 parts"; exempt parts are not counted."""
    parts = [part for part in judgements if not (small and part.exempt)]
    return f"{sum(part.verdict == REPRODUCED for part in parts)} of {len(parts)} parts" if parts else ""


def _judged(
    test: Test,
    contrasts: list[float],
    verdict: Callable[[float, float], tuple[str, str]],
    refuting: Callable[[Callable[[float], float]], float],
) -> Judgement:
    crossed = _crossed(contrasts)
    if crossed is not None:
        mean, error, n, over = (
            float(crossed.mean()),
            power.crossed_error(crossed),
            len(crossed),
            "seeds and images",
        )
    else:
        mean = fmean(contrasts) if contrasts else math.nan
        error, n, over = _standard_error(contrasts), len(contrasts), "units"
    known = n > 1 and math.isfinite(mean) and math.isfinite(error)
    p, detectable, interval = 1.0, None, None
    outcome, note = INCONCLUSIVE, ""
    if known:
        half = float(student.ppf((1 + test.level) / 2, n - 1)) * error
        interval = mean - half, mean + half

        def below(bound: float) -> float:
            """Return the p-value of "the effect is at least `bound`"."""
            return float(student.cdf((mean - bound) / error, n - 1)) if error else float(mean >= bound)

        p = refuting(below)
        if isinstance(test, Above):
            detectable = power.detectable(error * math.sqrt(n), n, test.level)
        outcome, note = verdict(*interval)
    paper = test.paper if isinstance(test, Above) else None
    return Judgement(
        str(test), mean, interval, test.level, n, outcome, note, test.exempt, p, detectable, paper, over
    )


def _standard_error(contrasts: Sequence[float]) -> float:
    """Return the standard error of the mean; infinite for a single value or one that is not finite."""
    plain = [float(contrast) for contrast in contrasts]
    if len(plain) < 2 or not all(map(math.isfinite, plain)):
        return math.inf
    return stdev(plain) / math.sqrt(len(plain))


def _crossed(contrasts: Sequence[float]) -> power.Array | None:
    """Return the contrasts by seed and image, if every seed has them for the same number of images."""
    outcomes = [contrast.values for contrast in contrasts if isinstance(contrast, PerImage)]
    if len(outcomes) < max(2, len(contrasts)) or len({len(values) for values in outcomes}) > 1:
        return None
    return np.stack(outcomes)


def _value(row: Numbers, name: str | float) -> float:
    if isinstance(name, float | int):
        return float(name)
    if name not in row:
        raise BadInput(f"a test needs the row {name!r}, which its study does not measure: {', '.join(row)}")
    value = row[name]
    return value if isinstance(value, PerImage) else float(value)
