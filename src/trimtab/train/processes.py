"""What objectives need of several processes: the mean of a gradient, the whole of a batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trimtab.norm.synchronise import world_size


@torch.no_grad()
def average(tensors: Sequence[Tensor]) -> None:
    """Replace tensors by their means over all processes, in one exchange; alone, nothing happens."""
    processes = world_size()
    if processes > 1 and tensors:
        flat = torch.cat([t.reshape(-1) for t in tensors])
        torch.distributed.all_reduce(flat)
        for t, mean in zip(tensors, flat.div_(processes).split([t.numel() for t in tensors]), strict=True):
            t.copy_(mean.view(t.shape))


@torch.no_grad()
def gather(x: Tensor) -> Tensor:
    """The batches of all processes as one, in the order of their ranks."""
    if world_size() == 1:
        return x
    found = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(world_size())]
    torch.distributed.all_gather(found, x.contiguous())
    return torch.cat(found)


def rank() -> int:
    """Which of the processes this is."""
    return torch.distributed.get_rank() if world_size() > 1 else 0
