"""PGD-20 and Auto-PGD-20 against torchattacks, foolbox and ART, and against the bare passes they need.

The same budget (Linf, 8/255), steps, step size and random starts on the first 256 test images of CIFAR-10,
for a network without robustness and for an adversarially trained one. "As shipped" sets our any-iterate
scoring, which lets broken images leave, against the peers' last iterate; "same rule" keeps every image to
the last iterate on both sides. Each peer is raced at the batch it is given and at the batch that suits it
best, sizes one after the other (so the spread of a row with two sizes is not of common rounds). Every
contestant has a process of its own for every size, a peer's as its users start it, ours as `trimtab evaluate`
does: it keeps the memory it frees. "In a script" is ours without that, as called from a user's own program.
Ours also runs with gradients in bfloat16, which no peer offers. The bare passes are 20 input gradients of the
folded network, channels last, at our own working batch, with memory kept: what nobody could do without.
Memory is taken in processes that do nothing else (peak.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from statistics import median

import trimtab
from benchmarks import peak
from benchmarks.alone import alone, fresh_process
from benchmarks.peers import ANY, AUTO, BARE, LAST, OURS, PEERS, images, prepared
from benchmarks.race import Asked, Row, Skipped, Times, compare, race
from trimtab.attacks.base import SLICE
from trimtab.types import BadInput

MARKS = {"standard": (">= 15", ">= 12"), "robust": (">= 5", ">= 4")}
"""As shipped: at batch 256, and each library at its own best batch."""
SAME_RULE = (">= 2", ">= 1.6")


@dataclass(frozen=True)
class Fight:
    kind: str
    spec: str
    sizes: tuple[int, ...]
    """Batches that are tried; the first holds all images."""
    steps: int
    asked: Asked
    process: Executor | None = None
    """Where all contestants run, in a smoke run; each has a process of its own if there is none."""

    @property
    def images(self) -> int:
        return self.sizes[0]

    def between(self, *contestants: tuple[str, int]) -> Times:
        """Names and sizes of batches in turns, each in a process of its own."""
        with ExitStack() as stack:
            runs = {}
            for name, size in contestants:
                settings = (name, self.spec, self.steps, self.images, size, self.asked.quick)
                contestant = alone(prepared, *settings, process=self.process)
                runs[f"{name}, {size}"] = stack.enter_context(contestant)
            return race(runs, self.asked.turns)


def rows(asked: Asked) -> Iterator[Row]:
    sizes, steps = ((8, 4), 2) if asked.quick else ((256, 64), 20)
    for kind, default in (("standard", "zoo:cifar10-standard"), ("robust", "zoo:cifar10-adversarial")):
        given: str | None = getattr(asked, kind)
        spec = given or default
        try:
            trimtab.load(spec)
            images(sizes[0], asked.quick)
        except BadInput as why:
            if given:
                raise
            raise Skipped("attacks", f"{why}; or name a network with --{kind}") from None
        with fresh_process() if asked.quick else nullcontext() as process:
            fight = Fight(kind, spec, sizes, steps, asked, process)
            for part in (pgd, auto_pgd, bare_passes):
                yield from part(fight)
    yield from peak_memory(spec, sizes[0], steps, asked)


def pgd(fight: Fight) -> Iterator[Row]:
    times: Times = {}
    sizes = fight.sizes
    for size in sizes:
        times |= fight.between(*((name, size) for name in (*OURS, *PEERS)))
    best = {
        name: min((f"{name}, {size}" for size in sizes), key=lambda at: median(times[at]))
        for name in (*OURS, *PEERS)
    }
    for ours in OURS:
        any_iterate, how = ours.startswith(ANY), ours.removeprefix(ANY).removeprefix(LAST)
        rule, marks = ("as shipped", MARKS[fight.kind]) if any_iterate else ("same rule", SAME_RULE)
        title, size = f"PGD-{fight.steps}{how}, {fight.kind} network, {rule}", sizes[0]
        for peer in PEERS:
            at = (f"{peer}, {size}", f"{ours}, {size}")
            yield compare("attacks", f"{title}, batch {size}: {peer} / ours", times, *at, marks[0])
            at = (best[peer], best[ours])
            yield compare("attacks", f"{title}, best batches: {peer} / ours", times, *at, marks[1])


def auto_pgd(fight: Fight) -> Iterator[Row]:
    size = fight.images
    ours, theirs = (f"{name}, {size}" for name in AUTO)
    what = f"APGD-{fight.steps}, {fight.kind} network, batch {size}: torchattacks / ours"
    times = fight.between(*((name, size) for name in AUTO))
    yield compare("attacks", what, times, theirs, ours, ">= 2")


def bare_passes(fight: Fight) -> Iterator[Row]:
    at = (LAST, fight.images), (BARE, min(SLICE * fight.asked.threads, fight.images))
    what = f"PGD-{fight.steps}, {fight.kind} network, last iterate / its bare passes"
    ours, bare = (f"{name}, {size}" for name, size in at)
    yield compare("attacks", what, fight.between(*at), ours, bare, "<= 1.1")


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
