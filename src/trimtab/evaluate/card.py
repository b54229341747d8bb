"""The scorecard as typed values: rows, flags, provenance. Nothing here prints or knows the time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from trimtab.evaluate.bn_modes import BNModeRecord, RunningMode
from trimtab.evaluate.records import (
    EARLY_STOPPING,
    AttackRecord,
    ConditionRecord,
    Curve,
    ImagesRecord,
    Measure,
)
from trimtab.io import digest
from trimtab.types import BadInput, InputSpec, html_table, listed

FORMAT = 2
"""Of cards and stores: 2 has typed rows."""


@dataclass(frozen=True)
class Row:
    """One cell: an accuracy, and all that is needed to read it."""

    condition: ConditionRecord
    """What was done to the images."""
    bn_mode: BNModeRecord
    """Which statistics normalized."""
    images: ImagesRecord
    """Which images were measured."""
    seed: int
    accuracy: float
    interval: tuple[float, float]
    """Clopper and Pearson, 95 %."""
    correct: int
    n: int
    iterate: str = ""
    """Which iterate of an attack counts: early stopping (any that is misclassified), the last, the best."""
    batch_size: int | None = None
    """The batch, where images of a batch influence each other; None where it changes no result."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """Further scalars of this condition, by name."""
    curve: Curve | None = None
    """Accuracy over iterations or radius, if measured."""
    measure: Measure | None = None
    """The mean that the row is about, if that is not the accuracy."""
    key: str = ""
    """The cell in the store."""

    @property
    def kind(self) -> str:
        """The kind of the condition: clean, noise, corruption, attack, ..."""
        return self.condition.kind

    @property
    def estimate(self) -> tuple[float, float, float] | None:
        """What the row is about, with the ends of its interval; None where that is undefined."""
        if self.measure is None:
            return self.accuracy, *self.interval
        value, low, high = self.measure.value, self.measure.low, self.measure.high
        return None if value is None or low is None or high is None else (value, low, high)


@dataclass(frozen=True)
class Flag:
    """A warning about the numbers of one BN mode."""

    name: str
    saw: str
    """What was observed, with its numbers."""
    advice: str
    """What to do about it."""
    bn_mode: BNModeRecord = field(default_factory=RunningMode)
    """The BN mode in which it was observed."""

    def __str__(self) -> str:
        return f"{self.name}: {self.saw}; {self.advice}"


@dataclass(frozen=True)
class Card:
    """All rows and flags of one evaluation, and what made them."""

    model: str
    data: str
    suite: str
    rows: tuple[Row, ...]
    flags: tuple[Flag, ...]
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """What made the numbers: digests, versions, the command."""
    format: int = FORMAT

    @property
    def trusted(self) -> bool:
        """Whether no flag was raised."""
        return not self.flags

    @property
    def measured_on(self) -> str:
        """The images, how they were resized and cropped, and the batch where it matters, as text."""
        ranges = dict.fromkeys((row.images.data, row.images.start, row.images.stop) for row in self.rows)
        sets = [
            f"{'first ' if start == 0 else ''}{stop - start:,} images of {data}"
            + (f" from {start:,}" if start else "")
            for data, start, stop in ranges
        ] or [f"no images of {self.data}"]
        spec = self.provenance.get("preprocessing")
        prepared = InputSpec.from_json(spec).preparation if spec else ""
        sizes = sorted({row.batch_size for row in self.rows if row.batch_size})
        images = listed(sets) + (f", {prepared}" if prepared else "")
        return images + (f", coupled batches of {listed(sizes)}" if sizes else "")

    @property
    def without_early_stopping(self) -> list[Row]:
        """Rows of attacks that stop early by their settings, but could not: their batch is coupled."""
        return [
            row
            for row in self.rows
            if isinstance(row.condition, AttackRecord)
            and row.condition.early_stop
            and row.iterate != EARLY_STOPPING
        ]

    @property
    def id(self) -> str:
        """The hash of what was measured."""
        return identity(self.json())

    def _cells(self) -> tuple[list[str], list[list[str]]]:
        """Conditions down, BN modes across: header and rows; seeds apart."""
        modes = list(dict.fromkeys(row.bn_mode for row in self.rows))
        cells = {(row.condition, row.seed, row.bn_mode): row.estimate for row in self.rows}
        percent = {(row.condition, row.seed): row.measure is None for row in self.rows}
        lines = []
        for key, fraction in percent.items():
            line = [str(key[0])]
            for mode in modes:
                scaled = [100 * v if fraction else v for v in cells.get((*key, mode)) or ()]
                shown = "{:.1f} % [{:.1f}, {:.1f}]" if fraction else "{:.2f} [{:.2f}, {:.2f}]"
                line.append(shown.format(*scaled) if scaled else "")
            lines.append(line)
        return ["condition", *map(str, modes)], lines

    @property
    def _title(self) -> str:
        flags = ", ".join(dict.fromkeys(flag.name for flag in self.flags)) or "none"
        return f"{self.model} on {self.data}, {self.suite} suite; flags: {flags}"

    def __str__(self) -> str:
        header, rows = self._cells()
        widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
        lines = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in [header, *rows]]
        return "\n".join([self._title, *lines])

    def _repr_html_(self) -> str:
        return html_table(self._title, *self._cells())

    def json(self) -> str:
        """Return the card as text, byte-identical for the same results."""
        return json.dumps(asdict(self), indent=1, sort_keys=True, allow_nan=False) + "\n"

    @classmethod
    def read(cls, text: str) -> Card:
        """Return the card that `json` wrote; a card of format 1 is converted as far as its text allows."""
        from pydantic import TypeAdapter, ValidationError  # only here, and slow to import

        from trimtab.evaluate import format1

        try:
            value = json.loads(text)
            if format1.is_old(value):
                return format1.card(value, {})
            return TypeAdapter(cls).validate_json(text, strict=True)
        except (ValidationError, ValueError, UnicodeEncodeError) as problem:
            why = str(problem)
            if isinstance(problem, ValidationError):
                first = problem.errors()[0]
                why = f"{'.'.join(map(str, first['loc'])) or 'the text'}: {first['msg']}"
            raise BadInput(f"this is not a scorecard as trimtab writes it: {why}") from None


def identity(text: str) -> str:
    """Return a hash of what a card's text says was measured, whichever command measured it."""
    content = json.loads(text)
    content["provenance"].pop("command", None)
    return digest(content)[:12]


@dataclass(frozen=True)
class EvaluationStatus:
    """How far an evaluation is, after each chunk."""

    condition: ConditionRecord
    """The condition of the cell at work."""
    done: int
    """Images measured, over all cells (those from the store included)."""
    total: int
    lower: float
    """The accuracy of this cell cannot end below this ..."""
    upper: float
    """... nor above this."""
    fraction: float
    """Of all work that is done, by its cost."""
    seconds_left: float | None
    """Estimated from the cost of what is left; None until enough was measured."""
