"""The measurements of a claim at a scale: rows by seed, what follows from them, and both as JSON.

`summary` is all that the ledger says of a claim. The file of a claim adds the rows, the outcomes of every
image and what they depend on: a hash of the settings (the claim's version, the scale's amounts, its networks,
its own tables), and the versions of the methods that measured. If one of them is different now, the claim
must be run again; so must a seed that lacks a row which the tests need.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import torch

import trimtab
from trimtab.claims import verdicts
from trimtab.claims.claim import Claim
from trimtab.claims.methods import changed
from trimtab.claims.power import PerImage, pack, unpack
from trimtab.claims.scales import scale_of
from trimtab.claims.verdicts import Judgement
from trimtab.runtime.fingerprint import describe, digest

Rows = dict[int, dict[str, float]]
"""By seed: numbers by name."""
PARTS = {
    "mean": "effect",
    "detectable": "detectable effect",
    "paper": "the paper's effect",
    "exempt": "the paper's exception",
}
"""Fields of a judgement that are named differently in the files."""
NOT_YET = "not run yet"
AGAIN = "must be run again"


@dataclass
class Result:
    """The measurements of a claim at a scale."""

    claim: Claim
    """The claim."""
    scale: str
    """Name of the scale."""
    rows: Rows = field(default_factory=dict)
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
    def judgements(self) -> list[Judgement]:
        """The outcome of each test; none without rows."""
        at, rows = scale_of(self.scale, self.claim.paper), self.rows
        few = [rows[seed] for seed in self.seeds if seed < at.seeds]
        every = [rows[seed] for seed in self.seeds]
        return [test.judge(few if test.controlled else every) for test in self.claim.tests] if rows else []

    @property
    def unmet(self) -> list[str]:
        """The preconditions that are not met under every seed."""
        rows = [self.rows[seed] for seed in self.seeds]
        return [message for need in self.claim.needs if (message := need.unmet(rows))]

    @property
    def verdict(self) -> str:
        """The verdict of the claim; provisional while seeds are missing, since a test must not stop early."""
        if not self.rows and not self.failed:
            return AGAIN if self.outdated else NOT_YET
        if self.failed:
            return verdicts.INCONCLUSIVE
        if self.unmet:
            return verdicts.TOO_WEAK
        return verdicts.overall(self.judgements, small=self.scale != "paper")

    @property
    def note(self) -> str:
        """Why the tests are not conclusive: failed seeds and preconditions that are not met."""
        failed = [f"seed {seed} failed ({why})" for seed, why in sorted(self.failed.items())]
        return "; ".join([*failed, *self.unmet])

    @property
    def means(self) -> dict[str, float]:
        """Every row, averaged over seeds; rows with a value that is not finite are omitted."""
        names = dict.fromkeys(name for row in self.rows.values() for name in row)
        averages = {
            name: fmean(float(row[name]) for row in self.rows.values() if name in row) for name in names
        }
        return {name: value for name, value in averages.items() if math.isfinite(value)}


def summary(result: Result) -> dict[str, Any]:
    """Return what the ledger says of a claim, as JSON values."""
    claim, rows = result.claim, result.rows
    planned = claim.planned(scale_of(result.scale, claim.paper))
    small = result.scale != "paper"
    tested = {name for test in claim.tests for name in test.names}
    outcomes = [value for row in rows.values() for name, value in row.items() if name in tested]
    command, tried = f"trimtab reproduce {claim.id} --scale {result.scale}", [*rows, *result.failed]
    return _finite(
        {
            "id": claim.id,
            "claim": claim.sentence,
            "paper": claim.paper,
            "scale": result.scale,
            "verdict": result.verdict,
            "provisional": 0 < len(rows) < planned,
            "reason": result.note,
            "parts": verdicts.tally(result.judgements, small),
            "tests": [
                {PARTS.get(name, name): value for name, value in vars(judged).items() if name != "p_refuted"}
                for judged in result.judgements
            ],
            "preconditions": [
                {
                    "needed": str(need),
                    "by seed": {str(seed): float(rows[seed][need.name]) for seed in result.seeds},
                    "met": not need.unmet([*rows.values()]) if rows else None,
                }
                for need in claim.needs
            ],
            "changed after numbers were seen": claim.changed,
            "seeds": result.seeds,
            "planned seeds": planned,
            "failed": {str(seed): result.failed[seed] for seed in sorted(result.failed)},
            "images": max((len(v.values) for v in outcomes if isinstance(v, PerImage)), default=None),
            "figures": dict(claim.figures),
            "means": result.means,
            "command": f"{command} --seeds {max(tried) + 1}" if tried else command,
            "cpu": result.cpu,
        }
    )


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


def to_json(result: Result) -> dict[str, Any]:
    """Return a result as the content of its file: the summary, the rows, and what they depend on."""
    rows = {str(seed): result.rows[seed] for seed in result.seeds}
    outcomes = {
        seed: {name: pack(value) for name, value in row.items() if isinstance(value, PerImage)}
        for seed, row in rows.items()
    }
    return summary(result) | {
        "rows": _finite(
            {seed: {name: float(value) for name, value in row.items()} for seed, row in rows.items()}
        ),
        "outcomes": {seed: packed for seed, packed in outcomes.items() if packed},
        "versions": {"trimtab": trimtab.__version__, "torch": torch.__version__},
        "methods": dict(sorted(result.methods.items())),
        "settings": settings(result.claim, result.scale),
    }


def from_json(claim: Claim, scale: str, content: Mapping[str, Any]) -> Result:
    """Return the result in a file's content, without rows that an earlier version of the study measured."""
    if not content:
        return Result(claim, scale)
    methods = content.get("methods", {})
    if content.get("settings") != settings(claim, scale) or changed(methods):
        return Result(claim, scale, outdated=True)
    at = scale_of(scale, claim.paper)
    rows: Rows = {}
    for seed, row in content["rows"].items():
        numbers = {name: math.nan if value is None else value for name, value in row.items()}
        outcomes = {name: unpack(text) for name, text in content["outcomes"].get(seed, {}).items()}
        rows[int(seed)] = numbers | outcomes
    complete = {seed: row for seed, row in rows.items() if claim.tested(at, seed) <= row.keys()}
    failed = {int(seed): why for seed, why in content["failed"].items()}
    return Result(
        claim, scale, complete, failed, dict(methods), len(complete) < len(rows), str(content["cpu"])
    )


def plain(rows: Mapping[str, Any]) -> dict[str, float]:
    """Return rows as numbers; per-image outcomes exactly as the file will contain them."""
    packed = {name: pack(row) if isinstance(row, PerImage) else "" for name, row in rows.items()}
    return {name: unpack(packed[name]) if packed[name] else float(row) for name, row in rows.items()}


def _finite(value: Any) -> Any:
    """Return a value as JSON has it: without numbers that are not finite."""
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
