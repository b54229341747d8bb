"""The measurements of a claim at a scale: rows by seed, the judgements that follow, and both as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

import torch

import trimtab
from trimtab.claims import verdicts
from trimtab.claims.claim import Claim
from trimtab.claims.methods import changed
from trimtab.claims.power import PerImage, pack, unpack
from trimtab.claims.scales import scale_of
from trimtab.runtime.fingerprint import describe, digest

Rows = dict[int, dict[str, Any]]
"""By seed: numbers by name, or lists of one per image."""
NOT_YET = "not run yet"
AGAIN = "must be run again"


@dataclass
class Result:
    """The measurements of a claim at a scale."""

    claim: Claim
    """The claim."""
    scale: str
    """Name of the scale."""
    rows: Rows
    """By seed."""
    failed: dict[int, str] = field(default_factory=dict)
    """By seed: the error that ended its measurement."""
    methods: dict[str, int] = field(default_factory=dict)
    """The versions of the methods that measured the rows."""
    outdated: bool = False
    """Whether rows of an earlier version of the study were discarded."""
    cpu: str = ""
    """The CPU that the rows were measured on."""

    @property
    def seeds(self) -> list[int]:
        """The measured seeds, in order."""
        return sorted(self.rows)

    @property
    def judgements(self) -> list[verdicts.Judgement]:
        """The outcome of each test; none without rows."""
        rows = units(self.claim, self.rows)
        return [test.judge(rows) for test in self.claim.tests] if rows else []

    @property
    def unmet(self) -> list[str]:
        """The preconditions that are not met: under every seed, or for images on average."""
        rows = units(self.claim, self.rows)
        if not rows:
            return []
        over_images = self.claim.unit == "image"
        checked = (
            need.unmet_on_average(rows) if over_images else need.unmet(rows) for need in self.claim.needs
        )
        return [message for message in checked if message]

    @property
    def verdict(self) -> str:
        """The verdict of the claim."""
        if self.failed:
            return verdicts.INCONCLUSIVE
        if not self.rows:
            return AGAIN if self.outdated else NOT_YET
        if self.unmet:
            return verdicts.TOO_WEAK
        return verdicts.overall(self.judgements, small=self.scale != "paper")

    @property
    def tally(self) -> str:
        """How many parts are reproduced."""
        return verdicts.tally(self.judgements, small=self.scale != "paper") if self.rows else ""

    @property
    def note(self) -> str:
        """Why the tests are not conclusive: failed seeds and preconditions that are not met."""
        reasons = [f"seed {seed} failed ({why})" for seed, why in sorted(self.failed.items())]
        if self.unmet:
            reasons.append("; ".join(self.unmet))
        return "; ".join(reasons)

    @property
    def means(self) -> dict[str, float]:
        """Every row, averaged over seeds (and images); rows with a value that is not finite are omitted."""
        names = dict.fromkeys(name for row in self.rows.values() for name in row)
        averages = {
            name: fmean(_flat([row[name] for row in self.rows.values() if name in row])) for name in names
        }
        return {name: value for name, value in averages.items() if math.isfinite(value)}

    @property
    def command(self) -> str:
        """The command that measures these seeds."""
        command, tried = f"trimtab reproduce {self.claim.id} --scale {self.scale}", [*self.rows, *self.failed]
        return f"{command} --seeds {max(tried) + 1}" if tried else command


def units(claim: Claim, rows: Rows) -> list[dict[str, float]]:
    """Return what intervals are over: a row per seed, or per image with values averaged over the seeds."""
    if claim.unit == "seed":
        return [rows[seed] for seed in sorted(rows)]
    columns: dict[str, list[float]] = {}
    for name in dict.fromkeys(name for row in rows.values() for name in row):
        by_seed = [row[name] for row in rows.values() if isinstance(row.get(name), list)]
        if by_seed and len({len(values) for values in by_seed}) == 1:
            columns[name] = [fmean(values) for values in zip(*by_seed, strict=True)]
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=False)]


def settings(claim: Claim, scale: str) -> str:
    """Return a hash of everything that the rows depend on, except the seed and the methods' versions."""
    at = scale_of(scale, claim.paper)
    not_part = ("seeds", "headline", "match_step")  # the last is part of the constructed sets that use it
    amounts = {name: value for name, value in describe(at).items() if name not in not_part}
    networks = [net.about(at, 0) for net in claim.nets(at)]
    about = {"id": claim.id, "version": claim.version, "scale": amounts, "networks": networks}
    if claim.tables is not None:
        about["tables"] = describe(claim.tables(at))
    return digest(about)


