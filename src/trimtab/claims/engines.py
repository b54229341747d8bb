"""Units of work, run in this process, in several processes, or by the workers of a Ray cluster.

A unit trains one network or measures one claim at one seed. `perform` does either; its argument and result
are plain values, so the same grid runs anywhere, and only the driver writes results. A unit starts when the
networks that it needs are trained. Killed, it resumes from the files in the shared folder; an error ends only
the units that depend on what failed; a file PAUSE in the folder ends a run, its state saved. A unit that
takes longer than `LONGEST` is stopped in the same way and continued as the next one.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trimtab.claims.bench import Bench, StudyProgress, paused
from trimtab.claims.claim import Claim, everything
from trimtab.claims.nets import Net, closure
from trimtab.claims.scales import Scale, scale_of
from trimtab.train import Diverged, Stopped
from trimtab.types import BadInput

LONGEST = 35 * 60.0
"""Seconds after which a unit is stopped, its state saved, and continued: a kill costs less than that."""


@dataclass(frozen=True)
class Unit:
    """The training of one network, or the measurement of one claim, at one seed."""

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
    network: str = ""
    """Key of the network to train; empty to measure the claim."""

    @property
    def claim(self) -> Claim:
        """The claim."""
        return everything()[self.id]

    @property
    def at(self) -> Scale:
        """The scale, with the settings of the claim's paper."""
        return scale_of(self.scale, self.claim.paper)

    @property
    def networks(self) -> dict[str, Net]:
        """The networks that the claim needs by key, in an order in which they can be trained."""
        return closure(self.claim.nets(self.at, self.seed), self.at, self.seed)

    @property
    def needs(self) -> set[str]:
        """Keys of the networks that must be trained before it."""
        if not self.network:
            return {*self.networks}
        return {net.key(self.at, self.seed) for net in self.networks[self.network].needs(self.at)}

    @property
    def kind(self) -> str:
        """What it has in common with the units of other seeds."""
        return self.networks[self.network].key(self.at, 0) if self.network else self.id

    def bench(self, progress: StudyProgress | None = None) -> Bench:
        """Return the bench that it runs on."""
        shelf = Path(self.published) if self.published else None
        until = time.monotonic() + LONGEST
        return Bench(self.at, self.seed, Path(self.folder), None, progress, shelf, until=until)


@dataclass(frozen=True)
class Done:
    """The outcome of a unit."""

    unit: Unit
    """The unit."""
    rows: Mapping[str, Any] | None = None
    """The measured rows; None of a network, and after an error."""
    seconds: float = 0.0
    """CPU time, which other work on the machine does not lengthen."""
    problem: str = ""
    """The error that ended the work; empty without one."""
    refused: bool = False
    """Whether the error is bad input, not a fault of the study."""
    methods: Mapping[str, int] = field(default_factory=dict)
    """The versions of the methods that measured the rows."""
    stopped: bool = False
    """Whether it was stopped, by the file PAUSE or after `LONGEST`."""


def perform(unit: Unit, progress: StudyProgress | None = None) -> Done:
    """Train the network of a unit, or measure its claim; an error is part of the outcome."""
    import torch

    start, rows = time.process_time(), None
    if unit.threads is not None:
        torch.set_num_threads(unit.threads)
    bench = unit.bench(progress)
    try:
        if unit.network:
            bench.network(unit.networks[unit.network])
        else:
            bench.allowed = unit.claim.nets(bench.scale, unit.seed)
            rows = dict(unit.claim.measure(bench))
    except Stopped:
        if not bench.must_stop:
            raise
        return Done(unit, None, time.process_time() - start, stopped=True)
    except Exception as problem:
        return failure(unit, problem, time.process_time() - start)
    return Done(unit, rows, time.process_time() - start, methods=bench.methods)


