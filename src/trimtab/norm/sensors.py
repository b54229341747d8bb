"""Collect per-image moments at chosen layers during ordinary inference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from trimtab.norm.steering import innermost
from trimtab.norm.surgery import is_batch_norm
from trimtab.types import BadInput


class ImageMoments(NamedTuple):
    """Per image, the mean and std over positions of every channel that a layer receives."""

    mean: Tensor
    """(N, C)"""
    std: Tensor
    """(N, C); zero for layers without positions."""


class Collected(dict[str, ImageMoments]):
    """Moments by layer name, and the number of images that passed through."""

    images: int = 0


def sensor_layers(model: nn.Module, count: int) -> list[str]:
    """Name `count` batch-norm layers, evenly spaced from the first to the last."""
    names = [name for name, module in innermost(model).named_modules() if is_batch_norm(module)]
    if not names:
        raise BadInput("this model has no batch-norm layer to observe")
    count = min(count, len(names))
    return [names[round(k * (len(names) - 1) / max(count - 1, 1))] for k in range(count)]


@contextmanager
def image_moments(
    model: nn.Module, names: Sequence[str], rows: Tensor | slice = slice(None), gradients: bool = False
) -> Iterator[Collected]:
    """Collect the per-image moments of what the named layers receive in one forward pass inside.

    The model need not be steered, and its output does not change. Of a layer that runs several times the
    last pass counts.

    Args:
        model: Any model with batch-norm layers.
        names: Their names, relative to the innermost module.
        rows: Which images of the batch to collect.
        gradients: Whether the moments can be differentiated.
    """
    collected = Collected()

    def hook_for(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            if name == names[0]:
                collected.images = len(inputs[0])
            x = (inputs[0] if gradients else inputs[0].detach())[rows]
            x = x.flatten(2) if x.dim() > 2 else x[..., None]  # (n, C, positions)
            if not len(x):
                return
            var, mean = torch.var_mean(x.float(), 2, correction=0)
            collected[name] = ImageMoments(mean, var.clamp(min=1e-12).sqrt())  # sqrt has no gradient at 0

        return hook

    modules = dict(innermost(model).named_modules())
    handles = [modules[name].register_forward_pre_hook(hook_for(name)) for name in names]
    try:
        yield collected
    finally:
        for handle in handles:
            handle.remove()
