"""What the processes of a run exchange; without a Fabric, or with one process, values stay where they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def rank_and_world(fabric: Fabric | None) -> tuple[int, int]:
    """Return the rank of this process and the number of processes."""
    return (fabric.global_rank, fabric.world_size) if fabric else (0, 1)


def broadcast(fabric: Fabric | None, value: Any) -> Any:
    """Return the first process's value on every process."""
    return fabric.broadcast(value) if fabric and fabric.world_size > 1 else value


def gather(fabric: Fabric | None, value: Any) -> list[Any]:
    """Return the values of all processes in rank order on the first; an empty list on the others."""
    if fabric is None or fabric.world_size == 1:
        return [value]
    values: list[Any] | None = [None] * fabric.world_size if fabric.global_rank == 0 else None
    torch.distributed.gather_object(value, values, dst=0)
    return values or []
