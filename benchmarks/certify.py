"""Certification against the plain published procedure, in one process, interleaved.

    python benchmarks/certify.py [--images 4] [--n 1900] [--rounds 5] [--json]

The plain procedure is what Cohen et al. describe: one image at a time, the image repeated to a batch, noise
of that shape added, the network in eval mode, predictions counted. Its published default is batches of
1,000, its published experiments took 400; smaller ones suit a CPU better. All contestants take the same
number of draws. A second table shows what giving up early spares on top of that.

The network is a ResNet-8 of width 16 on 3x32x32 with random weights, under which no image abstains; time
does not depend on the weights. Medians of interleaved rounds: read the ratios, not the seconds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from trimtab import certify, models
from trimtab.certify.bounds import hopeless, p_lower, radius
from trimtab.certify.smoothing import looks

PLAIN_BATCHES = (1000, 400, 200, 100)


@torch.no_grad()
def plain(
    model: nn.Module, x: Tensor, sigma: float, n0: int, n: int, alpha: float, batch: int
) -> list[tuple[int, float]]:
    """Certify images one by one, as published."""

    def count(image: Tensor, draws: int) -> Tensor:
        counts = torch.zeros(10, dtype=torch.long)
        while draws > 0:
            now = min(batch, draws)
            draws -= now
            copies = image.repeat((now, 1, 1, 1))
            noise = torch.randn_like(copies) * sigma
            counts += model(copies + noise).argmax(1).bincount(minlength=10)
        return counts

    found = []
    for image in x:
        guess = int(count(image, n0).argmax())
        bound = float(p_lower(int(count(image, n)[guess]), n, alpha))
        found.append((guess, float(radius(bound, sigma))) if bound > 0.5 else (certify.ABSTAIN, 0.0))
    return found


def race(contestants: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median seconds of each, run in turns after a warm-up."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(rounds + 1):
        for name, run in contestants.items():
            start = time.perf_counter()
            run()
            if turn:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(found) for name, found in times.items()}


def share_taken(p: float, n: int, alpha: float, chance: float, images: int = 2_000) -> float:
    """The share of n draws that an image takes whose guessed class has probability p (simulated)."""
    at = np.array(looks(n))
    hits = np.random.default_rng(0).binomial(np.diff(at, prepend=0), p, (images, len(at))).cumsum(axis=1)
    given_up = hits <= hopeless(n, alpha, at, chance)
    first = np.where(given_up.any(axis=1), given_up.argmax(axis=1), len(at) - 1)
    return float(at[first].mean() / n)


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--images", type=int, default=4)
    ask.add_argument("--n", type=int, default=1_900)
    ask.add_argument("--rounds", type=int, default=5)
    ask.add_argument("--json", action="store_true")
    given = ask.parse_args()

    torch.manual_seed(0)
    model = models.build("resnet8", classes=10).eval()
    x = torch.rand(given.images, 3, 32, 32)
    settings = {"sigma": 0.5, "n0": 100, "n": given.n, "alpha": 0.001}
    runs: dict[str, Callable[[], object]] = {
        f"plain, batches of {b}": lambda b=b: plain(model, x, **settings, batch=b) for b in PLAIN_BATCHES
    }
    runs["trimtab"] = lambda: certify.certify(model, x, **settings)
    seconds = race(runs, given.rounds)

    draws = given.images * (settings["n0"] + given.n)
    taken = int(certify.certify(model, x, **settings).draws.sum()) + given.images * settings["n0"]
    assert taken == draws, "an image was given up; the race would not be at equal draws"
    result = {
        "draws": draws,
        "microseconds per draw": {name: 1e6 * s / draws for name, s in seconds.items()},
        "plain over trimtab": {name: s / seconds["trimtab"] for name, s in seconds.items()},
        "share of 100,000 draws taken": {
            f"{p:g}": {
                "out of reach": share_taken(p, 100_000, 0.001, 0.0),
                "give_up 1e-6": share_taken(p, 100_000, 0.001, 1e-6),
            }
            for p in (0.2, 0.3, 0.4, 0.45, 0.48, 0.5, 0.6)
        },
    }
    print(json.dumps(result, indent=2) if given.json else _table(result))


def _table(result: dict) -> str:
    lines = [
        f"{result['draws']:,} draws each, {torch.get_num_threads()} threads, torch {torch.__version__}",
        "",
    ]
    for name, ratio in result["plain over trimtab"].items():
        lines.append(f"{name:<24}{result['microseconds per draw'][name]:8.0f} us a draw{ratio:8.2f}x")
    lines += ["", "share of 100,000 draws taken by an image whose guessed class has probability p"]
    lines.append(f"{'p':>6}{'out of reach':>16}{'give_up 1e-6':>16}")
    for p, share in result["share of 100,000 draws taken"].items():
        lines.append(f"{p:>6}{share['out of reach']:>16.3f}{share['give_up 1e-6']:>16.3f}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
