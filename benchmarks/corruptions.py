"""All 19 corruptions at all five severities, here and in the package `imagecorruptions`.

The same job for both: a uint8 batch (N, C, H, W) of photographs in, the corrupted batch out. Theirs take the
images one by one, gain nothing from a batch and are slow, so that they are given fewer images; times are per
image, all five severities together. The package is patched to run at all (tests/reference), not to be slower.
As many threads for torch as for OpenCV: those asked for, and one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from benchmarks import race
from benchmarks.race import Asked, Row, Times, compare
from trimtab.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, corrupt

OURS = {32: 256, 224: 12}
THEIRS = {32: 16, 224: 2}
SEVERITIES = range(1, 6)


def rows(asked: Asked) -> Iterator[Row]:
    names = ("contrast", "fog") if asked.quick else CORRUPTIONS + EXTRA_CORRUPTIONS
    for count in dict.fromkeys((asked.threads, 1)):
        for size in (32,) if asked.quick else OURS:
            total: Times = {"ours": [0.0] * asked.turns, "theirs": [0.0] * asked.turns}
            title = f"{size}x{size}, {count} thread{'s' * (count > 1)}"
            for name in names:
                with threads(count):
                    times = seconds(name, size, asked.turns)
                total = {side: np.add(total[side], times[side]).tolist() for side in total}
                yield compare(
                    "corruptions", f"{title}, {name}: ours / theirs", times, "ours", "theirs", "<= 1"
                )
            what = f"{title}, all {len(names)}: ours / theirs"
            yield compare("corruptions", what, total, "ours", "theirs", "<= 0.1")


def seconds(name: str, size: int, turns: int) -> Times:
    """Per image, for the five severities together."""
    from tests.data.corruption_images import photographs
    from tests.reference.imagecorruptions_oracle import corrupted

    few = torch.from_numpy(photographs(size, THEIRS[size])).permute(0, 3, 1, 2).contiguous()
    many = few.repeat(OURS[size] // THEIRS[size], 1, 1, 1)

    def ours() -> None:
        for severity in SEVERITIES:
            corrupt(many, name, severity)

    def theirs() -> None:
        for severity in SEVERITIES:
            images = few.permute(0, 2, 3, 1).contiguous().numpy()
            out = np.stack([corrupted(image, name, severity) for image in images])
            torch.from_numpy(out).permute(0, 3, 1, 2).contiguous()

    per = {"ours": len(many), "theirs": len(few)}
    return race.race({"ours": ours, "theirs": theirs}, turns, per)


@contextmanager
def threads(count: int) -> Iterator[None]:
    import cv2

    before = cv2.getNumThreads()
    cv2.setNumThreads(count)
    try:
        with race.threads(count):
            yield
    finally:
        cv2.setNumThreads(before)
