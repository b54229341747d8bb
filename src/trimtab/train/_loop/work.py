"""The state of a running training, and what training and its moving average share."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.optim import Optimizer

from trimtab import norm
from trimtab.data import Batch, Images
from trimtab.data.loader import Loader
from trimtab.train._loop.checkpoint import TrainingState
from trimtab.train._loop.runs import Run
from trimtab.train.base import Objective
from trimtab.train.recipe import Recipe


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
