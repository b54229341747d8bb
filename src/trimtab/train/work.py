"""A run under way, and the pieces of it that training and its moving average share."""

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
from trimtab.train.base import Objective
from trimtab.train.checkpoint import Progress
from trimtab.train.recipe import Recipe
from trimtab.train.runs import Run


@dataclass
class Work:
    """What changes with every step."""

    fabric: Fabric
    run: Run
    model: nn.Module
    optimiser: Optimizer
    stepper: Any
    """The optimiser as Fabric steps it."""
    loader: Loader
    held_out: Images | None
    ema: dict[str, Tensor]
    """The moving average of parameters and statistics, by name; empty if none is kept."""
    trainable: dict[str, bool]
    """Which parameters were trainable before the recipe froze some, by name."""
    progress: Progress

    @property
    def recipe(self) -> Recipe:
        return self.run.recipe

    @cached_property
    def objective(self) -> Objective:
        """The recipe's, of each part of a batch."""
        return self.recipe.objective.in_parts(self.recipe.accumulate)

    @property
    def per_epoch(self) -> int:
        return len(self.loader)

    @property
    def epoch(self) -> int:
        """That of the last step."""
        return max(0, self.progress.step - 1) // self.per_epoch

    @property
    def total(self) -> int:
        return self.per_epoch * self.recipe.epochs

    @property
    def over(self) -> bool:
        patience = self.recipe.validation.patience
        return self.progress.step >= self.total or (patience is not None and self.progress.waited >= patience)


def parts_of(work: Work, batch: Batch) -> list[tuple[Tensor, Tensor, Tensor]]:
    """The batch where and as wide as the network is, in as many parts as gradients accumulate over."""
    like = next(work.model.parameters())
    x = work.fabric.to_device(batch.x).to(like.dtype)
    y = work.fabric.to_device(batch.y)
    y = y.to(like.dtype) if y.is_floating_point() else y
    size = len(x) // work.recipe.accumulate
    return list(zip(x.split(size), y.split(size), batch.ids.split(size), strict=True))


def norm_policy(recipe: Recipe, model: nn.Module, epoch: int) -> AbstractContextManager[None]:
    """Running statistics always or in the last epochs, if the recipe says so."""
    if not _by_running(recipe, epoch) or not norm.layers(model):
        return nullcontext()
    return norm.use(model, source="running", update=recipe.norm.running_learn)


def _by_running(recipe: Recipe, epoch: int) -> bool:
    return recipe.norm.frozen or epoch >= recipe.epochs - recipe.norm.running_epochs
