"""The moving average of a network: followed step by step, handed out with norm statistics of its own."""

from __future__ import annotations

import copy
from itertools import islice

import torch
from torch import Tensor, nn

from trimtab import draws, norm
from trimtab.train import checkpoint
from trimtab.train.work import Work, norm_policy, parts_of

RECALIBRATION = 32
"""Batches from which an averaged network's norm statistics are estimated."""


def average_of(model: nn.Module) -> dict[str, Tensor]:
    """An average to begin with: parameters and statistics, by name."""
    held = model.state_dict().items()
    return {name: t.clone() for name, t in held if t.is_floating_point() and bool(t.isfinite().all())}


@torch.no_grad()
def follow(ema: dict[str, Tensor], model: nn.Module, decay: float) -> None:
    for name, value in model.state_dict().items():
        if name in ema:
            ema[name].lerp_(value, 1 - decay)


def result_of(work: Work) -> nn.Module:
    """The network as it would be handed out now: itself, or its moving average with fresh statistics."""
    if not work.ema:
        return work.model
    result = copy.deepcopy(work.model)
    with torch.no_grad():
        for name, value in result.state_dict().items():
            if name in work.ema:
                value.copy_(work.ema[name])
    _recalibrate(work, result)
    return result


def chosen(work: Work, last: nn.Module | None) -> nn.Module:
    """The network of the epoch that the recipe chooses; `last` is the last one's, if it is known."""
    if work.recipe.validation.choose == "last" or not work.run.best.exists():
        return result_of(work) if last is None else last
    model = copy.deepcopy(work.model) if work.ema else work.model
    checkpoint.load_weights(work.run.best, model)
    return model


def _recalibrate(work: Work, result: nn.Module) -> None:
    """Norm statistics as the plain average over an epoch's first batches, by the objective's own passes.

    So they are those of the clean, noisy or adversarial images that each branch was trained on. What does not
    learn in training stays here, too.
    """
    recipe, epoch = work.recipe, work.epoch
    result.train()
    with norm_policy(recipe, result, epoch):
        learners = norm.learners(result)
        if not learners:
            return
        batches = islice(work.loader.at(epoch, 0), RECALIBRATION)
        parts = (part for batch in batches for part in parts_of(work, batch))
        for number, (x, y, ids) in enumerate(parts):
            torch.manual_seed(draws.key(recipe.seed, number, work.fabric.global_rank))  # for drop-out
            with norm.use(learners, update=1 / (1 + number)), work.fabric.autocast():
                work.objective(result, x, y, seed=draws.key(recipe.seed, number), ids=ids)
    result.zero_grad()
