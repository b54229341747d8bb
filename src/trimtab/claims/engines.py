"""Units of work, run in this process or by the workers of a Ray cluster.

Two functions do all the work, `train_network` and `measure_claim`. Their arguments and results are plain
values, so the same grid runs anywhere; only the driver writes results. Each network is trained once, before
the measurements that need it. Ray repeats the unit of a lost worker, which resumes from the files in the
shared folder. An error ends only the units that depend on what failed.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trimtab.claims.bench import Bench, Progress, paused, run_folder
from trimtab.claims.claim import Claim, everything
from trimtab.claims.nets import Net, closure
from trimtab.claims.scales import scale_of
from trimtab.train import Diverged, Stopped
from trimtab.types import BadInput


@dataclass(frozen=True)
class Unit:
    """One claim at one seed."""

    id: str
    """The claim's id."""
    scale: str
    """Name of the scale."""
    seed: int
    """The seed."""
    folder: str
    """Folder of networks, sets and measurements."""
    threads: int | None = None
    """CPU threads of the worker; None leaves them unchanged."""
    published: str = ""
    """Folder of networks that were published with the results."""

    @property
    def shelf(self) -> Path | None:
        """The folder of published networks as a path."""
        return Path(self.published) if self.published else None


@dataclass(frozen=True)
class Done:
    """The outcome of a unit, or of the training of one of its networks."""

    unit: Unit
    """The unit."""
    rows: Mapping[str, Any] | None
    """The measured rows; None after a network was trained, or after an error."""
    seconds: float
    """Wall time."""
    network: str = ""
    """Key of the trained network; empty for a measurement."""
    problem: str = ""
    """The error that ended the work; empty without one."""
    refused: bool = False
    """Whether the error is bad input, not a fault of the study."""
    methods: Mapping[str, int] = field(default_factory=dict)
    """The versions of the methods that measured the rows."""


def nets_of(claim: Claim, unit: Unit) -> dict[str, Net]:
    """Return the networks of a unit by key, in an order in which they can be trained."""
    scale = scale_of(unit.scale, claim.paper)
    return closure(claim.nets(scale), scale, unit.seed)


def train_network(unit: Unit, key: str, progress: Progress | None = None) -> Done:
    """Train the network of a key, unless it exists."""
    start = time.perf_counter()
    try:
        claim, bench = _claim_and_bench(unit, progress)
        bench.network(nets_of(claim, unit)[key])
    except Exception as problem:
        return failure(unit, problem, time.perf_counter() - start, key)
    return Done(unit, None, time.perf_counter() - start, key)


def measure_claim(unit: Unit, progress: Progress | None = None) -> Done:
    """Measure the rows of a claim at one seed."""
    start = time.perf_counter()
    try:
        claim, bench = _claim_and_bench(unit, progress)
        bench.allowed = claim.nets(bench.scale)
        rows = dict(claim.measure(bench))
    except Exception as problem:
        return failure(unit, problem, time.perf_counter() - start)
    return Done(unit, rows, time.perf_counter() - start, methods=dict(bench.methods))


def failure(unit: Unit, problem: BaseException, seconds: float = 0.0, network: str = "") -> Done:
    """Return the outcome of an error: its message, and for an unexpected one its type and line."""
    message = str(problem)
    if not isinstance(problem, Diverged | BadInput):
        frames = traceback.extract_tb(problem.__traceback__)
        where = f" in {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
        message = f"{type(problem).__name__}{where}: {' '.join(message.split())}"
    refused = isinstance(problem, BadInput) and not isinstance(problem, Diverged)
    return Done(unit, None, seconds, network, message, refused)


def _claim_and_bench(unit: Unit, progress: Progress | None) -> tuple[Claim, Bench]:
    import torch

    if unit.threads is not None:
        torch.set_num_threads(unit.threads)
    claim = everything()[unit.id]
    scale = scale_of(unit.scale, claim.paper)
    return claim, Bench(scale, unit.seed, Path(unit.folder), None, progress, unit.shelf)


