"""The cost of a run before it starts: passes, ratio to standard training, time on this machine."""

from __future__ import annotations

import copy
import statistics
import time
from dataclasses import dataclass, replace
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import nn

from trimtab.data import Batch, Loader
from trimtab.train._loop.start import Engine, network, prepare_network, training_sets
from trimtab.train.base import Objective, Passes
from trimtab.train.recipe import Recipe
from trimtab.train.standard import Standard


@dataclass(frozen=True)
class Plan:
    """The cost of a run.

    Args:
        passes: Forward and backward passes of the whole batch, per step; those of an attack are to the image.
        ratio: Measured time of a step over that of standard training.
        seconds_per_step: Measured seconds per step.
        steps: Number of steps.
        images: Number of training images.
    """

    passes: Passes
    ratio: float
    seconds_per_step: float
    steps: int
    images: int

    @property
    def seconds(self) -> float:
        """Seconds of training, without validation."""
        return self.seconds_per_step * self.steps

    def __str__(self) -> str:
        hours, rest = divmod(round(self.seconds), 3600)
        return (
            f"{self.steps} steps over {self.images} images; a step takes {self.passes.forward:g} forward and "
            f"{self.passes.backward:g} backward passes, {self.ratio:.2f} x standard training; about "
            f"{hours} h {rest // 60} min {rest % 60} s on this machine"
        )


def plan(model: nn.Module | str | None, data: Any, recipe: Recipe, rounds: int = 3) -> Plan:
    """Time steps of the recipe's objective and of standard training, in turns, on one batch and one device.

    Args:
        model: Replaces the model of the recipe, as in `fit`.
        data: Replaces the images of the recipe, as in `fit`.
        recipe: The recipe.
        rounds: Number of timed steps of each, after one warm-up step.
    """
    fabric = Engine(devices=1).start(recipe.precision)
    train_set, _ = training_sets(data, recipe)
    loader = Loader(
        train_set, recipe.batch_size, drop_last=True
    )  # raises the errors that training would raise
    with torch.random.fork_rng():
        model = fabric.to_device(network(model, recipe, train_set))
    batch = train_set.take(torch.arange(recipe.batch_size))
    compared: list[tuple[Objective, nn.Module]] = []
    each = recipe.objective.in_parts(recipe.accumulate)
    for objective, config in ((each, recipe), (Standard(), replace(recipe, objective=Standard()))):
        compared.append((objective, prepare_network(copy.deepcopy(model), config).train()))
    times: list[list[float]] = [[], []]
    for _ in range(rounds + 1):
        for (objective, net), seconds in zip(compared, times, strict=True):
            seconds.append(_time(fabric, objective, net, batch, recipe.accumulate))
    ours, standard = (statistics.median(seconds[1:]) for seconds in times)  # without the warm-up step
    steps = len(loader) * recipe.epochs
    passes = each.passes(recipe.batch_size // recipe.accumulate)
    ratio = 1.0 if each == Standard() else ours / standard  # else it would show the noise of the clock
    return Plan(passes, ratio, ours, steps, len(train_set))


def _time(fabric: Fabric, objective: Objective, model: nn.Module, batch: Batch, parts: int) -> float:
    """Return the seconds of a step that processes its batch in N parts."""
    x, y, ids = (part[: len(part) // parts] for part in batch)
    model.zero_grad()
    start = time.perf_counter()
    with fabric.autocast():
        losses = objective(model, fabric.to_device(x), fabric.to_device(y), ids=ids)
    float(losses["loss"])  # wait until the GPU is done
    return parts * (time.perf_counter() - start)
