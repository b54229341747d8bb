"""What steering costs: training steps of a steered network against the same network in stock PyTorch.

Each row is a training step, forward, backward and the optimizer, of ResNet-8 of width 16 on 128x3x32x32 and
of ResNet-18 on 8x3x64x64, where small arithmetic shows most; both channels-last. It is fair because both
sides take the same images through the same arithmetic in turns, and "nothing turned" even on the very same
network, steered and released again within the time taken: a copy elsewhere in memory alone may be a few per
cent faster or slower.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.race import Asked, Row, compare, race
from trimtab import models, norm

Pass = Callable[[], None]

STEPS = 10
"""Steps a round: one takes a tenth of a second, and its time scatters by as much as what is measured."""

INVISIBLE, STEERED, APART = "<= 1.03", "<= 1.3", "<= 1.1"


def rows(asked: Asked) -> Iterator[Row]:
    batch = 8 if asked.quick else 128
    yield from network_rows("ResNet-8", network("resnet8", width=4 if asked.quick else 16), 32, batch, asked)
    if not asked.quick:
        yield from network_rows("ResNet-18", network("resnet18"), 64, 8, asked)


def network_rows(title: str, net: nn.Module, size: int, batch: int, asked: Asked) -> Iterator[Row]:
    stock, others = cases(net, size, batch)
    for name, (other, wanted) in others.items():
        # A pair at a time: neighbors in time share the machine's mood.
        times = race({"stock": stock, "steered": other}, asked.turns if asked.quick else asked.turns * STEPS)
        yield compare("norm", f"{title}, {name} / stock", times, "steered", "stock", wanted)


def cases(stock: nn.Module, size: int, batch: int) -> tuple[Pass, dict[str, tuple[Pass, str]]]:
    """The stock step, and each steered one with its mark."""
    steered = norm.steer(copy.deepcopy(stock))
    routed = norm.add_branch(copy.deepcopy(steered), "adv")
    shapes = torch.Generator().manual_seed(1)
    x = torch.randn(batch, 3, size, size, generator=shapes).contiguous(memory_format=torch.channels_last)
    y = torch.randint(0, 10, (batch,), generator=shapes)
    shift = {
        name: norm.Shift(*(0.1 * torch.randn(2, layer.num_features, generator=shapes)).unbind())
        for name, layer in norm.layers(steered).items()
    }

    def train(model: nn.Module, steering: Callable[[], Any] = nullcontext) -> Pass:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

        def once() -> None:
            optimizer.zero_grad()
            with steering():
                F.cross_entropy(model(x), y).backward()
            optimizer.step()

        return once

    def using(**knobs: Any) -> Pass:
        model = routed if "branch" in knobs else steered
        return train(model, lambda: norm.use(model, **knobs))

    halves = [("main", batch - batch // 2), ("adv", batch // 2)]
    many = min(16, batch // 2)
    few = many // 2
    second = {"shift": shift, "update": False}  # APART's second pass
    return train(stock), {
        "nothing turned": (train(stock, lambda: briefly_steered(stock)), INVISIBLE),
        "observed": (train(steered, lambda: norm.observe(steered)), STEERED),
        "running statistics": (using(source="running", update=False), STEERED),
        f"{few} groups": (using(groups=few), STEERED),
        f"{many} groups": (using(groups=many), STEERED),
        "two branches": (using(branch=halves), STEERED),
        "blend": (using(source="blend", rho=0.3), STEERED),
        "shifted": (using(shift=shift), STEERED),
        f"shifted, {few} groups, no update": (using(groups=few, **second), APART),
        f"shifted, {many} groups, no update": (using(groups=many, **second), APART),
    }


@contextmanager
def briefly_steered(model: nn.Module) -> Iterator[None]:
    norm.steer(model)
    yield
    norm.release(model)


def network(name: str, **arguments: Any) -> nn.Module:
    torch.manual_seed(0)
    net = models.build(name, classes=10, **arguments)
    return net.to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]