def missing(unit: Unit, skip: set[str]) -> Iterator[str]:
    """Yield the keys of a unit's networks that are not trained yet; all its keys are added to `skip`."""
    from trimtab.models.files import WEIGHTS

    for key, net in nets_of(everything()[unit.id], unit).items():
        exists = (run_folder(Path(unit.folder), unit.shelf, key) / WEIGHTS).exists() or (
            net.given and unit.scale == "paper"
        )
        if key not in skip and not exists:
            yield key
        skip.add(key)


Failures = dict[str, Done]
"""By the key of a network: how its training failed."""


def blocked(unit: Unit, failures: Failures, key: str | None = None) -> Done | None:
    """Return the failure of a unit, or of its network `key`, if a network that it depends on has failed."""
    nets, scale = nets_of(everything()[unit.id], unit), scale_of(unit.scale, everything()[unit.id].paper)
    needed = nets if key is None else {net.key(scale, unit.seed): net for net in nets[key].needs()}
    for other in needed:
        if other in failures:
            return replace(failures[other], unit=unit, seconds=0.0, network=key or "")
    return None


def local(units: Sequence[Unit], progress: Progress | None = None) -> Iterator[Done]:
    """Run units one after the other in this process: the networks of a unit, then its measurement."""
    seen: set[str] = set()
    failures: Failures = {}
    for unit in units:
        if paused(Path(unit.folder)):
            return
        for key in missing(unit, seen):
            if paused(Path(unit.folder)):
                return
            try:
                done = blocked(unit, failures, key) or train_network(unit, key, progress)
            except Stopped:
                if paused(Path(unit.folder)):
                    return
                raise
            if done.problem:
                failures[key] = done
            yield done
        yield blocked(unit, failures) or measure_claim(unit, progress)


def ray(units: Sequence[Unit], progress: Progress | None = None) -> Iterator[Done]:
    """Run units as tasks on Ray: networks in the order of their dependencies, then all measurements.

    At the paper's scale each task requires a GPU, if the cluster has any.
    """
    try:
        import ray as cluster
    except ImportError:
        raise BadInput("Ray is not installed; pip install 'trimtab[ray]', or take --engine local") from None
    ours = not cluster.is_initialized()
    if ours:
        cluster.init(log_to_driver=False, configure_logging=False)
    gpus = 1 if cluster.cluster_resources().get("GPU") and any(u.scale == "paper" for u in units) else 0
    remote = cluster.remote(max_retries=3, num_cpus=1, num_gpus=gpus)
    train, measure = remote(train_network), remote(measure_claim)
    seen: set[str] = set()
    failures: Failures = {}
    waves: dict[int, list[tuple[Unit, str]]] = {}
    for unit in units:
        nets = nets_of(everything()[unit.id], unit)
        for key in missing(unit, seen):
            waves.setdefault(sum(1 for _ in nets[key].needs()), []).append((unit, key))
    try:
        for depth in sorted(waves):
            for done in _gathered(
                cluster, train, [(unit, key, blocked(unit, failures, key)) for unit, key in waves[depth]]
            ):
                if done.problem:
                    failures[done.network] = done
                yield done
        yield from _gathered(cluster, measure, [(unit, "", blocked(unit, failures)) for unit in units])
    finally:
        if ours:
            cluster.shutdown()


def _gathered(cluster: Any, task: Any, jobs: Sequence[tuple[Unit, str, Done | None]]) -> Iterator[Done]:
    """Yield results as they arrive; jobs whose outcome is known (they are blocked) do not run."""
    waiting = {}
    for unit, key, known in jobs:
        if known is not None:
            yield known
        else:
            waiting[task.remote(unit, key) if key else task.remote(unit)] = unit, key
    while waiting:
        for ready in cluster.wait(list(waiting))[0]:
            unit, key = waiting.pop(ready)
            try:
                yield cluster.get(ready)
            except cluster.exceptions.RayError as problem:  # such as a worker that was lost too often
                yield failure(unit, problem, network=key)


ENGINES: dict[str, Callable[[Sequence[Unit], Progress | None], Iterator[Done]]] = {"local": local, "ray": ray}
