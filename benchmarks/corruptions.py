"""How long do all 19 corruptions at all five severities take, here and in the package `imagecorruptions`?

    python benchmarks/corruptions.py [--sizes 32 224] [--rounds 5] [--threads 1] [--cpu] [NAME ...]

One process, ours and theirs in turns, the same job for both: a uint8 batch (N, C, H, W) of photographs in,
the corrupted batch out (theirs take the images one by one). Times are per image, averaged over the
severities, the least of the rounds. One thread each unless told otherwise, since on a busy machine threads
wait for each other; there also measure processor time, --cpu. Exit code 1 if the whole takes more than a
tenth of their time, or any corruption more than all of it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.data.corruption_images import photographs
from tests.reference.imagecorruptions_oracle import corrupted

from trimtab.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, corrupt

BATCH = {32: 256, 224: 12}
THEIRS = {32: 16, 224: 2}  # images per turn: theirs are slow, and gain nothing from a batch


def theirs(x: torch.Tensor, name: str, severity: int) -> torch.Tensor:
    images = x.permute(0, 2, 3, 1).contiguous().numpy()
    out = np.stack([corrupted(image, name, severity) for image in images])
    return torch.from_numpy(out).permute(0, 3, 1, 2).contiguous()


def seconds(name: str, size: int, rounds: int, clock: Callable[[], float]) -> tuple[float, float]:
    """Per image: ours and theirs."""
    few = torch.from_numpy(photographs(size, THEIRS[size])).permute(0, 3, 1, 2).contiguous()
    many = few.repeat(BATCH[size] // THEIRS[size], 1, 1, 1)
    total = [0.0, 0.0]
    for severity in range(1, 6):
        corrupt(many, name, severity)  # tables are made once
        turns: tuple[list[float], list[float]] = ([], [])
        for turn in range(rounds):
            started = clock()
            corrupt(many, name, severity)
            turns[0].append((clock() - started) / len(many))
            if turn and name == "glass_blur":
                continue  # a second per image
            started = clock()
            theirs(few, name, severity)
            turns[1].append((clock() - started) / len(few))
        total = [t + min(turn) / 5 for t, turn in zip(total, turns, strict=True)]
    return total[0], total[1]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=CORRUPTIONS + EXTRA_CORRUPTIONS)
    parser.add_argument("--sizes", type=int, nargs="+", default=[32, 224], choices=sorted(BATCH))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cpu", action="store_true", help="processor time instead of time on the wall")
    chosen = parser.parse_args()
    clock = time.process_time if chosen.cpu else time.perf_counter
    torch.set_num_threads(chosen.threads)
    cv2.setNumThreads(chosen.threads)
    np.random.seed(0)  # noqa: NPY002  theirs draw from NumPy's global generator
    missed = False
    for size in chosen.sizes:
        print(
            f"\n{size} x {size}, {chosen.threads} threads, ms per image: ours, theirs, how many times faster"
        )
        total = np.zeros(2)
        for name in chosen.names:
            times = np.array(seconds(name, size, chosen.rounds, clock))
            total += times
            missed |= times[0] > times[1]
            print(
                f"{name:18} {times[0] * 1e3:9.3f} {times[1] * 1e3:9.3f} {times[1] / times[0]:8.1f}",
                flush=True,
            )
        missed |= total[0] > total[1] / 10
        print(f"{'all':18} {total[0] * 1e3:9.3f} {total[1] * 1e3:9.3f} {total[1] / total[0]:8.1f}")
    return int(missed)


if __name__ == "__main__":
    raise SystemExit(main())
