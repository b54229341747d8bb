"""Channels last, forwards and backwards: the layout in which convolutions on a CPU are quickest.

torch keeps it from one feature to the next, but the gradient of a global mean is channels-first whatever
its feature is. Where it meets channels-last features, every operation around it becomes several times slower.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from trimtab.copies import unhooked


def channels_last(net: nn.Module) -> nn.Module:
    """The network itself in that layout, unless it holds volumes, which torch cannot lay out so."""
    if any(held.dim() == 5 for held in (*net.parameters(), *net.buffers())):
        return net
    return net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def lay_out_gradients(copied: nn.Module, original: nn.Module) -> nn.Module:
    """Let the global means of a copied network, in place, pass on gradients laid out as their features are.

    A module that the copy shares with its original stays as it is.
    """
    shared = set(original.modules())
    for module in copied.modules():
        if module not in shared and _is_global_mean(module):
            module.__class__ = GlobalMean
    return copied


@contextmanager
def gradients_laid_out(net: nn.Module) -> Iterator[None]:
    """As `lay_out_gradients`, of the network itself until the block ends; copies made inside stay so."""
    pools = [module for module in net.modules() if _is_global_mean(module)]
    try:
        for pool in pools:
            pool.__class__ = GlobalMean
        yield
    finally:
        for pool in pools:
            pool.__class__ = nn.AdaptiveAvgPool2d


class LaidOut(torch.autograd.Function):
    """Of a feature and constants, with a gradient for the feature that is fresh and laid out as it is.

    Whoever runs operations without autograd (`straight`) finds it as the attribute `function` of what is
    called. So `ctx` may be any object: what a pass keeps are its plain attributes.
    """


class GlobalMean(nn.AdaptiveAvgPool2d):
    """`nn.AdaptiveAvgPool2d(1)`, equal to the bit."""

    def forward(self, input: Tensor) -> Tensor:
        return global_mean(input)


@fx.wrap  # one node for tracers, which cannot look into it
def global_mean(x: Tensor) -> Tensor:
    """The mean of each channel, (N, C, H, W) -> (N, C, 1, 1)."""
    # A compiler settles layouts itself, and torch.func does not take what has no rules for it.
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return F.adaptive_avg_pool2d(x, 1)
    mean: Tensor = _GlobalMean.apply(x)
    return mean


class _GlobalMean(LaidOut):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        last = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
        ctx.form = torch.channels_last if last else torch.contiguous_format
        ctx.shape = x.shape
        return F.adaptive_avg_pool2d(x, 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        *_, height, width = ctx.shape
        return (grad / (height * width)).expand(ctx.shape).clone(memory_format=ctx.form)


GlobalMean.function = global_mean.function = _GlobalMean  # type: ignore[attr-defined]


def _is_global_mean(module: nn.Module) -> bool:
    if type(module) is not nn.AdaptiveAvgPool2d or not unhooked(module):
        return False
    return module.output_size in (1, (1, 1), [1, 1]) and "forward" not in vars(module)
