"""Communication between processes: the mean of a gradient, the whole batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from shlex import quote

import torch
from torch import Tensor

from trimtab.norm.synchronize import world_size
from trimtab.types import BadInput


@torch.no_grad()
def average(tensors: Sequence[Tensor]) -> None:
    """Replace tensors by their means over all processes, in one all-reduce; a single process keeps them."""
    processes = world_size()
    if processes > 1 and tensors:
        flat = torch.cat([t.reshape(-1) for t in tensors])
        torch.distributed.all_reduce(flat)
        for t, mean in zip(tensors, flat.div_(processes).split([t.numel() for t in tensors]), strict=True):
            t.copy_(mean.view(t.shape))


@torch.no_grad()
def gather(x: Tensor) -> Tensor:
    """Return the batches of all processes as one, in the order of ranks."""
    if world_size() == 1:
        return x
    batches = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(world_size())]
    torch.distributed.all_gather(batches, x.contiguous())
    return torch.cat(batches)


@torch.no_grad()
def first_process(value: Tensor) -> Tensor:
    """Return the tensor of the first process in all processes."""
    if world_size() > 1:
        torch.distributed.broadcast(value, 0)
    return value


def rank() -> int:
    """Return the rank of this process."""
    return torch.distributed.get_rank() if world_size() > 1 else 0


_LOST = ("Connection closed by peer", "Connection reset by peer", "Connection refused", "Broken pipe")
"""Messages of torch's backends after another process has ended."""


@contextmanager
def translate_lost_process(folder: Path) -> Iterator[None]:
    """Replace the error of torch after another process has ended by a BadInput that says how to continue."""
    try:
        yield
    except RuntimeError as problem:
        if world_size() == 1 or not any(words in str(problem) for words in _LOST):
            raise
        started = (folder / "recipe.yaml").exists()
        advice = f"resume with --resume {quote(str(folder))}" if started else "start it again"
        raise BadInput(f"another process of this run has ended; fix the cause, then {advice}") from None
