"""Results on disk: one file per claim and scale, complete after every seed, judged by the claim's rules.

    OUT/SCALE/ID.json           summary, rows and per-image outcomes of every seed, and what they depend on
    OUT/SCALE/networks/KEY/     trained networks (scale desk), so that another machine can resume
    OUT/SCALE/times.json        seconds, in a separate file: the same seeds give the same bytes elsewhere
    OUT/SCALE/ledger.json, .md  overview of all claims

A measured seed is not measured again while its file is valid (`result`). Several runs may share one ledger:
each takes a lock, reads the file and adds its own rows. A failed seed is kept with the reason, since a claim
must not be judged by the surviving seeds alone. It is tried again whenever the claim is run.
"""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from trimtab.claims import engines
from trimtab.claims.bench import StudyProgress, locked
from trimtab.claims.claim import Claim
from trimtab.claims.engines import Done, Unit
from trimtab.claims.result import NOT_YET, Result, from_json, plain, to_json
from trimtab.claims.scales import ROW_OF, scale_of
from trimtab.io import atomic_write
from trimtab.models.files import WEIGHTS
from trimtab.train import write_text
from trimtab.types import BadInput

MOST_PUBLISHED = 60_000_000
"""Limit of the published networks in bytes, half of it for seeds other than 0; networks beyond it are trained
again where they are needed."""
PUBLISHED = ("recipe.yaml", "environment.json", "metrics.jsonl", "model.json", WEIGHTS)
"""The files of a published network."""
FROZEN = "FROZEN"
"""A folder of results that contains a file of this name is a closed edition: no command writes to it."""


def run(
    claims: Sequence[Claim],
    scale: str,
    out: Path,
    work: Path,
    seeds: int | None = None,
    engine: str = "local",
    workers: int = 1,
    threads: int | None = None,
    progress: StudyProgress | None = None,
    on_done: Callable[[Done, int, int], None] | None = None,
) -> list[Result]:
    """Measure the missing seeds of claims and judge them; the files are complete at every moment.

    Args:
        claims: The claims.
        scale: Name of the scale.
        out: Folder of the results.
        work: Folder of networks, constructed sets and measurements, shared between claims.
        seeds: Number of seeds; by default the number that the scale plans.
        engine: A name in `engines.ENGINES`.
        workers: Processes of the local engine.
        threads: CPU threads of each worker.
        progress: Called with what is being made, and the fraction of it that is done.
        on_done: Called after every network and measurement, with the numbers of measured and of all claims
            and seeds.
    """
    require_open(out, scale)
    if engine not in engines.ENGINES:
        raise BadInput(f"there is no engine {engine!r}; there are {', '.join(engines.ENGINES)}")
    if seeds is not None and seeds < 1:
        raise BadInput(f"a claim needs at least one seed, found {seeds}")
    results = {claim.id: read(claim, scale, out) for claim in claims}
    todo = [
        Unit(claim.id, scale, seed, str(work), threads, str(networks(out, scale)))
        for claim, seed in in_order(claims, scale, seeds)
        if seed not in results[claim.id].rows
    ]
    measured, refusals = 0, set()
    for done in engines.run(todo, engine, workers, progress):
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


def in_order(claims: Sequence[Claim], scale: str, seeds: int | None = None) -> list[tuple[Claim, int]]:
    """Return claims and seeds in the order of their measurement.

    Claims of a row of `WAVE1` share networks: their first seeds come before the second ones. Other claims are
    rows of their own.

    Args:
        claims: The claims.
        scale: Name of the scale.
        seeds: Seeds per claim; by default the number that the scale plans.
    """
    places: list[Any] = list(dict.fromkeys(ROW_OF.get(claim.id, claim.id) for claim in claims))
    pairs = [
        (claim, seed)
        for claim in claims
        for seed in range(seeds or claim.planned(scale_of(scale, claim.paper)))
    ]
    return sorted(pairs, key=lambda pair: (places.index(ROW_OF.get(pair[0].id, pair[0].id)), pair[1]))


def _record(result: Result, done: Done, out: Path) -> None:
    """Add a finished unit to the result of its claim, and write it."""
    unit = done.unit
    if not done.problem:
        note_time(out, done)
    if unit.network:
        if not done.problem and unit.scale == "desk":
            publish_network(unit, out)
        return
    if done.rows is not None:
        result.rows[unit.seed] = plain(done.rows)
        result.failed.pop(unit.seed, None)
        result.methods.update(done.methods)
        result.cpu = cpu_name()
    elif not done.refused:
        result.failed[unit.seed] = done.problem
    write(result, out)


