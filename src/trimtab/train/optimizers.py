"""Optimizers and learning-rate schedules.

The learning rate is a function of the step, so a resumed run needs no state of a scheduler.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from trimtab.train.recipe import OptimizerConfig, Schedule
from trimtab.types import BadInput


def optimizer_for(parameters: Iterable[nn.Parameter], config: OptimizerConfig) -> Optimizer:
    """Return the torch optimizer of a recipe, over the parameters that train.

    The learning rate of a step is multiplied by the "factor" of each group.
    """
    trained = [p for p in parameters if p.requires_grad]
    if not trained:
        raise BadInput("nothing is left to train: all parameters are frozen; unfreeze some")
    decay = config.weight_decay
    groups: list[dict[str, Any]] = [{"params": trained, "weight_decay": decay, "factor": 1.0}]
    if config.decay == "weights" or config.small_lr != 1:
        small = [p for p in trained if p.dim() <= 1]  # norm parameters and biases
        groups = [
            {"params": [p for p in trained if p.dim() > 1], "weight_decay": decay, "factor": 1.0},
            {
                "params": small,
                "weight_decay": 0.0 if config.decay == "weights" else decay,
                "factor": config.small_lr,
            },
        ]
    betas = (config.momentum, 0.999)
    if config.kind == "sgd":
        return torch.optim.SGD(groups, config.lr, momentum=config.momentum, nesterov=config.nesterov)
    if config.kind == "adam":
        return torch.optim.Adam(groups, config.lr, betas=betas)
    if config.kind == "adamw":
        return torch.optim.AdamW(groups, config.lr, betas=betas)
    if config.kind == "adagrad":
        return torch.optim.Adagrad(groups, config.lr)
    return torch.optim.RMSprop(groups, config.lr, momentum=config.momentum)


def rate(schedule: Schedule, step: int, per_epoch: int, total: int) -> float:
    """Return the factor of the learning rate in a step.

    Args:
        schedule: The schedule.
        step: The step, 0 <= step < total.
        per_epoch: Number of steps of an epoch.
        total: Number of steps of the run.
    """
    epoch = step / per_epoch
    done = step / max(total - 1, 1)
    warm = min(1.0, (step + 1) / (schedule.warmup * per_epoch)) if schedule.warmup else 1.0
    if schedule.kind == "step":
        return warm * schedule.gamma ** sum(epoch >= m for m in schedule.milestones)
    if schedule.kind == "exponential":
        return warm * schedule.gamma ** math.floor(epoch / schedule.every)
    if schedule.kind == "cosine":
        return warm * 0.5 * (1 + math.cos(math.pi * done))
    if schedule.kind == "one-cycle":  # half a cosine up from 1/25, half a cosine down to 1e-4
        top = schedule.peak * total - 1
        if step <= top:
            return warm * _cosine(1 / 25, 1.0, step / max(top, 1))
        return warm * _cosine(1.0, 1e-4, (step - top) / max(total - 1 - top, 1))
    return warm


def _cosine(start: float, end: float, fraction: float) -> float:
    return end + (start - end) * 0.5 * (1 + math.cos(math.pi * fraction))
