"""Training steps against the same passes in bare PyTorch.

A step of an objective (with the optimizer) is compared with the sum of the forward and backward passes it
needs, written plainly: same network, same memory layout, same images, no attack tricks. AdvBN is compared
with itself: its cost should be a straight line over its steps, and fall as the cut moves deeper. ResNet-8 of
width 16 on 128x3x32x32; APART also on its paper's PreAct-ResNet-18, in a fresh process, whose memory no small
pieces have broken up. All contestants keep freed memory, as `trimtab train` does: else pages that are fetched
anew, now more of them and now fewer, blur the ratios.
Adversarial training is compared with how it is usually written: the attack in train mode, channels first.
That runs once beside ours, its memory kept as well, and once as a script: a process as a user starts it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.alone import alone
from benchmarks.race import Asked, Row, Run, Times, compare, quartiles, race
from trimtab import models, norm, train
from trimtab._accel import channels_last
from trimtab.attacks import PGD, Linf
from trimtab.attacks.base import SLICE
from trimtab.cli.memory import tune_allocator
from trimtab.measure.ligs import input_gradient

Build = Callable[[], nn.Module]
STEPS = 6
"""Steps a round where a step is all that is timed: its time scatters by more than what is asked for."""
GROWING = 4
"""Steps of a large network in which its process's heap grows to what it needs."""


def rows(asked: Asked) -> Iterator[Row]:
    tune_allocator(large=True)
    (x, y), (resnet8, _) = batch(asked.quick), networks(asked.quick)
    yield from passes(x, y, resnet8, asked.turns)
    yield from apart(asked)
    yield from adversarial(x, y, resnet8, asked)
    yield from advbn(x, y, resnet8, asked.turns)


def batch(quick: bool) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    x = torch.rand(16 if quick else 128, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    return x, torch.randint(10, (len(x),))


def networks(quick: bool) -> tuple[Build, Build]:
    return network("resnet8", 4 if quick else 16), network("preact18", 8 if quick else 64)


def network(name: str, width: int) -> Build:
    def build() -> nn.Module:
        torch.manual_seed(0)
        net = models.build(name, classes=10, width=width)
        return net.to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]

    return build


def step_of(objective: train.Objective, x: Tensor, y: Tensor, build: Build) -> Run:
    """The objective and the optimizer's step, as in the loop."""
    model = objective.prepare(build())
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 1e-4, momentum=0.9)
    ids = torch.arange(len(x))

    def run() -> None:
        optimizer.zero_grad()
        objective(model, x, y, ids=ids)
        optimizer.step()

    return run


def bare(sizes: list[int], x: Tensor, y: Tensor, build: Build) -> Run:
    """Forward and backward passes over the first so many images, and the optimizer's step."""
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), 1e-4, momentum=0.9)

    def run() -> None:
        optimizer.zero_grad()
        for size in sizes:
            F.cross_entropy(model(x[:size]), y[:size]).backward()
        optimizer.step()

    return run


def plain_adversarial(x: Tensor, y: Tensor, steps: int, eps: float, build: Build) -> Run:
    """PGD training as it is usually written: everything in train mode, channels first."""
    model = build().to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), 1e-4, momentum=0.9)
    x = x.contiguous()

    def run() -> None:
        moved = (x + torch.empty_like(x).uniform_(-eps, eps)).clamp(0, 1)
        for _ in range(steps):
            moved.requires_grad_(True)
            (grad,) = torch.autograd.grad(F.cross_entropy(model(moved), y), moved)
            moved = moved.detach() + 2.5 * eps / steps * grad.sign()
            moved = torch.min(torch.max(moved, x - eps), x + eps).clamp(0, 1)
        optimizer.zero_grad()
        F.cross_entropy(model(moved), y).backward()
        optimizer.step()

    return run


def plain_script(steps: int, eps: float, quick: bool) -> Run:
    """The same as a program of its own."""
    (x, y), (resnet8, _) = batch(quick), networks(quick)
    return plain_adversarial(x, y, steps, eps, resnet8)


def bare_adversarial(x: Tensor, y: Tensor, steps: int, build: Build) -> Run:
    """What PGD training cannot do without: input gradients of the folded network, and a step."""
    net = channels_last(norm.fold(build()))
    few = SLICE * torch.get_num_threads()
    step = bare([len(x)], x, y, build)

    def run() -> None:
        for _ in range(steps):
            for part, labels in zip(x.split(few), y.split(few), strict=True):
                input_gradient(net, part, labels)
        step()

    return run


