"""Update running statistics from batch moments: once per branch and pass, from pooled moments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from trimtab.norm._kernels.moments import pool
from trimtab.norm._routing import Part, by_statistics
from trimtab.norm.setting import Moments
from trimtab.norm.synchronize import pool_processes
from trimtab.types import BadInput

if TYPE_CHECKING:
    from trimtab.norm.layer import Holder, Steered


def update_running(
    layer: Steered, parts: list[Part], batch: list[Moments], update: bool | float | str
) -> None:
    """Update the running statistics of every branch that took part, given the moments of each part."""
    for statistics, members in by_statistics(parts):
        _update_holder(layer, statistics, union(layer, [batch[m] for m in members]), update)


def union(layer: Steered, batch: list[Moments]) -> Moments:
    """Pool the (groups, C) moments of parts into (C,) moments, over all processes where they are shared."""
    each = [Moments(*pair, m.n) for m in batch for pair in zip(m.mean, m.var, strict=True)]
    return pool_processes(pool(each), layer.processes) if layer.pools_processes() else pool(each)


@torch.no_grad()
def _update_holder(layer: Steered, holder: Holder, batch: Moments, update: bool | float | str) -> None:
    if holder.num_batches_tracked is not None:
        holder.num_batches_tracked.add_(1)
    momentum: Any = layer.momentum if update is True else update
    if momentum is None or momentum == "average":
        if holder.num_batches_tracked is None:
            raise BadInput("this layer counts no batches, so it cannot average over them: give a momentum")
        momentum = 1.0 / holder.num_batches_tracked.to(holder.running_mean.dtype)
    unbiased = batch.var * (batch.n / max(batch.n - 1, 1))
    holder.running_mean.lerp_(batch.mean.to(holder.running_mean.dtype), momentum)
    holder.running_var.lerp_(unbiased.to(holder.running_var.dtype), momentum)
