"""Results on disk: one file per claim and scale, complete after every seed, judged by the claim's rules.

    OUT/SCALE/ID.json     rows per seed, tests with intervals, verdict, everything that they depend on
    OUT/SCALE/times.json  seconds, in a separate file: the same seeds give the same bytes in every other file
    OUT/SCALE/ledger.json, ledger.md   overview of all claims

A seed in the file is not measured again unless something that it depends on has changed: its settings (the
claim's version, the scale's amounts, its networks, its own tables), the version of a method that measured it,
or the rows that the tests need. Then it must be run again.

Several runs may share one ledger: each takes a lock, reads the file and adds its own rows. A failed seed is
kept with the reason, since a claim must not be judged by the surviving seeds alone. It is tried again
whenever the claim is run.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from trimtab.claims.bench import Progress, locked
from trimtab.claims.claim import Claim
from trimtab.claims.engines import ENGINES, Done, Unit
from trimtab.claims.result import NOT_YET, Result, from_json, plain, settings, to_json, units
from trimtab.claims.scales import Scale, scale_of
from trimtab.train import write_text
from trimtab.types import BadInput

__all__ = [
    "FROZEN", "Result", "cpu_name", "note_time", "read", "require_open", "run", "seeds_for", "settings",
    "shared_files", "stored_verdict", "times", "units", "write",
]  # fmt: skip

FROZEN = "FROZEN"
"""A folder of results that contains a file of this name is a closed edition: no command writes to it."""


def run(
    claims: Sequence[Claim],
    scale: str,
    out: Path,
    work: Path,
    seeds: int | None = None,
    engine: str = "local",
    threads: int | None = None,
    progress: Progress | None = None,
    on_done: Callable[[Done, int, int], None] | None = None,
) -> list[Result]:
    """Measure the missing seeds of claims and judge them; the files are complete at every moment.

    Args:
        claims: The claims.
        scale: Name of the scale.
        out: Folder of the results.
        work: Folder of networks, constructed sets and measurements, shared between claims.
        seeds: Number of seeds; by default the number that the scale plans.
        engine: A name in `ENGINES`.
        threads: CPU threads of each worker.
        progress: Called with what is being made, and the fraction of it that is done.
        on_done: Called after every network and measurement, with the numbers of measured and of all units.
    """
    require_open(out, scale)
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
    measured, refusals = 0, set()
    for done in ENGINES[engine](todo, progress):
        _record(results[done.unit.id], done, out)
        measured += done.rows is not None
        if done.refused:
            refusals.add(done.problem)
        if on_done is not None:
            on_done(done, measured, len(todo))
    if len(refusals) == 1 and not measured and not any(result.failed for result in results.values()):
        raise BadInput(refusals.pop())  # a single reason, such as missing data, and nothing was measured
    for result in results.values():
        write(result, out)  # the tests of stored rows may have changed
    return list(results.values())


def _record(result: Result, done: Done, out: Path) -> None:
    """Add a finished unit to the result of its claim, and write it."""
    if not done.problem:
        note_time(out, done)
    if done.rows is not None:
        result.rows[done.unit.seed] = plain(done.rows)
        result.failed.pop(done.unit.seed, None)
        result.methods.update(done.methods)
        result.cpu = cpu_name()
    elif done.problem and not done.refused and not done.network:
        result.failed[done.unit.seed] = done.problem
    if done.rows is not None or not done.network:
        write(result, out)


def seeds_for(claim: Claim, scale: Scale) -> int:
    """Return the number of seeds that a scale plans for a claim."""
    return scale.headline if claim.headline else scale.seeds


def cpu_name() -> str:
    """Return the name of this CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


# ---- files ---------------------------------------------------------------------------------------------


def read(claim: Claim, scale: str, out: Path) -> Result:
    """Return the stored result of a claim, without rows of earlier versions of its study."""
    return from_json(claim, scale, _json(_path(out, scale, claim)))


def write(result: Result, out: Path) -> None:
    """Add a result to the file of its claim, and to the result the rows that other runs have added."""
    if not result.rows and not result.failed:
        return
    claim, path = result.claim, _path(out, result.scale, result.claim)
    require_open(out, result.scale)
    with shared_files(out, result.scale):
        stored = from_json(claim, result.scale, _json(path))
        for seed, row in stored.rows.items():
            result.rows.setdefault(seed, row)
        for seed, why in stored.failed.items():
            result.failed.setdefault(seed, why)
        for seed in result.rows:
            result.failed.pop(seed, None)
        result.methods.update({**stored.methods, **result.methods})
        result.cpu = result.cpu or stored.cpu
        text = json.dumps(to_json(result), indent=1) + "\n"
        if not path.exists() or path.read_text() != text:
            write_text(path, text)


def note_time(out: Path, done: Done) -> None:
    """Add the seconds of a unit to `times.json`."""
    require_open(out, done.unit.scale)
    path = out / done.unit.scale / "times.json"
    with shared_files(out, done.unit.scale):
        seconds = _json(path)
        of_claim = seconds.setdefault("networks" if done.rows is None else done.unit.id, {})
        of_claim[done.network or str(done.unit.seed)] = round(done.seconds, 1)
        write_text(path, json.dumps(seconds, indent=1, sort_keys=True) + "\n")


def require_open(out: Path, scale: str) -> None:
    """Refuse to write into a closed edition."""
    if (out / scale / FROZEN).exists():
        raise BadInput(f"{out / scale} is a frozen edition and is not changed; give another --out")


def stored_verdict(claim: Claim, scale: str, out: Path) -> str:
    """Return the verdict to show: for a frozen edition the stored one, which is never judged again."""
    if (out / scale / FROZEN).exists():
        return str(_json(_path(out, scale, claim)).get("verdict", NOT_YET))
    return read(claim, scale, out).verdict


def shared_files(out: Path, scale: str) -> AbstractContextManager[None]:
    """Lock the results of a scale for writing: several runs may share one ledger."""
    return locked(out / scale / ".lock")


def times(out: Path, scale: str) -> dict[str, dict[str, float]]:
    """Return seconds by claim and seed, and under `networks` by network."""
    return _json(out / scale / "times.json")


def _path(out: Path, scale: str, claim: Claim) -> Path:
    return out / scale / f"{claim.id}.json"


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError):
        raise BadInput(f"{path} cannot be read as results; move it away to start anew") from None
    return content if isinstance(content, dict) else {}
