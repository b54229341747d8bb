"""Units of work, and who does them: this process, or the workers of a Ray cluster.

Two functions do all the work, `train_network` and `measure_claim`. They take plain values and return plain
values, so the same grid runs anywhere; only the driver writes results. Networks come first, each once: two
claims that share one never train it at the same time. A worker that is lost has its unit repeated by Ray, and
the unit goes on from what its predecessor left in the shared folder. What breaks ends only the units that
rest on it.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    """What it broke on; the other claims go on."""
    refused: bool = False
    """Whether that was the input: no fault of the study's."""
    methods: Mapping[str, int] = field(default_factory=dict)
    """The versions of what measured the rows."""


def nets_of(claim: Claim, unit: Unit) -> dict[str, Net]:
    scale = scale_of(unit.scale, claim.paper)
    return closure(claim.nets(scale), scale, unit.seed)


def train_network(unit: Unit, key: str, tell: Tell | None = None) -> Done:
    """Train the network of that key, unless it is there."""
    began = time.perf_counter()
    try:
        claim, bench = _at(unit, tell)
        bench.network(nets_of(claim, unit)[key])
    except Exception as problem:
        return failed(unit, problem, time.perf_counter() - began, key)
    return Done(unit, None, time.perf_counter() - began, key)


def measure_claim(unit: Unit, tell: Tell | None = None) -> Done:
    """The rows of a claim at one seed."""
    began = time.perf_counter()
    try:
        claim, bench = _at(unit, tell)
        bench.allowed = claim.nets(bench.scale)
        rows = dict(claim.measure(bench))
    except Exception as problem:
        return failed(unit, problem, time.perf_counter() - began)
    return Done(unit, rows, time.perf_counter() - began, methods=dict(bench.methods))


def failed(unit: Unit, problem: BaseException, seconds: float = 0.0, network: str = "") -> Done:
    """What went wrong, in a sentence; of a fault that nobody foresaw also where."""
    words = str(problem)
    if not isinstance(problem, Diverged | BadInput):
        frames = traceback.extract_tb(problem.__traceback__)
        where = f" in {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
        words = f"{type(problem).__name__}{where}: {' '.join(words.split())}"
    refused = isinstance(problem, BadInput) and not isinstance(problem, Diverged)
    return Done(unit, None, seconds, network, words, refused)


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


Broken = dict[str, Done]
"""By the key of a network: how its training ended."""


def resting(unit: Unit, broken: Broken, key: str | None = None) -> Done | None:
    """The failure of a unit, or of one of its networks, that rests on a network that broke."""
    nets, scale = nets_of(everything()[unit.id], unit), scale_of(unit.scale, everything()[unit.id].paper)
    below = nets if key is None else {one.key(scale, unit.seed): one for one in nets[key].needs()}
    for one in below:
        if one in broken:
            return replace(broken[one], unit=unit, seconds=0.0, network=key or "")
    return None


def local(units: Sequence[Unit], tell: Tell | None = None) -> Iterator[Done]:
    """One after the other, in this process: a unit's networks, then its measurement."""
    seen: set[str] = set()
    broken: Broken = {}
    for unit in units:
        for key in missing(unit, seen):
            done = resting(unit, broken, key) or train_network(unit, key, tell)
            if done.problem:
                broken[key] = done
            yield done
        yield resting(unit, broken) or measure_claim(unit, tell)


def ray(units: Sequence[Unit], tell: Tell | None = None) -> Iterator[Done]:
    """As tasks on Ray: all networks whose start is there, then the rest, then every measurement.

    At the paper's scale each task asks for a GPU, if the cluster has any.
    """
    try:
        import ray as cluster
    except ImportError:
        raise BadInput("Ray is not installed; pip install 'trimtab[ray]', or take --engine local") from None
    ours = not cluster.is_initialized()
    if ours:
        cluster.init(log_to_driver=False, configure_logging=False)
    wanted = 1 if cluster.cluster_resources().get("GPU") and any(u.scale == "paper" for u in units) else 0
    remote = cluster.remote(max_retries=3, num_cpus=1, num_gpus=wanted)
    train, measure = remote(train_network), remote(measure_claim)
    seen: set[str] = set()
    broken: Broken = {}
    waves: dict[int, list[tuple[Unit, str]]] = {}
    for unit in units:
        nets = nets_of(everything()[unit.id], unit)
        for key in missing(unit, seen):
            waves.setdefault(sum(1 for _ in nets[key].needs()), []).append((unit, key))
    try:
        for depth in sorted(waves):
            for done in _gathered(
                cluster, train, [(*one, resting(one[0], broken, one[1])) for one in waves[depth]]
            ):
                if done.problem:
                    broken[done.network] = done
                yield done
        yield from _gathered(cluster, measure, [(unit, "", resting(unit, broken)) for unit in units])
    finally:
        if ours:
            cluster.shutdown()


def _gathered(cluster: Any, task: Any, asked: Sequence[tuple[Unit, str, Done | None]]) -> Iterator[Done]:
    """Results as they come, of what does not rest on something broken."""
    waiting = {}
    for unit, key, known in asked:
        if known is not None:
            yield known
        else:
            waiting[task.remote(unit, key) if key else task.remote(unit)] = unit, key
    while waiting:
        for ready in cluster.wait(list(waiting))[0]:
            unit, key = waiting.pop(ready)
            try:
                yield cluster.get(ready)
            except cluster.exceptions.RayError as problem:  # a worker was lost too often, say
                yield failed(unit, problem, network=key)


ENGINES: dict[str, Callable[[Sequence[Unit], Tell | None], Iterator[Done]]] = {"local": local, "ray": ray}
