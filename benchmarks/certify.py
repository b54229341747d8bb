"""Certification against the plain published procedure, and against the bare passes and noise it needs.

The plain procedure is what Cohen et al. describe: one image at a time, the image repeated to a batch, noise
of that shape added, the network in eval mode, predictions counted. Its published experiments took batches
of 400, its default is 1,000; 100 suits a CPU better, and is raced as well. All take the same number of
draws, which is checked. The bare passes are forward passes of the folded network, channels last, at our own
batch, on noise drawn the quick way: what nobody could do without. Last, what giving up early spares on top,
simulated.

ResNet-8 of width 16 on 3x32x32 with random weights, under which no image abstains; time does not depend on
the weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.race import Asked, Row, compare, race
from trimtab import certify, models
from trimtab._accel import accelerate
from trimtab.certify.bounds import give_up_counts, p_lower, radius
from trimtab.certify.sampling import BATCH_ON_CPU
from trimtab.certify.smoothing import looks

PLAIN_BATCHES = {400: ">= 2", 1000: "", 100: ""}
SIGMA, N0, ALPHA = 0.5, 100, 0.001


def rows(asked: Asked) -> Iterator[Row]:
    count, n, width = (1, 100, 4) if asked.quick else (4, 1_900, 16)
    torch.manual_seed(0)
    model = models.build("resnet8", classes=10, width=width).eval()
    x = torch.rand(count, 3, 32, 32)
    taken = int(certify.certify(model, x, SIGMA, N0, n, ALPHA).draws.sum())
    assert taken == count * n, "an image was given up; the race would not be at equal draws"
    times = race(
        {f"plain, {batch}": partial(plain, model, x, n, batch) for batch in PLAIN_BATCHES}
        | {"bare": partial(bare, accelerate(model, x), x, n + N0)}
        | {"ours": lambda: certify.certify(model, x, SIGMA, N0, n, ALPHA)},
        asked.turns,
    )
    for batch, wanted in PLAIN_BATCHES.items():
        what = f"plain procedure in batches of {batch} / ours, {count * (n + N0):,} draws"
        yield compare("certify", what, times, f"plain, {batch}", "ours", wanted)
    yield compare("certify", "ours / bare forward passes and noise", times, "ours", "bare", "<= 1.1")
    draws = 1_000 if asked.quick else 100_000
    for chance, words in ((0.0, "only if out of reach"), (1e-6, "at a chance of 1e-6")):
        for p in (0.2, 0.3, 0.4, 0.45, 0.48, 0.5, 0.6):
            share = share_taken(p, draws, ALPHA, chance)
            what = f"share of {draws:,} draws taken at p = {p:g}, given up {words}"
            yield Row("certify", what, share, (share, share))


@torch.no_grad()
def plain(model: nn.Module, x: Tensor, n: int, batch: int) -> list[tuple[int, float]]:
    """Certify images one by one, as published."""

    def count(image: Tensor, draws: int) -> Tensor:
        counts = torch.zeros(10, dtype=torch.long)
        while draws > 0:
            now = min(batch, draws)
            draws -= now
            copies = image.repeat((now, 1, 1, 1))
            noise = torch.randn_like(copies) * SIGMA
            counts += model(copies + noise).argmax(1).bincount(minlength=10)
        return counts

    found = []
    for image in x:
        guess = int(count(image, N0).argmax())
        bound = float(p_lower(int(count(image, n)[guess]), n, ALPHA))
        found.append((guess, float(radius(bound, SIGMA))) if bound > 0.5 else (certify.ABSTAIN, 0.0))
    return found


@torch.no_grad()
def bare(net: nn.Module, x: Tensor, draws: int) -> None:
    """As many noisy copies of each image through the folded network, and nothing counted."""
    for image in x.movedim(1, -1).contiguous():  # (H, W, C): noise is drawn in the order it lies in memory
        for start in range(0, draws, BATCH_ON_CPU):
            shape = (min(BATCH_ON_CPU, draws - start), *image.shape)
            net(torch.empty(shape).normal_(0, SIGMA).add_(image).movedim(-1, 1))


def share_taken(p: float, n: int, alpha: float, chance: float, images: int = 2_000) -> float:
    """The share of n draws that an image takes whose guessed class has probability p (simulated)."""
    at = np.array(looks(n))
    hits = np.random.default_rng(0).binomial(np.diff(at, prepend=0), p, (images, len(at))).cumsum(axis=1)
    given_up = hits <= give_up_counts(n, alpha, at, chance)
    first = np.where(given_up.any(axis=1), given_up.argmax(axis=1), len(at) - 1)
    return float(at[first].mean() / n)