def failure(unit: Unit, problem: BaseException, seconds: float = 0.0) -> Done:
    """Return the outcome of an error: its message, and for an unexpected one its type and line."""
    message = str(problem)
    if not isinstance(problem, Diverged | BadInput):
        frames = traceback.extract_tb(problem.__traceback__)
        where = f" in {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
        message = f"{type(problem).__name__}{where}: {' '.join(message.split())}"
    refused = isinstance(problem, BadInput) and not isinstance(problem, Diverged)
    return Done(unit, None, seconds, message, refused)


def with_networks(units: Sequence[Unit]) -> Iterator[Unit]:
    """Yield measurements, each after the units that train its networks; a shared network comes once."""
    seen: set[str] = set()
    for unit in units:
        for key, net in unit.networks.items():
            if key not in seen and not (net.given and unit.scale == "paper"):
                yield replace(unit, network=key)
            seen.add(key)
        yield unit


def run(
    units: Sequence[Unit], engine: str = "local", workers: int = 1, progress: StudyProgress | None = None
) -> Iterator[Done]:
    """Run measurements with the networks that they need; yield outcomes as they arrive.

    Args:
        units: The measurements, the most important first.
        engine: A name in `ENGINES`.
        workers: Number of local processes; 1 is this process.
        progress: Called with what is being made, if that is in this process.
    """
    waiting = [u for u in with_networks(units) if not u.network or not u.bench().trained(u.network)]
    untrained = {unit.network for unit in waiting if unit.network}
    failures: dict[str, Done] = {}
    seconds: defaultdict[Unit, float] = defaultdict(float)  # of all parts of a unit
    running: dict[Future[Done], Unit] = {}
    with ENGINES[engine](units, workers, progress) as (submit, slots):
        while waiting or running:
            for unit in list(waiting):
                failed = [failures[key] for key in unit.needs if key in failures]
                if failed:
                    waiting.remove(unit)
                    yield (blocked := replace(failed[0], unit=unit, seconds=0.0))
                    failures |= {unit.network: blocked} if unit.network else {}
                elif len(running) < slots and not unit.needs & untrained and not paused(Path(unit.folder)):
                    waiting.remove(unit)
                    running[submit(unit)] = unit
            if not running:
                return  # paused
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                unit, problem = running.pop(future), future.exception()  # of a worker that was killed
                done = failure(unit, problem) if isinstance(problem, Exception) else future.result()
                seconds[done.unit] += done.seconds
                if done.stopped:
                    waiting.insert(0, done.unit)
                    continue
                untrained.discard(done.unit.network)
                if done.problem and done.unit.network:
                    failures[done.unit.network] = done
                yield replace(done, seconds=seconds[done.unit])


# ---- engines: each yields a function that starts a unit, and how many may run at once --------------------

Submit = tuple[Callable[[Unit], "Future[Done]"], float]


@contextmanager
def local(units: Sequence[Unit], workers: int, progress: StudyProgress | None) -> Iterator[Submit]:
    """Run units in this process, or in several that end with it."""

    def here(unit: Unit) -> Future[Done]:
        future: Future[Done] = Future()
        future.set_result(perform(unit, progress))
        return future

    if workers == 1:
        yield here, 1
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, initializer=_end_with_parent) as pool:
        yield lambda unit: pool.submit(perform, unit), workers


def _end_with_parent() -> None:
    """End this worker when its parent is gone, even if that was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def ray(units: Sequence[Unit], workers: int, progress: StudyProgress | None) -> Iterator[Submit]:
    """Run units as tasks on Ray; at the paper's scale each requires a GPU, if the cluster has any."""
    try:
        import ray as cluster
    except ImportError:
        raise BadInput("Ray is not installed; pip install 'trimtab[ray]', or take --engine local") from None
    ours = not cluster.is_initialized()
    if ours:
        cluster.init(log_to_driver=False, configure_logging=False)
    gpus = 1 if cluster.cluster_resources().get("GPU") and any(u.scale == "paper" for u in units) else 0
    task = cluster.remote(max_retries=3, num_cpus=1, num_gpus=gpus)(perform)
    try:
        yield lambda unit: task.remote(unit).future(), float("inf")
    finally:
        if ours:
            cluster.shutdown()


ENGINES = {"local": local, "ray": ray}
