"""One epoch of training batches, as a value.

The order is a permutation given by (seed, epoch), every other choice is given by (seed, epoch, image) or
(seed, epoch, batch). So an epoch can be taken up at any batch, by any number of processes, and goes on
exactly as it would have: a loader's state is two integers, `epoch` and `start` (the next batch).

    loader = Loader(images, 128, augment=("crop", "flip"), seed=0)
    for x, y, ids in loader.at(epoch=3, start=17): ...

With several processes each takes its contiguous part of every *global* batch, partners for mixing included:
together they see exactly what one would. Sets that stream are read ahead in a thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from trimtab import draws
from trimtab.data.augment import PAIRS, RESIZED_CROP, SINGLE, boxes, parsed
from trimtab.data.folder import FolderSet, ahead
from trimtab.data.sets import Batch, Images, ImageSet, as_float
from trimtab.types import BadInput

_ORDER, _SINGLE, _PAIRS = range(3)  # what the draws are for


@dataclass(frozen=True)
class Loader:
    """The batches of one epoch, from `start` on."""

    images: Images
    batch_size: int
    """Of the global batch."""
    augment: tuple[str, ...] = ()
    """Names, in order: see augment.py."""
    seed: int = 0
    epoch: int = 0
    start: int = 0
    """The first batch to give."""
    rank: int = 0
    """Which process this is,"""
    world: int = 1
    """of how many."""
    shuffle: bool = True
    drop_last: bool = False
    """Leave out a last batch that is smaller than the others."""

    def __post_init__(self) -> None:
        parsed(self.augment)
        if not 1 <= self.batch_size <= (len(self.images) if self.drop_last else self.batch_size):
            raise BadInput(f"batches of {self.batch_size} cannot be made from {len(self.images)} images")
        if not 0 <= self.rank < self.world:
            raise BadInput(f"there is no process {self.rank} of {self.world}")

    def __len__(self) -> int:
        """Batches in a whole epoch."""
        whole, rest = divmod(len(self.images), self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def at(self, epoch: int, start: int = 0) -> Loader:
        """The same loader in another epoch, or in the middle of one."""
        return replace(self, epoch=epoch, start=start)

    def __iter__(self) -> Iterator[Batch]:
        n = len(self.images)
        key = draws.key(_ORDER, self.epoch)
        order = draws.permutation(n, self.seed, key) if self.shuffle else torch.arange(n)
        calls = (
            partial(self._batch, batch, order[batch * self.batch_size :][: self.batch_size])
            for batch in range(self.start, len(self))
        )
        if isinstance(self.images, ImageSet):
            return (call() for call in calls)
        return ahead(calls)

    def _batch(self, batch: int, whole: Tensor) -> Batch:
        """This process's part of the batch of these positions."""
        singles, pairs = parsed(self.augment)
        n = len(whole)
        part = torch.arange(n * self.rank // self.world, n * (self.rank + 1) // self.world + bool(pairs))
        positions = whole[part % n]  # each image's partner follows it, the first one's precedes the last
        ids = self.images.ids[positions]
        cropped = isinstance(self.images, FolderSet) and singles and singles[0][0] == RESIZED_CROP
        if cropped:  # of the whole pictures, which only their files hold
            parts = partial(boxes, singles[0][1], partial(self._scalars, ids, 0))
            pixels, y = cast(FolderSet, self.images).cropped(positions, parts)
        else:
            pixels, y = self.images.raw(positions)
        for place, (name, strength) in list(enumerate(singles))[bool(cropped) :]:
            pixels = SINGLE[name][0](pixels, strength, partial(self._scalars, ids, place))
        x = as_float(pixels)
        if pairs:
            x, y, ids = *self._mixed(x, y, pairs, batch), ids[:-1]
        return Batch(x, y, ids)

    def _scalars(self, ids: Tensor, place: int, draw: int) -> Tensor:
        return draws.scalars(self.seed, ids, draws.key(_SINGLE, self.epoch, place, draw))

    def _mixed(
        self, x: Tensor, y: Tensor, pairs: list[tuple[str, float]], batch: int
    ) -> tuple[Tensor, Tensor]:
        """Each image with the one that follows it; the last of x is only a partner."""
        generator = np.random.default_rng(draws.key(self.seed, self.epoch, batch, _PAIRS))
        name, alpha = pairs[generator.integers(len(pairs))]
        x, weight = PAIRS[name][0](x[:-1], x[1:], generator.beta(alpha, alpha), generator)
        labels = F.one_hot(y, len(self.images.classes)).float()
        return x, weight * labels[:-1] + (1 - weight) * labels[1:]
