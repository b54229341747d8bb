"""LIGS against the two input gradients it consists of.

The yardstick is two plain `torch.autograd.grad` calls for the images, of the network in eval mode with frozen
parameters, in the memory layout that both sides are given. Neither side may fold or change the layout in the
rows with a mark: the network says that it couples its batch, after which `measure.ligs` takes it as it is. On
top of the gradients LIGS draws its noise, checks images and labels, guards the model, takes cosines. A row
without a mark shows `measure.ligs` as it is shipped, which folds. ResNet-8 of width 16, batch 256, 3x32x32.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.adapt import LAYOUTS
from benchmarks.race import Asked, Row, compare, race
from trimtab import measure, models


def rows(asked: Asked) -> Iterator[Row]:
    for layout in LAYOUTS:
        yield from layout_rows(layout, asked)


def layout_rows(layout: str, asked: Asked) -> Iterator[Row]:
    batch, width = (8, 4) if asked.quick else (256, 16)
    form = LAYOUTS[layout]
    torch.manual_seed(0)
    folding = models.build("resnet8", classes=10, width=width).eval().requires_grad_(False)
    folding.to(memory_format=form)  # type: ignore[call-overload]
    as_is = AsIs(folding)
    x = torch.rand(batch, 3, 32, 32).contiguous(memory_format=form)
    y = torch.arange(batch) % 10
    runs = {
        "two gradients": lambda: (gradient(folding, x, y), gradient(folding, x, y)),
        "ligs": lambda: measure.ligs(as_is, x, y),
        "ligs, folding": lambda: measure.ligs(folding, x, y),
    }
    times = race(runs, asked.turns)
    for name, wanted in (("ligs", "<= 1.1"), ("ligs, folding", "")):
        what = f"{name} / two bare input gradients, batch {batch}, {layout}"
        yield compare("lens", what, times, name, "two gradients", wanted)


class AsIs(nn.Module):
    """A network that is not to be folded: it claims that its images influence each other."""

    couples_batch = True

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.net(x)
        return z


def gradient(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    x = x.detach().requires_grad_(True)
    (grad,) = torch.autograd.grad(F.cross_entropy(net(x), y, reduction="sum"), x)
    return grad
