"""What a run will cost, before it is spent: passes, ratio to standard training, time on this machine."""

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
from trimtab.train.base import Objective, Passes
from trimtab.train.recipe import Recipe
from trimtab.train.standard import Standard
from trimtab.train.start import Engine, network, prepared, training_sets


@dataclass(frozen=True)
class Plan:
    passes: Passes
    """Forward and backward passes of a whole batch, per step; an attack's go back to the image only."""
    ratio: float
    """Time of a step over that of standard training, measured."""
    seconds_per_step: float
    steps: int
    images: int
    """Training images."""

    @property
    def seconds(self) -> float:
        """Of training; validation comes on top."""
        return self.seconds_per_step * self.steps

    def __str__(self) -> str:
        hours, rest = divmod(round(self.seconds), 3600)
        return (
            f"{self.steps} steps over {self.images} images; a step takes {self.passes.forward:g} forward and "
            f"{self.passes.backward:g} backward passes, {self.ratio:.2f} x standard training; about "
            f"{hours} h {rest // 60} min {rest % 60} s on this machine"
        )


def plan(model: nn.Module | str | None, data: Any, recipe: Recipe, rounds: int = 3) -> Plan:
    """Time a few steps of the recipe's objective and of standard training, in turns, on one real batch.

    On one device, as training would run there, however many it will have.
    """
    fabric = Engine(devices=1).start(recipe.precision)
    train_set, _ = training_sets(data, recipe)
    loader = Loader(train_set, recipe.batch_size, drop_last=True)  # refuses what training would refuse
    with torch.random.fork_rng():
        model = fabric.to_device(network(model, recipe, train_set))
    batch = train_set.take(torch.arange(recipe.batch_size))
    contestants: list[tuple[Objective, nn.Module]] = []
    each = recipe.objective.in_parts(recipe.accumulate)
    for objective, whole in ((each, recipe), (Standard(), replace(recipe, objective=Standard()))):
        contestants.append((objective, prepared(copy.deepcopy(model), whole).train()))
    times: list[list[float]] = [[], []]
    for _ in range(rounds + 1):
        for (objective, net), taken in zip(contestants, times, strict=True):
            taken.append(_time(fabric, objective, net, batch, recipe.accumulate))
    ours, standard = (statistics.median(taken[1:]) for taken in times)  # the first warms up
    steps = len(loader) * recipe.epochs
    passes = each.passes(recipe.batch_size // recipe.accumulate)
    ratio = 1.0 if each == Standard() else ours / standard  # which is noise, against itself
    return Plan(passes, ratio, ours, steps, len(train_set))


def _time(fabric: Fabric, objective: Objective, model: nn.Module, batch: Batch, parts: int) -> float:
    """Seconds of a step of so many parts."""
    x, y, ids = (part[: len(part) // parts] for part in batch)
    model.zero_grad()
    began = time.perf_counter()
    with fabric.autocast():
        losses = objective(model, fabric.to_device(x), fabric.to_device(y), ids=ids)
    float(losses["loss"])  # a GPU has only been told so far; this waits for it
    return parts * (time.perf_counter() - began)
