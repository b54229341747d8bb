"""Batch statistics over all processes: every rank normalizes with the moments of the whole batch.

torch's SyncBatchNorm refuses CPU tensors and couples statistics to one layer class; this is a switch on
steered layers, differentiable, weighted by each rank's count, on any backend of torch.distributed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trimtab.norm.setting import Moments
from trimtab.types import BadInput

Group = Any
"""A process group; None is all processes."""


def world_size(group: Group = None) -> int:
    """Return the number of processes in a group; 1 if none is initialized."""
    return dist.get_world_size(group) if dist.is_available() and dist.is_initialized() else 1


@torch.no_grad()
def average(tensors: Sequence[Tensor]) -> None:
    """Replace tensors by their means over all processes, in one all-reduce; a single process keeps them."""
    processes = world_size()
    if processes > 1 and tensors:
        flat = torch.cat([t.reshape(-1) for t in tensors])
        dist.all_reduce(flat)
        for t, mean in zip(tensors, flat.div_(processes).split([t.numel() for t in tensors]), strict=True):
            t.copy_(mean.view(t.shape))


@torch.no_grad()
def gather(x: Tensor) -> Tensor:
    """Return the batches of all processes as one, in the order of ranks."""
    if world_size() == 1:
        return x
    batches = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(world_size())]
    dist.all_gather(batches, x.contiguous())
    return torch.cat(batches)


@torch.no_grad()
def first_process(value: Tensor) -> Tensor:
    """Return the tensor of the first process in all processes."""
    if world_size() > 1:
        dist.broadcast(value, 0)
    return value


def rank() -> int:
    """Return the rank of this process."""
    return dist.get_rank() if world_size() > 1 else 0


def pool_processes(local: Moments, group: Group = None) -> Moments:
    """Return the moments over all processes, from the local ones (two small all-reduces)."""
    count = torch.tensor(float(local.n), dtype=local.mean.dtype, device=local.mean.device)
    weighted = _Sum.apply(torch.cat([(local.mean * local.n).flatten(), count.view(1)]), group)
    total = int(weighted[-1].item())
    mean = weighted[:-1].view_as(local.mean) / total
    var = _Sum.apply((local.var + (local.mean - mean) ** 2) * local.n, group) / total
    return Moments(mean, var, total)


def local_groups(groups: int, group: Group = None) -> int:
    """Return how many of the `groups` of the global batch, in rank order, are on this process."""
    processes = world_size(group)
    if groups == 1 or processes == 1:
        return groups
    if groups % processes:
        raise BadInput(
            f"groups must be 1 or a multiple of the {processes} processes that share a batch, found {groups}"
        )
    return groups // processes


class _Sum(torch.autograd.Function):
    """All-reduce by sum; its adjoint is again the sum over all processes of the incoming gradients."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, group: Group) -> Tensor:
        ctx.group = group
        total = value.clone().contiguous()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _Sum.apply(grads[0], ctx.group), None
