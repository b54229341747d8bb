"""Training steps against the same passes in bare PyTorch, in one process, interleaved.

    python benchmarks/train.py [passes adversarial advbn] [--rounds 9] [--batch 128] [--json]

A step of an objective is compared with the sum of the forward and backward passes it needs, written plainly
(same memory layout, same network, no attack tricks). Adversarial training is compared with how it is usually
written: the attack in train mode, channels first. Network: ResNet-8 of width 16 on 3x32x32. Times are the
process's own CPU time on one thread, medians of interleaved rounds: read the ratios, not the seconds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trimtab import models, train
from trimtab.attacks import PGD, Linf

Contestants = dict[str, Callable[[], object]]
Rows = Iterator[tuple[str, float, str]]
"""What was compared, the ratio, and what it should be."""


def network() -> nn.Module:
    torch.manual_seed(0)
    net = models.build("resnet8", classes=10, width=16)
    return net.to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]


def race(contestants: Contestants, rounds: int) -> dict[str, float]:
    """Median CPU seconds of each, run in turns after a warm-up."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds + 1):
        for name, run in contestants.items():
            began = time.process_time()
            run()
            times[name].append(time.process_time() - began)
    return {name: statistics.median(taken[1:]) for name, taken in times.items()}


def step_of(objective: train.Objective, x: Tensor, y: Tensor) -> Callable[[], object]:
    """The objective and the optimiser's step, as in the loop."""
    model = objective.prepare(network())
    optimiser = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 1e-4, momentum=0.9)
    ids = torch.arange(len(x))

    def run() -> None:
        optimiser.zero_grad()
        objective(model, x, y, ids=ids)
        optimiser.step()

    return run


def bare(sizes: list[int], x: Tensor, y: Tensor) -> Callable[[], object]:
    """Forward and backward passes over the first so many images, and the optimiser's step."""
    model = network()
    optimiser = torch.optim.SGD(model.parameters(), 1e-4, momentum=0.9)

    def run() -> None:
        optimiser.zero_grad()
        for size in sizes:
            F.cross_entropy(model(x[:size]), y[:size]).backward()
        optimiser.step()

    return run


def plain_adversarial(x: Tensor, y: Tensor, steps: int, eps: float) -> Callable[[], object]:
    """PGD training as it is usually written: everything in train mode, channels first."""
    torch.manual_seed(0)
    model = models.build("resnet8", classes=10, width=16).train()
    optimiser = torch.optim.SGD(model.parameters(), 1e-4, momentum=0.9)
    x = x.contiguous()

    def run() -> None:
        moved = (x + torch.empty_like(x).uniform_(-eps, eps)).clamp(0, 1)
        for _ in range(steps):
            moved.requires_grad_(True)
            (grad,) = torch.autograd.grad(F.cross_entropy(model(moved), y), moved)
            moved = moved.detach() + 2.5 * eps / steps * grad.sign()
            moved = torch.min(torch.max(moved, x - eps), x + eps).clamp(0, 1)
        optimiser.zero_grad()
        F.cross_entropy(model(moved), y).backward()
        optimiser.step()

    return run


def passes(x: Tensor, y: Tensor, rounds: int) -> Rows:
    """Objectives that are sums of passes."""
    n = len(x)
    few = max(2, round(n * 24 / 128))
    found = race(
        {
            "bare": bare([n], x, y), "bare twice": bare([n, n], x, y), "bare and some": bare([n, few], x, y),
            "standard": step_of(train.Standard(), x, y),
            "sam": step_of(train.SAM(), x, y),
            "apart": step_of(train.Apart(), x, y),
            "apart groups": step_of(train.Apart(groups=16), x, y),
            "apart some": step_of(train.Apart(samples=few), x, y),
        },
        rounds,
    )  # fmt: skip
    yield "standard / its passes", found["standard"] / found["bare"], "<= 1.05"
    yield "SAM / its passes", found["sam"] / found["bare twice"], "<= 1.05"
    yield f"APART, N = {n} / its passes", found["apart"] / found["bare twice"], "<= 1.05"
    yield f"APART, N = {n}, 16 groups / its passes", found["apart groups"] / found["bare twice"], ""
    yield f"APART, N = {few} / its passes", found["apart some"] / found["bare and some"], "<= 1.05"
    yield f"APART, N = {n} / standard", found["apart"] / found["standard"], "<= 2.05"
    yield f"APART, N = {few} / standard", found["apart some"] / found["standard"], "<= 1.25"


def adversarial(x: Tensor, y: Tensor, rounds: int) -> Rows:
    ours = step_of(train.Adversarial(PGD(Linf("8/255"), steps=7)), x, y)
    found = race({"plain": plain_adversarial(x, y, 7, 8 / 255), "ours": ours}, rounds)
    yield "PGD-7 training, images per second / plain", found["plain"] / found["ours"], ">= 1.7"


def advbn(x: Tensor, y: Tensor, rounds: int) -> Rows:
    """Cost over the steps of the ascent, and over the place of the cut."""
    steps = range(3, 9)
    found = race({str(m): step_of(train.AdvBN(steps=m), x, y) for m in steps}, rounds)
    taken = np.array(list(found.values()))
    bend = np.abs(np.polyval(np.polyfit(steps, taken, 1), steps) - taken).max() / taken.mean()
    yield "AdvBN, 3 to 8 steps: largest distance from a line, of the mean", float(bend), "<= 0.05"
    for m in found:
        yield f"AdvBN, {m} steps / 6 steps", found[m] / found["6"], ""
    found = race({cut: step_of(train.AdvBN(cut=cut), x, y) for cut in ("act", "layer1", "layer2")}, rounds)
    for cut in found:
        yield f"AdvBN behind {cut} / act", found[cut] / found["act"], "falling"


SECTIONS = {"passes": passes, "adversarial": adversarial, "advbn": advbn}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("sections", nargs="*", choices=[*SECTIONS, []], default=list(SECTIONS))
    options.add_argument("--rounds", type=int, default=9)
    options.add_argument("--batch", type=int, default=128)
    options.add_argument("--json", action="store_true")
    chosen = options.parse_args()
    torch.set_num_threads(1)
    x = torch.rand(chosen.batch, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    y = torch.randint(10, (chosen.batch,))
    rows = {}
    for section in chosen.sections:
        for name, value, wanted in SECTIONS[section](x, y, chosen.rounds):
            rows[name] = value
            if not chosen.json:
                print(f"{name:<64} {value:6.3f}  {wanted}", flush=True)
    if chosen.json:
        print(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