# ---- as JSON -------------------------------------------------------------------------------------------


def to_json(result: Result) -> dict[str, Any]:
    """Return a result as the content of its file."""
    claim = result.claim
    return {
        "id": claim.id,
        "claim": claim.sentence,
        "scale": result.scale,
        "verdict": result.verdict,
        "note": result.note,
        "parts": result.tally,
        "changed after numbers were seen": claim.changed,
        "needs": [str(need) for need in claim.needs],
        "tests": [
            {name: _finite(value) for name, value in asdict(judgement).items()}
            for judgement in result.judgements
        ],
        "unit": claim.unit,
        "paper": dict(claim.figures),
        "means": {name: _finite(value) for name, value in result.means.items()},
        "rows": {str(seed): _encoded(result.rows[seed]) for seed in result.seeds},
        "outcomes": {str(seed): packed for seed in result.seeds if (packed := _packed(result.rows[seed]))},
        "failed": {str(seed): result.failed[seed] for seed in sorted(result.failed)},
        "command": result.command,
        "cpu": result.cpu,
        "versions": {"trimtab": trimtab.__version__, "torch": torch.__version__},
        "methods": dict(sorted(result.methods.items())),
        "settings": settings(claim, result.scale),
    }


def from_json(claim: Claim, scale: str, content: Mapping[str, Any]) -> Result:
    """Return the result in a file's content, without rows that an earlier version of the study measured."""
    if not content:
        return Result(claim, scale, {})
    methods = content.get("methods", {})
    if content.get("settings") != settings(claim, scale) or changed(methods):
        return Result(claim, scale, {}, outdated=True)
    required = {name for test in (*claim.tests, *claim.needs) for name in test.names}
    outcomes = content.get("outcomes", {})
    rows = {int(seed): _decoded(row, outcomes.get(seed, {})) for seed, row in content["rows"].items()}
    complete = {seed: row for seed, row in rows.items() if required <= row.keys()}
    failed = {int(seed): why for seed, why in content.get("failed", {}).items()}
    outdated = len(complete) < len(rows)
    return Result(claim, scale, complete, failed, dict(methods), outdated, str(content.get("cpu", "")))


def plain(rows: Mapping[str, Any]) -> dict[str, Any]:
    """Return rows as Python numbers and lists; per-image outcomes exactly as the file will contain them."""

    def converted(row: Any) -> Any:
        if isinstance(row, PerImage):
            packed = pack(row)
            return unpack(packed) if packed else float(row)
        return row.tolist() if isinstance(row, torch.Tensor) else row

    return {name: converted(row) for name, row in rows.items()}


def _packed(row: Mapping[str, Any]) -> dict[str, str]:
    """Return the per-image outcomes, bit-packed."""
    return {name: pack(value) for name, value in row.items() if isinstance(value, PerImage)}


def _encoded(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row for JSON: a column of images is one line of text."""
    return {name: _text(value) if isinstance(value, list) else _finite(value) for name, value in row.items()}


def _decoded(row: Mapping[str, Any], outcomes: Mapping[str, str]) -> dict[str, Any]:
    def value_of(name: str, stored: Any) -> Any:
        if name in outcomes:
            return unpack(outcomes[name])
        if isinstance(stored, str):
            return [float(number) for number in stored.split()]
        return math.nan if stored is None else stored

    return {name: value_of(name, stored) for name, stored in row.items()}


def _text(values: Sequence[float]) -> str:
    return " ".join(repr(float(value)).removesuffix(".0") for value in values)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _flat(values: Sequence[Any]) -> Iterator[float]:
    for value in values:
        yield from value if isinstance(value, list) else [value]
