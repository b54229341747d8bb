"""Results on disk: one file per claim and scale, written whole after every seed, judged by the claim's rules.

    OUT/SCALE/ID.json     rows per seed, tests with intervals, verdict, what it all depended on
    OUT/SCALE/times.json  seconds, apart: the same seeds give the same bytes in every other file
    OUT/SCALE/ledger.json, ledger.md   all claims at a glance

A seed that is in the file is not measured again, unless what it depends on has changed: then all of them are.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

import trimtab
from trimtab.evaluate.keys import describe, digest
from trimtab.studies import verdicts
from trimtab.studies.bench import Tell, only_one
from trimtab.studies.claim import Claim
from trimtab.studies.engines import ENGINES, Done, Unit
from trimtab.studies.scales import Scale, scale_of
from trimtab.train.runs import write_text
from trimtab.types import BadInput

Rows = dict[int, dict[str, Any]]
"""By seed: numbers by name, or lists of one per image."""


@dataclass(frozen=True)
class Result:
    """What is known of a claim at a scale."""

    claim: Claim
    scale: str
    rows: Rows

    @property
    def seeds(self) -> list[int]:
        return sorted(self.rows)

    @property
    def judgements(self) -> list[verdicts.Judgement]:
        rows = units(self.claim, self.rows)
        return [test.judge(rows) for test in self.claim.tests] if rows else []

    @property
    def unmet(self) -> list[str]:
        """What the claim needs of its setting and does not find."""
        rows = units(self.claim, self.rows)
        return [words for words in (need.unmet(rows) for need in self.claim.needs) if words] if rows else []

    @property
    def verdict(self) -> str:
        if not self.rows:
            return "not run yet"
        if self.unmet:
            return verdicts.INCONCLUSIVE
        return verdicts.overall(self.judgements, small=self.scale != "paper")

    @property
    def note(self) -> str:
        """Why nothing follows from the tests, where that is so."""
        return f"{verdicts.TOO_WEAK}: {'; '.join(self.unmet)}" if self.unmet else ""

    @property
    def means(self) -> dict[str, float]:
        """Every row, averaged over seeds (and images)."""
        named = dict.fromkeys(name for row in self.rows.values() for name in row)
        return {
            name: fmean(_flat([row[name] for row in self.rows.values() if name in row])) for name in named
        }

    @property
    def command(self) -> str:
        return f"trimtab reproduce {self.claim.id} --scale {self.scale} --seeds {len(self.rows)}"


def units(claim: Claim, rows: Rows) -> list[dict[str, float]]:
    """What intervals are over: a row per seed, or a row per image with its values averaged over the seeds."""
    if claim.unit == "seed":
        return [rows[seed] for seed in sorted(rows)]
    columns: dict[str, list[float]] = {}
    for name in dict.fromkeys(name for row in rows.values() for name in row):
        several = [row[name] for row in rows.values() if isinstance(row.get(name), list)]
        if several and len({len(one) for one in several}) == 1:
            columns[name] = [fmean(values) for values in zip(*several, strict=True)]
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=False)]


def seeds_for(claim: Claim, scale: Scale) -> int:
    return scale.headline if claim.headline else scale.seeds


def run(
    claims: Sequence[Claim],
    scale: str,
    out: Path,
    work: Path,
    seeds: int | None = None,
    engine: str = "local",
    threads: int | None = None,
    tell: Tell | None = None,
    told: Callable[[Done, int, int], None] | None = None,
) -> list[Result]:
    """Measure what is missing of these claims, and judge them; the files are whole at every moment."""
    if engine not in ENGINES:
        raise BadInput(f"there is no engine {engine!r}; there are {', '.join(ENGINES)}")
    if seeds is not None and seeds < 1:
        raise BadInput(f"a claim needs at least one seed, found {seeds}")
    results = {claim.id: read(claim, scale, out) for claim in claims}
    todo = [
        Unit(claim.id, scale, seed, str(work), threads)
        for claim in claims
        for seed in range(seeds or seeds_for(claim, scale_of(scale, claim.paper)))
        if seed not in results[claim.id].rows
    ]
    measured = 0
    for done in ENGINES[engine](todo, tell):
        if not done.problem:
            note_time(out, done)
        if done.rows is not None:
            result = results[done.unit.id]
            result.rows[done.unit.seed] = plain(done.rows)
            write(result, out)
            measured += 1
        if told is not None:
            told(done, measured, len(todo))
    for result in results.values():
        write(result, out)
    return list(results.values())


# ---- files ---------------------------------------------------------------------------------------------


def read(claim: Claim, scale: str, out: Path) -> Result:
    """What the file of a claim holds, if it is of the study as it is now."""
    held = _json(out / scale / f"{claim.id}.json")
    if held.get("settings") != settings(claim, scale):
        return Result(claim, scale, {})
    return Result(claim, scale, {int(seed): _opened(row) for seed, row in held["rows"].items()})


def write(result: Result, out: Path) -> None:
    claim = result.claim
    held = {
        "id": claim.id,
        "claim": claim.sentence,
        "scale": result.scale,
        "verdict": result.verdict,
        "note": result.note,
        "needs": [str(need) for need in claim.needs],
        "tests": [{name: _finite(value) for name, value in asdict(one).items()} for one in result.judgements],
        "unit": claim.unit,
        "paper": dict(claim.figures),
        "means": {name: _finite(value) for name, value in result.means.items()},
        "rows": {str(seed): _closed(result.rows[seed]) for seed in result.seeds},
        "command": result.command,
        "versions": {"trimtab": trimtab.__version__, "torch": torch.__version__},
        "settings": settings(claim, result.scale),
    }
    if result.rows:
        write_text(out / result.scale / f"{claim.id}.json", json.dumps(held, indent=1) + "\n")


def settings(claim: Claim, scale: str) -> str:
    """A hash of all that the rows depend on, besides their seed."""
    at = scale_of(scale, claim.paper)
    amounts = {
        f.name: describe(getattr(at, f.name)) for f in fields(at) if f.name not in ("seeds", "headline")
    }
    networks = [net.about(at, 0) for net in claim.nets(at)]
    return digest({"id": claim.id, "version": claim.version, "scale": amounts, "networks": networks})


def note_time(out: Path, done: Done) -> None:
    place = out / done.unit.scale / "times.json"
    with shared_files(Path(done.unit.folder)):
        held = _json(place)
        about = held.setdefault("networks" if done.rows is None else done.unit.id, {})
        about[done.network or str(done.unit.seed)] = round(done.seconds, 1)
        write_text(place, json.dumps(held, indent=1, sort_keys=True) + "\n")


def shared_files(work: Path) -> AbstractContextManager[None]:
    """Held while writing what all claims share: several runs may work on one ledger side by side."""
    return only_one(work / "ledger.lock")


def times(out: Path, scale: str) -> dict[str, dict[str, float]]:
    """Seconds by claim and seed, and under `networks` by network."""
    return _json(out / scale / "times.json")


def plain(rows: Mapping[str, Any]) -> dict[str, Any]:
    """Rows as Python numbers and lists of them."""
    return {
        name: value.tolist() if isinstance(value, torch.Tensor) else value for name, value in rows.items()
    }


def _closed(row: Mapping[str, Any]) -> dict[str, Any]:
    """As JSON: a column of images is one line of text."""
    return {name: _text(value) if isinstance(value, list) else _finite(value) for name, value in row.items()}


def _opened(row: Mapping[str, Any]) -> dict[str, Any]:
    def value(held: Any) -> Any:
        if isinstance(held, str):
            return [float(one) for one in held.split()]
        return math.nan if held is None else held

    return {name: value(held) for name, held in row.items()}


def _text(values: Sequence[float]) -> str:
    return " ".join(repr(float(value)).removesuffix(".0") for value in values)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _flat(values: Sequence[Any]) -> Iterator[float]:
    for value in values:
        yield from value if isinstance(value, list) else [value]


def _json(path: Path) -> dict[str, Any]:
    try:
        held = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError):
        raise BadInput(f"{path} cannot be read as results; move it away to start anew") from None
    return held if isinstance(held, dict) else {}
