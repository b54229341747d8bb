"""All 19 corruptions at all five severities, here and in the package `imagecorruptions`.

The same job for both: a uint8 batch (N, C, H, W) of photographs in, the corrupted batch out. Theirs take the
images one by one, gain nothing from a batch and are slow, so that they are given fewer images; times are per
image, all five severities together. The package is patched to run at all (tests/reference), not to be slower.
As many threads for torch as for OpenCV: those asked for, and one. And all of `corrupt` against what it cannot
do without: pixels to levels, the corruption's own arithmetic, levels to pixels, in parts of the same size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from benchmarks import race
from benchmarks.race import Asked, Row, Run, Times, compare
from trimtab.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, corrupt
from trimtab.data.corruptions.apply import AT_ONCE, FUNCTIONS
from trimtab.data.corruptions.filters import ImageRNG
from trimtab.data.corruptions.tables import constants as constants_of

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
            with threads(count):
                times = race.race(whole_and_bare(names, size), asked.turns)
            what = f"{title}, all {len(names)}: corrupt / its bare arithmetic"
            yield compare("corruptions", what, times, "corrupt", "bare", "<= 1.1")


def seconds(name: str, size: int, turns: int) -> Times:
    """Per image, for the five severities together."""
    from tests.reference.imagecorruptions_oracle import corrupted

    few, many = batches(size)

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


def whole_and_bare(names: Sequence[str], size: int) -> dict[str, Run]:
    """All corruptions at all severities: as users call them, and their functions alone."""
    _, many = batches(size)
    images = many.float() / 255
    parts = images.split(max(1, AT_ONCE // images[0].numel()))
    table = constants_of(size)

    def whole() -> None:
        for name in names:
            for severity in SEVERITIES:
                corrupt(images, name, severity)

    def bare() -> None:
        for name in names:
            for constants in table[name]:
                for number, part in enumerate(parts):
                    ids = list(range(number * len(parts[0]), number * len(parts[0]) + len(part)))
                    levels = FUNCTIONS[name](
                        part.mul(255).round(), ImageRNG(0, ids, 0, part.device), *constants
                    )
                    levels.floor().clamp(0, 255) / 255

    return {"corrupt": whole, "bare": bare}


def batches(size: int) -> tuple[Tensor, Tensor]:
    """uint8 photographs: few, and as many as we are given."""
    from tests.data.corruption_images import photographs

    few = torch.from_numpy(photographs(size, THEIRS[size])).permute(0, 3, 1, 2).contiguous()
    return few, few.repeat(OURS[size] // THEIRS[size], 1, 1, 1)


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
