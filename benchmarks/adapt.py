"""Adapted forward passes against plain ones of the same network.

`adapt.per_batch` re-estimates its statistics on every batch, `adapt.frozen` did so once; both against the
network itself in eval mode, as it is: not folded, in the same memory layout, on the same images, without
gradients. What `frozen` costs once, to estimate, is no part of a forward pass and not timed. ResNet-8 of
width 16 at batch 256, and ResNet-18 with its CIFAR stem at batch 64, both on 3x32x32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from benchmarks.race import Asked, Row, compare, race
from trimtab import adapt, models

LAYOUTS = {"channels last": torch.channels_last, "channels first": torch.contiguous_format}


def rows(asked: Asked) -> Iterator[Row]:
    networks = [("ResNet-8", "resnet8", 256, {"width": 16}), ("ResNet-18", "resnet18_cifar", 64, {})]
    if asked.quick:
        networks = [("ResNet-8", "resnet8", 8, {"width": 4})]
    for title, name, batch, arguments in networks:
        for layout, form in LAYOUTS.items():
            torch.manual_seed(0)
            model = models.build(name, classes=10, **arguments).eval()
            model.to(memory_format=form)  # type: ignore[call-overload]
            x = torch.rand(batch, 3, 32, 32).contiguous(memory_format=form)
            contestants = {
                "plain": model,
                "per batch": adapt.per_batch(model),
                "frozen": adapt.frozen(model, x),
            }
            times = race({state: forward(net, x) for state, net in contestants.items()}, asked.turns)
            for state in ("per batch", "frozen"):
                what = f"{title}, batch {batch}, {layout}: {state} / plain"
                yield compare("adapt", what, times, state, "plain", "<= 1.3")


def forward(net: nn.Module, x: Tensor) -> Callable[[], object]:
    @torch.no_grad()
    def run() -> object:
        return net(x)

    return run
