"""The state of a running training: saved by one process, ended early by signals and losses that diverge."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.optim import Optimizer

from trimtab import norm
from trimtab.data import Batch, Images
from trimtab.data.loader import Loader
from trimtab.norm.synchronize import average
from trimtab.train._loop import checkpoint
from trimtab.train._loop.callbacks import Diverged, Stopped
from trimtab.train._loop.checkpoint import TrainingState
from trimtab.train._loop.runs import Run
from trimtab.train.base import Objective
from trimtab.train.recipe import Recipe
from trimtab.types import BadInput


@dataclass
class Work:
    """The state of a run between steps."""

    fabric: Fabric
    run: Run
    model: nn.Module
    optimizer: Optimizer
    stepper: Any
    """The optimizer, wrapped by Fabric."""
    loader: Loader
    held_out: Images | None
    ema: dict[str, Tensor]
    """The moving average of parameters and statistics, by name; empty without one."""
    trainable: dict[str, bool]
    """Whether each parameter was trainable before the recipe froze some, by name."""
    progress: TrainingState

    @property
    def recipe(self) -> Recipe:
        """The recipe of the run."""
        return self.run.recipe

    @cached_property
    def objective(self) -> Objective:
        """The objective of the recipe, for each part of a batch."""
        return self.recipe.objective.in_parts(self.recipe.accumulate)

    @property
    def per_epoch(self) -> int:
        """Number of steps of an epoch."""
        return len(self.loader)

    @property
    def epoch(self) -> int:
        """The epoch of the last step."""
        return max(0, self.progress.step - 1) // self.per_epoch

    @property
    def total(self) -> int:
        """Number of steps of the run."""
        return self.per_epoch * self.recipe.epochs

    @property
    def over(self) -> bool:
        """Whether all epochs are done, or the patience is used up."""
        patience = self.recipe.validation.patience
        return self.progress.step >= self.total or (patience is not None and self.progress.waited >= patience)

    def save(self) -> None:
        """Write the checkpoint."""
        self.write_once(
            lambda: checkpoint.save(self.run.last, self.progress, self.model, self.optimizer, self.ema)
        )

    def write_once(self, write: Callable[[], None]) -> None:
        """Call `write` in the first process; if that fails, raise its error in all processes."""
        problem: BadInput | None = None
        if self.fabric.is_global_zero:
            try:
                write()
            except checkpoint.NotFinite as nonfinite:
                problem = self.diverged(f"{str(nonfinite)!r} is no longer finite")
            except BadInput as error:
                problem = error
        problem = self.fabric.broadcast(problem)
        if problem is not None:
            raise problem

    def diverged(self, why: str) -> Diverged:
        """Return the error for a loss or weights that are no longer finite, with advice."""
        advice = "lower the learning rate, use warmup or clip gradients"
        saved = f"the last good checkpoint is {self.run.last}; {advice}"
        return Diverged(f"training diverged in step {self.progress.step}: {why}; {saved}")

    def asked_to_stop(self, caught: list[int]) -> bool:
        """Return whether any process got a signal; all processes return the same."""
        asked = torch.tensor([float(bool(caught))], device=self.fabric.device)
        average([asked])
        return bool(asked > 0)

    def stop(self, caught: list[int]) -> None:
        """Save, and end the process with the exit code of the signal."""
        self.save()
        raise Stopped(128 + (caught[0] if caught else signal.SIGTERM), self.run.folder)


def parts_of(work: Work, batch: Batch) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return the batch on the device and in the dtype of the network, in the parts of an accumulated step."""
    like = next(work.model.parameters())
    x = work.fabric.to_device(batch.x).to(like.dtype)
    y = work.fabric.to_device(batch.y)
    y = y.to(like.dtype) if y.is_floating_point() else y
    size = len(x) // work.recipe.accumulate
    return list(zip(x.split(size), y.split(size), batch.ids.split(size), strict=True))


def norm_policy(recipe: Recipe, model: nn.Module, epoch: int) -> AbstractContextManager[None]:
    """Use running statistics inside if the recipe does so in this epoch."""
    if not _uses_running(recipe, epoch) or not norm.layers(model):
        return nullcontext()
    return norm.use(model, source="running", update=recipe.norm.running_learn)


def _uses_running(recipe: Recipe, epoch: int) -> bool:
    return recipe.norm.frozen or epoch >= recipe.epochs - recipe.norm.running_epochs
