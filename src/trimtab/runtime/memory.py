"""How many images fit into a given memory? Counted on one image, before a large batch is tried.

What autograd keeps for a backward pass grows with the batch, and so does the largest of these tensors, a few
of which a pass without gradients has at a time. The count depends on the network and the size of its input
only, so that batches which are part of a result are the same on every machine.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

PROGRAM = 600 << 20
"""Bytes of a process without images: libraries, and a network of ordinary size."""
_AT_A_TIME = 4
"""Feature tensors that a pass without gradients has at a time, of at most the largest size."""


def images_within(memory: int, model: nn.Module, x: Tensor, gradients: bool, most: int = 256) -> int:
    """Return how many images go through a model at once within some memory: a power of two, at most `most`.

    Args:
        memory: Bytes that the process may take.
        model: The model, guarded.
        x: Images; the first one is tried.
        gradients: Whether passes keep what a backward pass needs.
        most: The largest batch.
    """
    whole, largest = kept_bytes(model, x[:1])
    each = _AT_A_TIME * largest + (whole if gradients else 0) + x[:1].nbytes
    fit = max(1, (memory - PROGRAM) // max(1, each))
    return int(min(most, 1 << (int(fit).bit_length() - 1)))


@torch.enable_grad()
def kept_bytes(model: nn.Module, x: Tensor) -> tuple[int, int]:
    """Return the bytes that autograd keeps for a gradient with respect to x, and those of its largest tensor.

    Args:
        model: The model, with frozen parameters.
        x: Images.
    """
    fixed = {p.untyped_storage().data_ptr() for p in (*model.parameters(), *model.buffers())}
    sizes: dict[int, int] = {}
    alive = []  # or their addresses could be used again

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in fixed:
            sizes[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(x.detach().clone().requires_grad_(True))
    return sum(sizes.values()), max(sizes.values(), default=0)
