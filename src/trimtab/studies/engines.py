"""Units of work, and who does them: this process, or the workers of a Ray cluster.

Two functions do all the work, `train_network` and `measure_claim`. They take plain values and return plain
values, so the same grid runs anywhere; only the driver writes results. Networks come first, each once: two
claims that share one never train it at the same time. A worker that is lost has its unit repeated by Ray, and
the unit goes on from what its predecessor left in the shared folder.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimtab.studies.bench import Bench, Tell
from trimtab.studies.claim import Claim, everything
from trimtab.studies.nets import Net, closure
from trimtab.studies.scales import scale_of
from trimtab.train import Diverged
from trimtab.types import BadInput


@dataclass(frozen=True)
class Unit:
    """One claim at one seed."""

    id: str
    scale: str
    seed: int
    folder: str
    """Where networks, sets and measurements are kept."""
    threads: int | None = None


@dataclass(frozen=True)
class Done:
    unit: Unit
    rows: Mapping[str, Any] | None
    """None: a network of the unit was trained, or there was a problem."""
    seconds: float
    network: str = ""
    """Its key."""
    problem: str = ""
    """What a training broke on; the other claims go on."""


def nets_of(claim: Claim, unit: Unit) -> dict[str, Net]:
    scale = scale_of(unit.scale, claim.paper)
    return closure(claim.nets(scale), scale, unit.seed)


def train_network(unit: Unit, key: str, tell: Tell | None = None) -> Done:
    """Train the network of that key, unless it is there."""
    claim, bench, began = *_at(unit, tell), time.perf_counter()
    try:
        bench.network(nets_of(claim, unit)[key])
    except Diverged as broken:
        return Done(unit, None, time.perf_counter() - began, key, str(broken))
    return Done(unit, None, time.perf_counter() - began, key)


def measure_claim(unit: Unit, tell: Tell | None = None) -> Done:
    """The rows of a claim at one seed."""
    claim, bench, began = *_at(unit, tell), time.perf_counter()
    bench.allowed = claim.nets(bench.scale)
    try:
        rows = dict(claim.measure(bench))
    except Diverged as broken:
        return Done(unit, None, time.perf_counter() - began, problem=str(broken))
    return Done(unit, rows, time.perf_counter() - began)


def _at(unit: Unit, tell: Tell | None) -> tuple[Claim, Bench]:
    import torch

    if unit.threads is not None:
        torch.set_num_threads(unit.threads)
    claim = everything()[unit.id]
    return claim, Bench(scale_of(unit.scale, claim.paper), unit.seed, Path(unit.folder), None, tell)


def missing(unit: Unit, skip: set[str]) -> Iterator[str]:
    """The keys of a unit's networks that nobody has trained yet, each once over all units."""
    from trimtab.models.files import WEIGHTS

    for key, net in nets_of(everything()[unit.id], unit).items():
        known = (Path(unit.folder) / "networks" / key / WEIGHTS).exists() or (
            net.given and unit.scale == "paper"
        )
        if key not in skip and not known:
            yield key
        skip.add(key)


def local(units: Sequence[Unit], tell: Tell | None = None) -> Iterator[Done]:
    """One after the other, in this process: a unit's networks, then its measurement."""
    seen: set[str] = set()
    for unit in units:
        for key in missing(unit, seen):
            yield train_network(unit, key, tell)
        yield measure_claim(unit, tell)


def ray(units: Sequence[Unit], tell: Tell | None = None) -> Iterator[Done]:
    """As tasks on Ray: all networks whose start is there, then the rest, then every measurement."""
    try:
        import ray as cluster
    except ImportError:
        raise BadInput("Ray is not installed; pip install 'trimtab[ray]', or take --engine local") from None
    ours = not cluster.is_initialized()
    if ours:
        cluster.init(log_to_driver=False, configure_logging=False)
    remote = cluster.remote(max_retries=3, num_cpus=1)
    train, measure = remote(train_network), remote(measure_claim)
    seen: set[str] = set()
    waves: dict[int, list[tuple[Unit, str]]] = {}
    for unit in units:
        nets = nets_of(everything()[unit.id], unit)
        for key in missing(unit, seen):
            waves.setdefault(sum(1 for _ in nets[key].needs()), []).append((unit, key))
    try:
        for depth in sorted(waves):
            yield from _gathered(cluster, [train.remote(unit, key) for unit, key in waves[depth]])
        yield from _gathered(cluster, [measure.remote(unit) for unit in units])
    finally:
        if ours:
            cluster.shutdown()


def _gathered(cluster: Any, tasks: list[Any]) -> Iterator[Done]:
    """Results as they come; what was wrong with the input is told as such."""
    waiting = list(tasks)
    while waiting:
        ready, waiting = cluster.wait(waiting)
        try:
            yield cluster.get(ready[0])
        except cluster.exceptions.RayTaskError as problem:
            if isinstance(problem.cause, BadInput):
                raise problem.cause from None
            raise


ENGINES: dict[str, Callable[[Sequence[Unit], Tell | None], Iterator[Done]]] = {"local": local, "ray": ray}
