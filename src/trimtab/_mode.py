"""Change the training mode of a network's modules for the length of a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def restored_modes(model: nn.Module) -> Iterator[None]:
    """Restore every module's own training mode on exit, also after an exception."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put the whole model in eval mode while the block runs; on exit every module's own mode is restored."""
    with restored_modes(model):
        model.eval()
        yield