def passes(x: Tensor, y: Tensor, build: Build, turns: int) -> Iterator[Row]:
    """Objectives that are sums of passes."""
    n, few = counts(x)
    times = race(
        {
            "bare": bare([n], x, y, build),
            "bare twice": bare([n, n], x, y, build),
            "bare and some": bare([n, few], x, y, build),
            "standard": step_of(train.Standard(), x, y, build),
            "SAM": step_of(train.SAM(), x, y, build),
            f"APART, N = {n}": step_of(train.APART(), x, y, build),
            f"APART, N = {n}, 16 groups": step_of(train.APART(groups=min(16, n // 2)), x, y, build),
            f"APART, N = {few}": step_of(train.APART(samples=few), x, y, build),
        },
        turns if turns == 1 else turns * STEPS,
    )
    for top, bottom, called, wanted in (
        ("standard", "bare", "its passes", "<= 1.05"),
        ("SAM", "bare twice", "its passes", "<= 1.05"),
        (f"APART, N = {n}", "bare twice", "its passes", "<= 1.05"),
        (f"APART, N = {n}, 16 groups", "bare twice", "its passes", ""),
        (f"APART, N = {few}", "bare and some", "its passes", "<= 1.05"),
        (f"APART, N = {n}", "standard", "standard", "<= 2.05"),
        (f"APART, N = {few}", "standard", "standard", "<= 1.25"),
    ):
        yield compare("train", f"{top} / {called}", times, top, bottom, wanted)


def apart(asked: Asked) -> Iterator[Row]:
    """APART of a large network against its passes and standard training, in a fresh process."""
    n, few = counts(batch(asked.quick)[0])
    with alone(large_steps, asked.turns, asked.quick) as run:
        times: Times = run()
    for top, bottom, called, wanted in (
        (f"APART, N = {n}", "bare twice", "its passes", "<= 1.05"),
        (f"APART, N = {few}", "bare and some", "its passes", "<= 1.05"),
        (f"APART, N = {n}", "standard", "standard", "<= 2.05"),
        (f"APART, N = {few}", "standard", "standard", "<= 1.25"),
    ):
        yield compare("train", f"{top}, PreAct-ResNet-18 / {called}", times, top, bottom, wanted)


def large_steps(turns: int, quick: bool) -> Run:
    """Steps of PreAct-ResNet-18 in turns, as `trimtab train` takes them."""
    tune_allocator(large=True)
    (x, y), (_, preact18) = batch(quick), networks(quick)
    n, few = counts(x)
    runs = {
        "bare twice": bare([n, n], x, y, preact18),
        "bare and some": bare([n, few], x, y, preact18),
        "standard": step_of(train.Standard(), x, y, preact18),
        f"APART, N = {n}": step_of(train.APART(), x, y, preact18),
        f"APART, N = {few}": step_of(train.APART(samples=few), x, y, preact18),
    }
    for run in list(runs.values()) * (0 if quick else GROWING):
        run()
    return lambda: race(runs, turns)


def counts(x: Tensor) -> tuple[int, int]:
    """All images, and as many as APART's quick setting takes (24 of 128)."""
    return len(x), max(2, round(len(x) * 24 / 128))


def adversarial(x: Tensor, y: Tensor, build: Build, asked: Asked) -> Iterator[Row]:
    ours = {
        f"PGD-7 training{rough}": train.Adversarial(PGD(Linf("8/255"), steps=7, precision=precision))
        for rough, precision in (("", "full"), (", bfloat16 gradients", "bfloat16"))
    }
    runs = {name: step_of(objective, x, y, build) for name, objective in ours.items()}
    needed = {"bare": bare_adversarial(x, y, 7, build), "plain": plain_adversarial(x, y, 7, 8 / 255, build)}
    with alone(plain_script, 7, 8 / 255, asked.quick) as script:
        times = race(needed | {"plain script": script} | runs, asked.turns)
    for name in runs:
        for plain in ("plain", "plain script"):
            what = f"{name}, images per second / {plain}"
            yield compare("train", what, times, plain, name, ">= 1.7")
    yield compare("train", "PGD-7 training / its bare passes", times, "PGD-7 training", "bare", "<= 1.1")


def advbn(x: Tensor, y: Tensor, build: Build, turns: int) -> Iterator[Row]:
    """Cost over the steps of the ascent, and over the place of the cut."""
    steps = range(3, 9)
    times = race({f"{m} steps": step_of(train.AdvBN(steps=m), x, y, build) for m in steps}, turns)
    bends = [bend(steps, taken) for taken in zip(*times.values(), strict=True)]
    seconds = {name: quartiles(taken) for name, taken in times.items()}
    typical = bend(steps, [q.median for q in seconds.values()])
    what = "AdvBN, 3 to 8 steps: largest distance from a line / mean"
    yield Row("train", what, typical, (quartiles(bends).low, quartiles(bends).high), "<= 0.05", seconds)
    cuts = ("act", "layer1", "layer2")
    times = race({cut: step_of(train.AdvBN(cut=cut), x, y, build) for cut in cuts}, turns)
    for deep, shallow in zip(cuts[1:], cuts, strict=False):
        yield compare("train", f"AdvBN behind {deep} / behind {shallow}", times, deep, shallow, "<= 1")


def bend(x: range, y: object) -> float:
    """How far y strays from a straight line over x, relative to its mean."""
    taken = np.asarray(y, dtype=float)
    return float(np.abs(np.polyval(np.polyfit(x, taken, 1), x) - taken).max() / taken.mean())
