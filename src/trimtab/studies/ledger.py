"""Results on disk: one file per claim and scale, whole after every seed, judged by the claim's rules.

    OUT/SCALE/ID.json     rows per seed, tests with intervals, verdict, what it all depended on
    OUT/SCALE/times.json  seconds, apart: the same seeds give the same bytes in every other file
    OUT/SCALE/ledger.json, ledger.md   all claims at a glance

A seed that is in the file is not measured again, unless what it depends on has changed: its settings (the
claim's version, the scale's amounts, its networks, its own tables), the version of a method that measured it,
or what the tests ask for. Then it must be run again.

Several runs may share one ledger: who writes holds a lock, reads what is there, and adds its own rows. A seed
that failed is kept with the reason: a claim is not judged by the seeds that survived. It is tried again
whenever the claim is run.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

import trimtab
from trimtab.keys import describe, digest
from trimtab.studies import verdicts
from trimtab.studies.bench import Tell, only_one
from trimtab.studies.claim import Claim
from trimtab.studies.engines import ENGINES, Done, Unit
from trimtab.studies.methods import changed
from trimtab.studies.scales import Scale, scale_of
from trimtab.train.runs import write_text
from trimtab.types import BadInput

Rows = dict[int, dict[str, Any]]
"""By seed: numbers by name, or lists of one per image."""
NOT_YET = "not run yet"
AGAIN = "must be run again"


@dataclass(frozen=True)
class Result:
    """What is known of a claim at a scale."""

    claim: Claim
    scale: str
    rows: Rows
    failed: dict[int, str] = field(default_factory=dict)
    """By seed: why it could not be measured."""
    methods: dict[str, int] = field(default_factory=dict)
    """The versions of what measured the rows."""
    outdated: bool = False
    """Whether there were rows of the study as it no longer is."""

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
        if self.failed:
            return verdicts.INCONCLUSIVE
        if not self.rows:
            return AGAIN if self.outdated else NOT_YET
        if self.unmet:
            return verdicts.INCONCLUSIVE
        return verdicts.overall(self.judgements, small=self.scale != "paper")

    @property
    def note(self) -> str:
        """Why nothing follows from the tests, where that is so."""
        told = [f"seed {seed} failed ({why})" for seed, why in sorted(self.failed.items())]
        if self.unmet:
            told.append(f"{verdicts.TOO_WEAK}: {'; '.join(self.unmet)}")
        return "; ".join(told)

    @property
    def means(self) -> dict[str, float]:
        """Every row, averaged over seeds (and images); one that is no number somewhere has no mean."""
        named = dict.fromkeys(name for row in self.rows.values() for name in row)
        found = {
            name: fmean(_flat([row[name] for row in self.rows.values() if name in row])) for name in named
        }
        return {name: value for name, value in found.items() if math.isfinite(value)}

    @property
    def command(self) -> str:
        """What measures these seeds."""
        plain, tried = f"trimtab reproduce {self.claim.id} --scale {self.scale}", [*self.rows, *self.failed]
        return f"{plain} --seeds {max(tried) + 1}" if tried else plain


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
    measured, refused = 0, set()
    for done in ENGINES[engine](todo, tell):
        result = results[done.unit.id]
        if not done.problem:
            note_time(out, done)
        if done.rows is not None:
            result.rows[done.unit.seed] = plain(done.rows)
            result.failed.pop(done.unit.seed, None)
            result.methods.update(done.methods)
            measured += 1
        elif done.refused:
            refused.add(done.problem)
        elif done.problem and not done.network:
            result.failed[done.unit.seed] = done.problem
        if done.rows is not None or not done.network:
            write(result, out)
        if told is not None:
            told(done, measured, len(todo))
    if len(refused) == 1 and not measured and not any(result.failed for result in results.values()):
        raise BadInput(refused.pop())  # nothing could be done, for one reason: the data are not there, say
    for result in results.values():
        write(result, out)  # rows that were there may be judged by other tests now
    return list(results.values())


# ---- files ---------------------------------------------------------------------------------------------


def read(claim: Claim, scale: str, out: Path) -> Result:
    """What the file of a claim holds, as far as it is of the study as it is now."""
    return _held(claim, scale, _json(_place(out, scale, claim)))


def _held(claim: Claim, scale: str, held: Mapping[str, Any]) -> Result:
    if not held:
        return Result(claim, scale, {})
    methods = held.get("methods", {})
    if held.get("settings") != settings(claim, scale) or changed(methods):
        return Result(claim, scale, {}, outdated=True)
    asked = {name for one in (*claim.tests, *claim.needs) for name in one.names}
    rows = {int(seed): _opened(row) for seed, row in held["rows"].items()}
    whole = {seed: row for seed, row in rows.items() if asked <= row.keys()}
    failed = {int(seed): why for seed, why in held.get("failed", {}).items()}
    return Result(claim, scale, whole, failed, dict(methods), outdated=len(whole) < len(rows))


def write(result: Result, out: Path) -> None:
    """Add to the file of a claim what it does not hold yet; the result learns what others have added."""
    if not result.rows and not result.failed:
        return
    claim, place = result.claim, _place(out, result.scale, result.claim)
    with shared_files(out, result.scale):
        there = _held(claim, result.scale, _json(place))
        for seed, row in there.rows.items():
            result.rows.setdefault(seed, row)
        for seed, why in there.failed.items():
            result.failed.setdefault(seed, why)
        for seed in result.rows:
            result.failed.pop(seed, None)
        result.methods.update({**there.methods, **result.methods})
        text = json.dumps(_about(result), indent=1) + "\n"
        if not place.exists() or place.read_text() != text:
            write_text(place, text)


def _about(result: Result) -> dict[str, Any]:
    claim = result.claim
    return {
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
        "failed": {str(seed): result.failed[seed] for seed in sorted(result.failed)},
        "command": result.command,
        "versions": {"trimtab": trimtab.__version__, "torch": torch.__version__},
        "methods": dict(sorted(result.methods.items())),
        "settings": settings(claim, result.scale),
    }


def _place(out: Path, scale: str, claim: Claim) -> Path:
    return out / scale / f"{claim.id}.json"


def settings(claim: Claim, scale: str) -> str:
    """A hash of all that the rows depend on, besides their seed."""
    at = scale_of(scale, claim.paper)
    elsewhere = ("seeds", "headline", "match_step")  # the last is told of each set that is made by it
    amounts = {f.name: describe(getattr(at, f.name)) for f in fields(at) if f.name not in elsewhere}
    networks = [net.about(at, 0) for net in claim.nets(at)]
    about = {"id": claim.id, "version": claim.version, "scale": amounts, "networks": networks}
    if claim.tables is not None:
        about["tables"] = describe(claim.tables(at))
    return digest(about)


def note_time(out: Path, done: Done) -> None:
    place = out / done.unit.scale / "times.json"
    with shared_files(out, done.unit.scale):
        held = _json(place)
        about = held.setdefault("networks" if done.rows is None else done.unit.id, {})
        about[done.network or str(done.unit.seed)] = round(done.seconds, 1)
        write_text(place, json.dumps(held, indent=1, sort_keys=True) + "\n")


def shared_files(out: Path, scale: str) -> AbstractContextManager[None]:
    """Held while writing: several runs may work on one ledger side by side."""
    return only_one(out / scale / ".lock")


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
