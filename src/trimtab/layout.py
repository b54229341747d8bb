"""Channels last, forwards and backwards: the layout in which convolutions on a CPU are quickest.

torch keeps it from one feature to the next, but some gradients are channels-first whatever their feature is:
a slice's, and a global mean's. Where such a gradient meets channels-last features, every operation around it
becomes several times slower. Here are those operations with gradients laid out as their features are.

A convolution of an image has another trouble: its gradient has three channels, and is computed as if it had
the sixteen that fill a register. In this layout four pixels beside each other are one pixel of twelve
channels, and their gradient is one convolution with a stride of four.

All equal the stock operations up to rounding. To tracers each is one node, where it is called by its name
in this module (`layout.thinned`): that is the name they replace.
"""

from __future__ import annotations

from typing import Any, TypeGuard

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from trimtab.copies import unhooked

BESIDE = 4
"""Pixels whose gradients are computed at once."""


def channels_last(net: nn.Module) -> nn.Module:
    """The network itself in that layout, unless it holds volumes, which torch cannot lay out so."""
    if any(held.dim() == 5 for held in (*net.parameters(), *net.buffers())):
        return net
    return net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def quicken(copied: nn.Module, original: nn.Module) -> nn.Module:
    """Give a copy of a network, in place, the gradients of this module; what it shares stays as it is."""
    shared = set(original.modules())
    for module in copied.modules():
        if module in shared:
            continue
        if _is_global_mean(module):
            module.__class__ = GlobalMean
        elif _sees_pixels(module):
            module.__class__ = PixelConv
    return copied


class GlobalMean(nn.AdaptiveAvgPool2d):
    """`nn.AdaptiveAvgPool2d(1)`."""

    def forward(self, input: Tensor) -> Tensor:
        return global_mean(input)


class PixelConv(nn.Conv2d):
    """An `nn.Conv2d` of few channels, with strides of one."""

    def forward(self, input: Tensor) -> Tensor:
        return pixel_conv(input, self.weight, self.bias, self.padding)


@fx.wrap
def global_mean(x: Tensor) -> Tensor:
    """The mean of each channel, (N, C, H, W) -> (N, C, 1, 1)."""
    if _transformed():
        return F.adaptive_avg_pool2d(x, 1)
    mean: Tensor = _GlobalMean.apply(x)
    return mean


@fx.wrap
def thinned(x: Tensor, stride: int, extra: int) -> Tensor:
    """x[:, :, ::stride, ::stride] between `extra` channels of zeros."""
    if _transformed():
        return _thinned(x, stride, extra)
    kept: Tensor = _Thinned.apply(x, stride, extra)
    return kept


@fx.wrap
def pixel_conv(x: Tensor, weight: Tensor, bias: Tensor | None, padding: Any) -> Tensor:
    """`F.conv2d(x, weight, bias, padding=padding)`; quicker backwards if it keeps the size and is frozen."""
    height, width = weight.shape[2:]
    same = height == width and padding in ("same", (height // 2, height // 2)) and height % 2 == 1
    frozen = not weight.requires_grad and (bias is None or not bias.requires_grad)
    alike = x.dim() == 4 and len(x) > 0 and x.dtype == weight.dtype and x.is_floating_point()
    plain = not _transformed() and not torch.is_autocast_enabled(x.device.type)
    if not (x.requires_grad and same and frozen and alike and plain):
        return F.conv2d(x, weight, bias, padding=padding)
    y: Tensor = _PixelConv.apply(x, weight, bias)
    return y


def _transformed() -> bool:
    """Whether a compiler is at work, which settles layouts itself, or `torch.func`, which has own rules."""
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


def _is_global_mean(module: nn.Module) -> TypeGuard[nn.AdaptiveAvgPool2d]:
    if type(module) is not nn.AdaptiveAvgPool2d or not unhooked(module):
        return False
    return "forward" not in vars(module) and module.output_size in (1, (1, 1), [1, 1])


def _sees_pixels(module: nn.Module) -> TypeGuard[nn.Conv2d]:
    if type(module) is not nn.Conv2d or not unhooked(module):
        return False
    stock = not {"forward", "_conv_forward"} & vars(module).keys() and module.padding_mode == "zeros"
    return (
        stock
        and module.stride == module.dilation == (1, 1)
        and module.in_channels <= 4
        and module.groups == 1
    )


def _form(x: Tensor) -> torch.memory_format:
    last = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if last else torch.contiguous_format


class _GlobalMean(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.shape, ctx.form = x.shape, _form(x)
        return F.adaptive_avg_pool2d(x, 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        *_, height, width = ctx.shape
        each = (grad / (height * width)).expand(ctx.shape)
        return each.clone(memory_format=ctx.form)


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
        whole = torch.empty(ctx.shape, dtype=grad.dtype, device=grad.device, memory_format=ctx.form).zero_()
        whole[:, :, :: ctx.stride, :: ctx.stride] = grad[:, ctx.kept]
        return whole, None, None


class _PixelConv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(weight)
        return F.conv2d(x, weight, bias, padding=weight.shape[-1] // 2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (weight,) = ctx.saved_tensors
        n, _, height, width = grad.shape
        channels, side = weight.shape[1], weight.shape[-1] // 2
        if width % BESIDE or _form(grad) is not torch.channels_last:
            return F.conv_transpose2d(grad, weight, padding=side), None, None
        beside = F.conv2d(grad, _kernel(weight), stride=(1, BESIDE), padding=side)  # (N, 4 C, H, W / 4)
        pixels = beside.permute(0, 2, 3, 1).reshape(n, height, width, channels)
        return pixels.permute(0, 3, 1, 2), None, None


def _kernel(weight: Tensor) -> Tensor:
    """That of the gradient for pixels beside each other: (O, C, k, k) -> (4 C, O, k, k + 3)."""
    turned = weight.flip(2, 3).transpose(0, 1)  # (C, O, k, k)
    shifted = [F.pad(turned, (place, BESIDE - 1 - place)) for place in range(BESIDE)]
    return torch.cat(shifted).contiguous(memory_format=torch.channels_last)
