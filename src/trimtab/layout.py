"""Channels last, forwards and backwards: the layout in which convolutions on a CPU are quickest.

torch keeps it from one feature to the next, but some gradients are channels-first whatever their feature is:
a slice's, and a global mean's. Where such a gradient meets channels-last features, every operation around it
becomes several times slower. Here are those operations with gradients laid out as their features are.

A convolution of an image has another trouble: its gradient has three channels, and is computed as if it had
the sixteen that fill a register. In this layout four pixels beside each other are one pixel of twelve
channels, and their gradient is one convolution with a stride of four, in half of the time.

All are equal to the stock operations up to rounding, and one node for tracers each, if called as attributes
of this module.
"""

from __future__ import annotations

from typing import Any, TypeGuard

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

BESIDE = 4
"""Pixels whose gradients are computed at once."""


def channels_last(net: nn.Module) -> nn.Module:
    """The network itself in that layout, unless it holds volumes, which torch cannot lay out so."""
    if any(held.dim() == 5 for held in (*net.parameters(), *net.buffers())):
        return net
    return net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def backwards_too(net: nn.Module) -> nn.Module:
    """The network itself, frozen as it is, with laid-out gradients; modules with hooks stay as they are."""
    for module in net.modules():
        if _is_global_mean(module):
            module.__class__ = GlobalMean
        elif _sees_pixels(module):
            module.register_buffer("across", across(module.weight), persistent=False)
            module.__class__ = PixelConv
    return net


class GlobalMean(nn.AdaptiveAvgPool2d):
    """`nn.AdaptiveAvgPool2d(1)`."""

    def forward(self, x: Tensor) -> Tensor:
        return global_mean(x)


class PixelConv(nn.Conv2d):
    """A frozen `nn.Conv2d` of few channels that keeps the size."""

    across: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return pixel_conv(x, self.weight, self.bias, self.across)


@torch.no_grad()
def across(weight: Tensor) -> Tensor:
    """The kernel of the gradient for `BESIDE` pixels at a time: (O, C, k, k) -> (4 C, O, k, k + 3)."""
    turned = weight.flip(2, 3).transpose(0, 1)  # (C, O, k, k)
    shifted = [F.pad(turned, (place, BESIDE - 1 - place)) for place in range(BESIDE)]
    return torch.cat(shifted).contiguous(memory_format=torch.channels_last)


@fx.wrap
def pixel_conv(x: Tensor, weight: Tensor, bias: Tensor | None, across: Tensor) -> Tensor:
    """The convolution of x (N, C, H, W) by a frozen weight, and `across` for its gradient."""
    if torch.compiler.is_compiling():
        return _same_conv(x, weight, bias)
    y: Tensor = _PixelConv.apply(x, weight, bias, across)
    return y


@fx.wrap
def global_mean(x: Tensor) -> Tensor:
    """The mean of each channel, (N, C, H, W) -> (N, C, 1, 1)."""
    if torch.compiler.is_compiling():  # which settles layouts itself
        return F.adaptive_avg_pool2d(x, 1)
    mean: Tensor = _GlobalMean.apply(x)
    return mean


@fx.wrap
def thinned(x: Tensor, stride: int, extra: int) -> Tensor:
    """x[:, :, ::stride, ::stride] between `extra` channels of zeros."""
    if torch.compiler.is_compiling():
        return _thinned(x, stride, extra)
    kept: Tensor = _Thinned.apply(x, stride, extra)
    return kept


def _is_global_mean(module: nn.Module) -> TypeGuard[nn.AdaptiveAvgPool2d]:
    plain = type(module) is nn.AdaptiveAvgPool2d and unhooked(module)
    return plain and module.output_size in (1, (1, 1), [1, 1])


def _sees_pixels(module: nn.Module) -> TypeGuard[nn.Conv2d]:
    if type(module) is not nn.Conv2d or not unhooked(module) or module.weight.device.type != "cpu":
        return False
    odd = module.kernel_size[0] == module.kernel_size[1] == 2 * (module.kernel_size[0] // 2) + 1
    same = module.padding in ("same", tuple(side // 2 for side in module.kernel_size))
    simple = module.stride == module.dilation == (1, 1) and module.padding_mode == "zeros"
    return odd and same and simple and module.groups == 1 and module.in_channels * BESIDE <= 16


def unhooked(module: nn.Module) -> bool:
    """Whether nobody listens to its passes or changes its parameters on the way."""
    hooks = ("forward_hooks", "forward_pre_hooks", "backward_hooks", "backward_pre_hooks")
    return not any(getattr(module, f"_{name}") for name in hooks) and not hasattr(module, "parametrizations")


def _form(x: Tensor) -> torch.memory_format:
    last = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if last else torch.contiguous_format


def _like(ctx: Any, grad: Tensor) -> Tensor:
    return torch.empty(ctx.shape, dtype=grad.dtype, device=grad.device, memory_format=ctx.form)


def _same_conv(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.conv2d(x, weight, bias, padding=weight.shape[-1] // 2)


class _PixelConv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, across: Tensor) -> Tensor:
        ctx.save_for_backward(weight, across)
        return _same_conv(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        weight, across = ctx.saved_tensors
        n, _, height, width = grad.shape
        side = weight.shape[-1] // 2
        if width % BESIDE or _form(grad) is not torch.channels_last:
            return F.conv_transpose2d(grad, weight, padding=side), None, None, None
        beside = F.conv2d(grad, across, stride=(1, BESIDE), padding=side)  # (N, 4 C, H, W / 4)
        pixels = beside.permute(0, 2, 3, 1).reshape(n, height, width, -1)
        return pixels.permute(0, 3, 1, 2), None, None, None


class _GlobalMean(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.shape, ctx.form = x.shape, _form(x)
        return F.adaptive_avg_pool2d(x, 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        *_, height, width = ctx.shape
        return _like(ctx, grad).copy_(grad / (height * width))


def _thinned(x: Tensor, stride: int, extra: int) -> Tensor:
    return F.pad(x[:, :, ::stride, ::stride], (0, 0, 0, 0, extra // 2, extra - extra // 2))


class _Thinned(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, stride: int, extra: int) -> Tensor:
        ctx.shape, ctx.form, ctx.stride = x.shape, _form(x), stride
        ctx.kept = slice(extra // 2, extra // 2 + x.shape[1])
        return _thinned(x, stride, extra)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        whole = _like(ctx, grad).zero_()
        whole[:, :, :: ctx.stride, :: ctx.stride] = grad[:, ctx.kept]
        return whole, None, None
