"""What steering costs: passes of a steered network against stock PyTorch, as ratios in one process.

    python benchmarks/norm.py [--rounds 25] [--batch 128] [--threads 1] [--json]

Each row is a training step: forward, backward and the optimiser, of ResNet-8 of width 16 on 3x32x32, and of
ResNet-18 (torchvision's shapes) on 8x3x64x64, where small arithmetic shows most; both channels-last. Times
are the process's own CPU time, the mean of the quickest quarter of the rounds (other work on the machine only
ever adds), with the stock and the steered step taking turns. Exit code 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from trimtab import models, norm

Pass = Callable[[], None]
Cases = dict[str, tuple[Pass, float]]

INVISIBLE, STEERED, APART = 1.03, 1.3, 1.1
COLUMNS = ("network", "pass", "seconds", "ratio", "target")


def cases(stock: nn.Module, size: int, batch: int, apart: float) -> tuple[Pass, Cases]:
    """The stock step, and each steered one with the ratio to it that it should not exceed."""
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
        optimiser = torch.optim.SGD(model.parameters(), lr=0.0)

        def once() -> None:
            optimiser.zero_grad()
            with steering():
                F.cross_entropy(model(x), y).backward()
            optimiser.step()

        return once

    def using(**knobs: Any) -> Pass:
        model = routed if "branch" in knobs else steered
        return train(model, lambda: norm.use(model, **knobs))

    halves = [("main", batch - batch // 2), ("adv", batch // 2)]
    many = min(16, batch // 2)
    few = many // 2
    second = {"shift": shift, "update": False}  # APART's second pass
    return train(stock), {
        "steered, nothing turned": (train(stock, lambda: briefly_steered(stock)), INVISIBLE),
        "observed": (train(steered, lambda: norm.observe(steered)), STEERED),
        "running statistics": (using(source="running", update=False), STEERED),
        f"{few} groups": (using(groups=few), STEERED),
        f"{many} groups": (using(groups=many), STEERED),
        "two branches": (using(branch=halves), STEERED),
        "blend": (using(source="blend", rho=0.3), STEERED),
        "shifted": (using(shift=shift), STEERED),
        f"shifted, {few} groups, no update": (using(groups=few, **second), apart),
        f"shifted, {many} groups, no update": (using(groups=many, **second), apart),
    }


@contextmanager
def briefly_steered(model: nn.Module) -> Iterator[None]:
    """The very same network: a copy elsewhere in memory alone may be a few per cent faster or slower."""
    norm.steer(model)
    yield
    norm.release(model)


def compare(stock: Pass, other: Pass, rounds: int) -> tuple[float, float]:
    """CPU seconds of `other`, and their ratio to those of the stock step, which takes turns with it."""
    stock(), other()
    times: dict[Pass, list[float]] = {stock: [], other: []}
    for turn in range(rounds):
        for run in (stock, other) if turn % 2 else (other, stock):
            times[run].append(timed(run))
    quickest = {run: statistics.mean(sorted(taken)[: -(-rounds // 4)]) for run, taken in times.items()}
    return quickest[other], quickest[other] / quickest[stock]


def timed(run: Pass) -> float:
    began = time.process_time()
    run()
    return time.process_time() - began


def network(name: str, **arguments: Any) -> nn.Module:
    torch.manual_seed(0)
    net = models.build(name, classes=10, **arguments)
    return net.to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--batch", type=int, default=128, help="images per pass of the ResNet-8")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)

    rows = []
    for title, net, size, batch, apart in (
        ("ResNet-8 x 16", network("resnet8", width=16), 32, chosen.batch, APART),
        ("ResNet-18", network("resnet18"), 64, 8, STEERED),
    ):
        stock, others = cases(net, size, batch, apart)
        for name, (other, target) in others.items():
            rows.append((title, name, *compare(stock, other, chosen.rounds), target))
    if chosen.json:
        print(json.dumps([dict(zip(COLUMNS, row, strict=True)) for row in rows], indent=1))
    else:
        for title, name, seconds, ratio, target in rows:
            print(f"{title:<14} {name:<32} {1e3 * seconds:8.1f} ms {ratio:6.3f}   at most {target}")
    return int(any(ratio > target for *_, ratio, target in rows))


if __name__ == "__main__":
    sys.exit(main())