def publish_network(unit: Unit, out: Path) -> None:
    """Copy a trained network to the results, up to `MOST_PUBLISHED` bytes in all.

    Args:
        unit: The unit that trained it.
        out: Folder of the results.
    """
    shelf, source = networks(out, unit.scale), Path(unit.folder) / "networks" / unit.network
    sizes = [path.stat().st_size for path in shelf.rglob("*") if path.is_file()]
    most = MOST_PUBLISHED if unit.seed == 0 else MOST_PUBLISHED // 2
    if sum(sizes) + (source / WEIGHTS).stat().st_size > most:
        return
    for name in PUBLISHED:  # the weights last: they say that the network is there
        with atomic_write(shelf / unit.network / name) as part:
            part.write_bytes((source / name).read_bytes())


def networks(out: Path, scale: str) -> Path:
    """Return the folder of the networks that are published with the results."""
    return out / scale / "networks"


def cpu_name() -> str:
    """Return the name of this CPU."""
    with suppress(OSError):
        if name := re.search(r"^model name\s*: (.*\S)", Path("/proc/cpuinfo").read_text(), re.MULTILINE):
            return name[1]
    return platform.processor() or platform.machine()


# ---- files ---------------------------------------------------------------------------------------------


def read(claim: Claim, scale: str, out: Path) -> Result:
    """Return the stored result of a claim, without rows of earlier versions of its study."""
    return from_json(claim, scale, stored(out / scale / f"{claim.id}.json"))


def write(result: Result, out: Path) -> None:
    """Add a result to the file of its claim, and to the result the rows that other runs have added."""
    if not result.rows and not result.failed:
        return
    with writing(out, result.scale):
        other = read(result.claim, result.scale, out)
        result.rows = other.rows | result.rows
        failed = other.failed | result.failed
        result.failed = {seed: why for seed, why in failed.items() if seed not in result.rows}
        result.methods = other.methods | result.methods
        result.cpu = result.cpu or other.cpu
        replace_text(out / result.scale / f"{result.claim.id}.json", to_json(result))


def note_time(out: Path, done: Done) -> None:
    """Add the seconds of a unit to `times.json`."""
    unit = done.unit
    with writing(out, unit.scale):
        seconds = times(out, unit.scale)
        of_kind = seconds.setdefault("networks" if unit.network else unit.id, {})
        of_kind[unit.network or str(unit.seed)] = round(done.seconds, 1)
        replace_text(out / unit.scale / "times.json", dict(sorted(seconds.items())))


def times(out: Path, scale: str) -> dict[str, dict[str, float]]:
    """Return seconds by claim and seed, and under `networks` by network."""
    return stored(out / scale / "times.json")


def require_open(out: Path, scale: str) -> None:
    """Refuse to write into a closed edition."""
    if (out / scale / FROZEN).exists():
        raise BadInput(f"{out / scale} is a frozen edition and is not changed; give another --out")


def stored_verdict(claim: Claim, scale: str, out: Path) -> str:
    """Return the verdict to show: for a frozen edition the stored one, which is never judged again."""
    if (out / scale / FROZEN).exists():
        return str(stored(out / scale / f"{claim.id}.json").get("verdict", NOT_YET))
    return read(claim, scale, out).verdict


@contextmanager
def writing(out: Path, scale: str) -> Iterator[None]:
    """Lock the results of a scale for writing, which several runs may share; refuse a closed edition."""
    require_open(out, scale)
    with locked(out / scale / ".lock"):
        yield


def stored(path: Path) -> dict[str, Any]:
    """Return the content of a JSON file of results; nothing if there is no such file."""
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError):
        raise BadInput(f"{path} cannot be read as results; move it away to start anew") from None
    return content if isinstance(content, dict) else {}


def replace_text(path: Path, content: Any) -> None:
    """Write text, or other content as JSON, unless the file already contains it."""
    text = content if isinstance(content, str) else json.dumps(content, indent=1) + "\n"
    if not path.exists() or path.read_text() != text:
        write_text(path, text)
