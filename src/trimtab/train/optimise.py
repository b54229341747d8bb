"""Optimisers and schedules: what a step does with a gradient, as a pure function of the step's number.

The learning rate is computed, not accumulated, so a resumed run needs no scheduler's memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import nn
from torch.optim import Optimizer

from trimtab.train.recipe import Optimiser, Schedule
from trimtab.types import BadInput


def optimiser_for(parameters: Iterable[nn.Parameter], how: Optimiser) -> Optimizer:
    """The torch optimiser that a recipe describes, over the parameters that train."""
    trained = [p for p in parameters if p.requires_grad]
    if not trained:
        raise BadInput("nothing is left to train: all parameters are frozen")
    groups = [{"params": trained, "weight_decay": how.weight_decay}]
    if how.decay == "weights":
        small = [p for p in trained if p.dim() <= 1]  # norm parameters and biases
        groups = [
            {"params": [p for p in trained if p.dim() > 1], "weight_decay": how.weight_decay},
            {"params": small, "weight_decay": 0.0},
        ]
    betas = (how.momentum, 0.999)
    if how.kind == "sgd":
        return torch.optim.SGD(groups, how.lr, momentum=how.momentum, nesterov=how.nesterov)
    if how.kind == "adam":
        return torch.optim.Adam(groups, how.lr, betas=betas)
    if how.kind == "adamw":
        return torch.optim.AdamW(groups, how.lr, betas=betas)
    if how.kind == "adagrad":
        return torch.optim.Adagrad(groups, how.lr)
    return torch.optim.RMSprop(groups, how.lr, momentum=how.momentum)


def rate(schedule: Schedule, step: int, per_epoch: int, total: int) -> float:
    """By what the learning rate is multiplied in step 0 <= step < total."""
    epoch = step / per_epoch
    done = step / max(total - 1, 1)
    warm = min(1.0, (step + 1) / (schedule.warmup * per_epoch)) if schedule.warmup else 1.0
    if schedule.kind == "step":
        return warm * schedule.gamma ** sum(epoch >= m for m in schedule.milestones)
    if schedule.kind == "exponential":
        return warm * schedule.gamma ** math.floor(epoch / schedule.every)
    if schedule.kind == "cosine":
        return warm * 0.5 * (1 + math.cos(math.pi * done))
    if schedule.kind == "one-cycle":  # a half cosine up from 1/25, another down to nearly nothing
        top = schedule.peak * total - 1
        if step <= top:
            return warm * _cosine(1 / 25, 1.0, step / max(top, 1))
        return warm * _cosine(1.0, 1e-4, (step - top) / max(total - 1 - top, 1))
    return warm


def _cosine(start: float, end: float, share: float) -> float:
    return end + (start - end) * 0.5 * (1 + math.cos(math.pi * share))
