"""Values that every part of trimtab speaks in: numbers as people write them, budgets, what a model expects.

Pixels are in [0, 1] everywhere: budgets, noise levels and step sizes are in pixel units, and a
model's mean and deviation live inside the model, recorded in its `InputSpec`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from numbers import Integral


class BadInput(ValueError):
    """Something the user gave cannot be used. The message is one sentence: what was wrong, what to do."""


def number(value: float | int | str) -> float:
    """Read `8/255`, `1e-3` or a plain number.

    >>> number("8/255") == 8 / 255, number("1e-3"), number(2)
    (True, 0.001, 2.0)
    """
    try:
        if isinstance(value, str) and "/" in value:
            above, below = value.split("/")
            result = float(above) / float(below)
        else:
            result = float(value)
    except (TypeError, ValueError, ZeroDivisionError, OverflowError):
        raise BadInput(f"{_short(value)} is not a number; write it like 0.03, 1e-3 or 8/255") from None
    if not math.isfinite(result):
        raise BadInput(f"{_short(value)} is not a finite number; write it like 0.03, 1e-3 or 8/255")
    return result


def whole(value: object, what: str) -> int:
    """A count, refused by its name if it is none.

    >>> whole(20, "steps")
    20
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise BadInput(f"{what} must be a whole number, found {value!r}")
    return int(value)


def _short(value: object) -> str:
    words = repr(value) if isinstance(value, str | float | int) else f"a {type(value).__name__}"
    return words if len(words) < 60 else f"{words[:50]}..."


def pretty(value: float) -> str:
    """Write a pixel value the way people say it.

    >>> pretty(8 / 255), pretty(0.5)
    ('8/255', '0.5')
    """
    levels = Fraction(value * 255).limit_denominator(4)
    if value and value != round(value, 3) and abs(float(levels) / 255 - value) < 1e-9:
        return f"{float(levels):g}/255"
    return f"{value:g}"


@dataclass(frozen=True)
class Linf:
    """All images within `eps` of the original in every pixel."""

    eps: float | str

    def __post_init__(self) -> None:
        object.__setattr__(self, "eps", radius(self.eps))
        if self.radius > 1:
            raise BadInput(
                f"an l_inf radius of {self.radius:g} exceeds the pixel range [0, 1]; did you mean "
                f"{self.radius:g}/255?"
            )

    @property
    def radius(self) -> float:
        return float(self.eps)

    def __str__(self) -> str:
        return f"l_inf {pretty(self.radius)}"


@dataclass(frozen=True)
class L2:
    """All images within Euclidean distance `eps` of the original."""

    eps: float | str

    def __post_init__(self) -> None:
        object.__setattr__(self, "eps", radius(self.eps))

    @property
    def radius(self) -> float:
        return float(self.eps)

    def __str__(self) -> str:
        return f"l_2 {pretty(self.radius)}"


Budget = Linf | L2


def radius(eps: float | str) -> float:
    """Read how far something may go."""
    found = number(eps)
    if found < 0:
        raise BadInput(f"a radius must not be negative, found {found:g}")
    return found


@dataclass(frozen=True)
class InputSpec:
    """What a classifier expects: pixels in [0, 1], of this size, normalised inside by mean and std."""

    size: tuple[int, int] = (32, 32)
    """Height and width in pixels."""
    channels: int = 3
    mean: tuple[float, ...] = ()
    """Subtracted inside the model, one value per channel; zeros if not given."""
    std: tuple[float, ...] = ()
    """Divided by inside the model, one value per channel; ones if not given."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", tuple(self.mean) or (0.0,) * self.channels)
        object.__setattr__(self, "std", tuple(self.std) or (1.0,) * self.channels)
        if len(self.mean) != self.channels or len(self.std) != self.channels:
            raise BadInput(
                f"an InputSpec with {self.channels} channels needs as many means and deviations, "
                f"found {len(self.mean)} and {len(self.std)}"
            )
        if min(self.std) <= 0:
            raise BadInput(f"deviations must be positive, found {self.std}")
