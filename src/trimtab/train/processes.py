"""What objectives need of several processes: the mean of a gradient, the whole of a batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from shlex import quote

import torch
from torch import Tensor

from trimtab.norm.synchronise import world_size
from trimtab.types import BadInput


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


_LOST = ("Connection closed by peer", "Connection reset by peer", "Connection refused", "Broken pipe")
"""How torch's backends say that another process is gone."""


@contextmanager
def companions(folder: Path) -> Iterator[None]:
    """Say in one sentence that another process of a run has ended."""
    try:
        yield
    except RuntimeError as problem:
        if world_size() == 1 or not any(words in str(problem) for words in _LOST):
            raise
        begun = (folder / "recipe.yaml").exists()
        again = f"go on with --resume {quote(str(folder))}" if begun else "start it again"
        raise BadInput(f"another process of this run has ended; mend its cause, then {again}") from None
