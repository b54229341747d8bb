"""Checkpoints, written by one process, and the early end of a run: signals and losses that diverge."""

from __future__ import annotations

import signal
from collections.abc import Callable

import torch

from trimtab.train._loop import checkpoint
from trimtab.train._loop.callbacks import Diverged, Stopped
from trimtab.train._loop.processes import average
from trimtab.train._loop.work import Work
from trimtab.types import BadInput


def save(work: Work) -> None:
    """Write the checkpoint."""
    state = (work.progress, work.model, work.optimizer, work.ema)
    write_once(work, lambda: checkpoint.save(work.run.last, *state))


def write_once(work: Work, write: Callable[[], None]) -> None:
    """Call `write` in the first process; if that fails, raise its error in all processes."""
    problem: BadInput | None = None
    if work.fabric.is_global_zero:
        try:
            write()
        except checkpoint.NotFinite as nonfinite:
            problem = diverged(work, f"{str(nonfinite)!r} is no longer finite")
        except BadInput as error:
            problem = error
    problem = work.fabric.broadcast(problem)
    if problem is not None:
        raise problem


def diverged(work: Work, why: str) -> Diverged:
    """Return the error for a loss or weights that are no longer finite, with advice."""
    advice = "lower the learning rate, use warmup or clip gradients"
    saved = f"the last good checkpoint is {work.run.last}; {advice}"
    return Diverged(f"training diverged in step {work.progress.step}: {why}; {saved}")


def asked_to_stop(work: Work, caught: list[int]) -> bool:
    """Return whether any process got a signal; all processes return the same."""
    asked = torch.tensor([float(bool(caught))], device=work.fabric.device)
    average([asked])
    return bool(asked > 0)


def stop(work: Work, caught: list[int]) -> None:
    """Save, and end the process with the exit code of the signal."""
    save(work)
    raise Stopped(128 + (caught[0] if caught else signal.SIGTERM), work.run.folder)
