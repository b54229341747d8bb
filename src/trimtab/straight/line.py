"""A network run as a straight line of operations.

An attack passes one network hundreds of times and wants the gradient of its images alone. Autograd finds the
way anew in every pass, gives every gradient memory of its own, and threads meet at Python's lock around every
module. Here the way is found once, by tracing: the same operations, each with its gradient, that overwrite
what nobody reads again. That saves a tenth of the time of a ResNet-8's gradients, and lets one thread keep
two cores busy. Gradients are autograd's to the bit, up to the order in which those of one feature are summed;
what has no rule of its own is left to autograd, piece by piece.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar

import torch
from torch import Tensor, fx, nn
from torch.autograd.function import once_differentiable

from trimtab import draws
from trimtab.cores import without_effect
from trimtab.straight.operations import Unclear, value
from trimtab.straight.reading import read
from trimtab.straight.writing import compiled, written_out

Pull = Callable[[Tensor], Tensor]


def straightened(net: nn.Module, trace: fx.Graph | None, x: Tensor) -> nn.Module:
    """A frozen network as a straight line for images like x, or itself where its trace tells too little."""
    if trace is None or x.dim() != 4:
        return net
    with suppress(Unclear):
        return proven(Straight(net, trace, x.shape[1:]), x)
    return net


def proven(line: Straight, like: Tensor) -> nn.Module:
    """A line, if it says and slopes what its network does, which does nothing else; if not, the network.

    Tried on images of its own, so that what is attacked does not depend on whose images come first.
    """
    x = _made_up(like)
    try:
        (found, wanted), idle = without_effect(
            line.net, lambda: [_said_and_slope(net, x) for net in (line, line.net)]
        )
    except Exception:  # of the network's own code; a line is a short cut, and nothing is lost without it
        return line.net
    return line if idle and all(map(_close, found, wanted)) else line.net


class Straight(nn.Module):
    """What `net` computes of images of a size (C, H, W), written out (`writing`)."""

    cores_each: ClassVar[int] = 2
    """Of threads side by side (`cores`): two, since between operations there is little to wait for."""

    def __init__(self, net: nn.Module, trace: fx.Graph, size: torch.Size) -> None:
        super().__init__()
        self.net, self.size = net, size
        self.text, self.constants = written_out(*read(trace, net))

    def forward(self, x: Tensor, pulled: bool = False) -> Any:
        """What it says of x; `pulled`, with the way from a gradient for that to the one for x."""
        look, ahead, back = compiled(self.text)
        # Of a batch of one, much is said that means something else: squeeze(), say.
        if x.shape[1:] != self.size or len(x) < 2 or not usual(x):
            return _pulled(self.net, x) if pulled else self.net(x)
        if not pulled and x.requires_grad and torch.is_grad_enabled():
            return _Passed.apply(x, self)
        with torch.no_grad():
            now = [value(one) for one in self.constants]
            if not pulled:
                return look(x, now)
            z, kept = ahead(x, now)
        return z, torch.no_grad()(lambda slope: back(slope, kept, now))


class _Passed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, line: Straight) -> Tensor:
        z, ctx.back = line(x, pulled=True)
        return z.detach()  # what goes back may hold z itself, which will hold the way back

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, None]:
        return ctx.back(slope), None


def pulled(net: nn.Module, x: Tensor) -> tuple[Tensor, Pull]:
    """What a network says of x (not to be overwritten), and the way from a gradient for it to that for x."""
    found: tuple[Tensor, Pull] = net(x, pulled=True) if isinstance(net, Straight) else _pulled(net, x)
    return found


def _pulled(net: nn.Module, x: Tensor) -> tuple[Tensor, Pull]:
    with torch.enable_grad():
        at = x.detach().requires_grad_(True)
        z = net(at)

    def back(slope: Tensor) -> Tensor:
        grad = torch.autograd.grad(z, at, slope, allow_unused=True)[0] if z.requires_grad else None
        return torch.zeros_like(x) if grad is None else grad

    return z.detach(), back


def usual(x: Tensor) -> bool:
    """Whether nobody changes what operations do."""
    changed = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
    return not changed and not torch.is_autocast_enabled(x.device.type)


def _made_up(like: Tensor) -> Tensor:
    """Three images: noise, noise in black and white, and dark noise."""
    drawn = torch.rand(3, *like.shape[1:], generator=draws.seeded(0), device="cpu")
    x = torch.stack([drawn[0], drawn[1].round(), drawn[2] / 16])
    return x.to(like).contiguous(memory_format=torch.channels_last)


def _said_and_slope(net: nn.Module, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What a network says of x, how that changes with x along some direction, and what it says without it."""
    z, back = pulled(net, x)
    slope = back(torch.linspace(1, 2, z.numel(), dtype=z.dtype, device=z.device).view_as(z))
    with torch.no_grad():
        return z, slope, net(x)


def _close(a: Tensor, b: Tensor) -> bool:
    off = float(torch.finfo(b.dtype).eps) ** 0.5 * b.abs().max()
    return a.shape == b.shape and a.dtype == b.dtype and bool((a - b).abs().max() <= off)
