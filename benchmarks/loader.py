"""The share of a training step of ResNet-8 (width 16) on 128x3x32x32 that goes into loading the batch.

Loading and training take turns as in a training loop, each is timed, and the share is loading / (loading +
training), batch by batch. It is fair to both because nothing is read ahead: a set in memory is loaded by the
thread that trains. Pixels are random: what they show costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.race import Asked, Row, quartiles, race
from trimtab import data, models
from trimtab.data.sets import from_arrays

AUGMENTS: tuple[tuple[str, ...], ...] = (
    (),
    ("crop", "flip"),
    ("crop", "flip", "mixup"),
    ("crop", "flip", "cutmix"),
    ("random-resized-crop", "flip"),
    ("augmix", "crop", "flip"),
)


def rows(asked: Asked) -> Iterator[Row]:
    count, size, width = (64, 8, 4) if asked.quick else (50_000, 128, 16)
    source = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8, generator=source)
    images = from_arrays(pixels, torch.arange(count) % 10)
    for augment in AUGMENTS:
        times = race(Loop(images, size, augment, width).turns(), asked.turns * (1 if asked.quick else 10))
        load, train = np.array(times["load"]), np.array(times["train"])
        low, _, high = quartiles(load / (load + train))
        share = float(np.median(load) / (np.median(load) + np.median(train)))
        seconds = {name: quartiles(taken) for name, taken in times.items()}
        what = f"{' '.join(augment) or 'nothing'}: loading / (loading + training)"
        yield Row("loader", what, share, (low, high), "", seconds)


class Loop:
    """A training loop whose two halves can be called apart."""

    def __init__(self, images: data.ImageSet, size: int, augment: tuple[str, ...], width: int) -> None:
        torch.manual_seed(0)
        self.model = models.build("resnet8", classes=10, input=images.spec, width=width)
        self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.loader = iter(data.Loader(images, size, augment=augment))

    def turns(self):  # type: ignore[no-untyped-def]
        return {"load": self.load, "train": self.train}

    def load(self) -> None:
        self.x, self.y, _ids = next(self.loader)

    def train(self) -> None:
        self.optimizer.zero_grad()
        F.cross_entropy(self.model(self.x), self.y).backward()
        self.optimizer.step()
