"""PGD-20 and Auto-PGD-20 against torchattacks, foolbox and ART, and against the bare passes they need.

The same budget (Linf, 8/255), steps, step size and random starts on the first 256 test images of CIFAR-10,
for a network without robustness and for an adversarially trained one. "As shipped" sets our any-iterate
scoring, which lets broken images leave, against the peers' last iterate; "same rule" keeps every image to
the last iterate on both sides. Each peer is raced at the batch it is given and at the batch that suits it
best. The bare passes are 20 input gradients of the folded network, channels last, at our own working batch:
what nobody could do without. Both of ours run twice: in the model's precision, as the peers do, and with
gradients in bfloat16, which none of them offers. Memory is taken in processes of their own (peak.py).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from statistics import median

import torch
from torch import Tensor, nn

import trimtab
from benchmarks import peak
from benchmarks.peers import ANY, EPS, LAST, OURS, PEERS, ROUGH, Work, contestant, images
from benchmarks.race import Asked, Row, Skipped, compare, race
from trimtab.attacks import APGD, PGD, Linf
from trimtab.attacks.base import SLICE
from trimtab.attacks.guard import fast, guard
from trimtab.measure.ligs import input_gradient
from trimtab.types import BadInput

MARKS = {"standard": (">= 15", ">= 12"), "robust": (">= 5", ">= 4")}
"""As shipped: at batch 256, and each library at its own best batch."""
SAME_RULE = (">= 2", ">= 1.6")


@dataclass(frozen=True)
class Fight:
    kind: str
    model: nn.Module
    x: Tensor
    y: Tensor
    sizes: tuple[int, ...]
    """Batches that are tried; the first holds all images."""
    steps: int
    turns: int


def rows(asked: Asked) -> Iterator[Row]:
    sizes, steps = ((8, 4), 2) if asked.quick else ((256, 64), 20)
    for kind, default in (("standard", "zoo:cifar10-standard"), ("robust", "zoo:cifar10-adversarial")):
        given: str | None = getattr(asked, kind)
        spec = given or default
        try:
            model = trimtab.load(spec).eval()
            x, y = images(sizes[0], asked.quick)
        except BadInput as why:
            if given:
                raise
            raise Skipped("attacks", f"{why}; or name a network with --{kind}") from None
        fight = Fight(kind, model, x, y, sizes, steps, asked.turns)
        for part in (pgd, auto_pgd, bare_passes):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the peers', about what they are built on
                found = list(part(fight))
            yield from found
    yield from peak_memory(spec, sizes[0], steps, asked)


def pgd(fight: Fight) -> Iterator[Row]:
    sizes = fight.sizes
    works = {name: contestant(name, fight.model, fight.steps) for name in (*OURS, *PEERS)}
    runs = {f"{n}, {size}": in_batches(w, fight, size) for n, w in works.items() for size in sizes}
    times = race(runs, fight.turns)
    best = {n: min((f"{n}, {size}" for size in sizes), key=lambda k: median(times[k])) for n in works}
    for ours in OURS:
        any_iterate, rough = ours.startswith(ANY), ROUGH if ours.endswith(ROUGH) else ""
        rule, marks = ("as shipped", MARKS[fight.kind]) if any_iterate else ("same rule", SAME_RULE)
        title, size = f"PGD-{fight.steps}{rough}, {fight.kind} network, {rule}", sizes[0]
        for peer in PEERS:
            at = (f"{peer}, {size}", f"{ours}, {size}")
            yield compare("attacks", f"{title}, batch {size}: {peer} / ours", times, *at, marks[0])
            at = (best[peer], best[ours])
            yield compare("attacks", f"{title}, best batches: {peer} / ours", times, *at, marks[1])


def auto_pgd(fight: Fight) -> Iterator[Row]:
    import torchattacks

    model, steps = fight.model, fight.steps
    theirs = torchattacks.APGD(model, norm="Linf", eps=EPS, steps=steps, loss="ce", seed=0)
    ours = APGD(Linf(EPS), steps)
    works: dict[str, Work] = {
        "ours": lambda x, y: ours(model, x, y),
        "torchattacks": lambda x, y: theirs(x, y),
    }
    times = race({n: in_batches(w, fight, fight.sizes[0]) for n, w in works.items()}, fight.turns)
    what = f"APGD-{steps}, {fight.kind} network, batch {fight.sizes[0]}: torchattacks / ours"
    yield compare("attacks", what, times, "torchattacks", "ours", ">= 2")


def bare_passes(fight: Fight) -> Iterator[Row]:
    with guard(fight.model):
        net = fast(fight.model, fight.x)

    def bare(x: Tensor, y: Tensor) -> None:
        x = x.contiguous(memory_format=torch.channels_last)
        for _ in range(fight.steps):
            input_gradient(net, x, y)

    ours = PGD(Linf(EPS), fight.steps)
    runs = {
        "ours": in_batches(lambda x, y: ours(fight.model, x, y), fight, fight.sizes[0]),
        "bare": in_batches(bare, fight, SLICE),
    }
    what = f"PGD-{fight.steps}, {fight.kind} network, last iterate / its bare passes"
    yield compare("attacks", what, race(runs, fight.turns), "ours", "bare", "<= 1.1")


def peak_memory(spec: str, count: int, steps: int, asked: Asked) -> Iterator[Row]:
    theirs = "torchattacks"
    found = {
        name: [peak.of(spec, name, count, steps, asked.quick) for _ in range(min(3, asked.turns))]
        for name in (ANY, LAST, theirs)
    }
    for ours in (ANY, LAST):
        row = compare("attacks", "", found, ours, theirs, "<= 1")
        megabytes = f"{ours}, {median(found[ours]):.0f} MB / {theirs}, {median(found[theirs]):.0f} MB"
        yield replace(row, what=f"peak memory above idle: {megabytes}", seconds={})


def in_batches(work: Work, fight: Fight, size: int) -> Callable[[], None]:
    def run() -> None:
        for x, y in zip(fight.x.split(size), fight.y.split(size), strict=True):
            work(x, y)

    return run
