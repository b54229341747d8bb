"""The scorecard as values: rows, flags, provenance. Printing is for others; nothing here knows the time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from trimtab.keys import digest
from trimtab.types import BadInput

ENDS = (", lower end", ", upper end")
"""How the figures that are the ends of another one's interval go on after its name."""


@dataclass(frozen=True)
class Row:
    """One cell: an accuracy, and all that is needed to read it."""

    kind: str
    """clean, noise, corruption, attack, ..."""
    condition: str
    """What was done to the images, in words."""
    state: str
    """Which statistics normalised."""
    seed: int
    accuracy: float
    interval: tuple[float, float]
    """Clopper and Pearson, 95 %."""
    correct: int
    n: int
    score: str
    """Which image of an attack counts: that of the last iteration, or any."""
    figures: Mapping[str, float]
    """Further numbers of this condition, by name."""
    key: str
    """The cell in the store."""
    instead: str = ""
    """The figure that the row is about, if not the accuracy; two more figures are its interval's `ENDS`."""

    @property
    def told(self) -> tuple[float, float, float] | None:
        """What the row is about, and its interval; None where that could not be measured."""
        if not self.instead:
            return self.accuracy, *self.interval
        found = [self.figures.get(self.instead + end) for end in ("", *ENDS)]
        value, low, high = (None if one is None else float(one) for one in found)
        return None if value is None or low is None or high is None else (value, low, high)


@dataclass(frozen=True)
class Flag:
    """A reason to doubt the numbers above it."""

    name: str
    saw: str
    """What was found, with its numbers."""
    advice: str
    """What to do about it."""
    state: str = "running"
    """The norm state it was seen in."""

    def __str__(self) -> str:
        return f"{self.name}: {self.saw}; {self.advice}"


@dataclass(frozen=True)
class Card:
    model: str
    data: str
    suite: str
    rows: tuple[Row, ...]
    flags: tuple[Flag, ...]
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """What made the numbers: digests, versions, the command."""

    @property
    def trusted(self) -> bool:
        return not self.flags

    @property
    def scored_otherwise(self) -> list[str]:
        """Sentences on attacks that score another iterate than their names say."""
        attacked = [row for row in self.rows if row.kind == "attack" and "iterate" in row.condition]
        other = [row for row in attacked if row.score not in row.condition]
        return sorted({f"{row.condition}, on {row.state}: {row.score}, of whole batches." for row in other})

    @property
    def id(self) -> str:
        return identity(self.json())

    def json(self) -> str:
        """The card as text, byte-identical for the same results."""
        return json.dumps(asdict(self), indent=1, sort_keys=True, allow_nan=False) + "\n"

    @classmethod
    def read(cls, text: str) -> Card:
        """The card that `json` wrote."""
        from pydantic import TypeAdapter, ValidationError  # only here, and slow to import

        try:
            return TypeAdapter(cls).validate_json(text, strict=True)
        except (ValidationError, UnicodeEncodeError) as problem:
            why = str(problem)
            if isinstance(problem, ValidationError):
                first = problem.errors()[0]
                why = f"{'.'.join(map(str, first['loc'])) or 'the text'}: {first['msg']}"
            raise BadInput(f"this is not a scorecard as trimtab writes it: {why}") from None


def identity(text: str) -> str:
    """What a card says was measured, and not by which command, as a hash."""
    told = json.loads(text)
    told["provenance"].pop("command", None)
    return digest(told)[:12]


@dataclass(frozen=True)
class Progress:
    """How far an evaluation is, after each chunk."""

    condition: str
    """The cell at work."""
    done: int
    """Images measured, over all cells (those from the store included)."""
    total: int
    lower: float
    """The accuracy of this cell cannot end below this ..."""
    upper: float
    """... nor above this."""
    seconds_left: float | None
    """Guessed from the cost of what is left; None until something was measured."""
