"""One epoch of training batches, as a value.

The order is a permutation given by (seed, epoch), every other choice is given by (seed, epoch, image) or
(seed, epoch, batch). So an epoch can be resumed at any batch, by any number of processes, and continues
exactly as it would have: a loader's state is two integers, `epoch` and `start` (the next batch).

    loader = Loader(images, 128, augment=("crop", "flip"), seed=0)
    for x, y, ids in loader.at(epoch=3, start=17): ...

With several processes each takes its contiguous part of every *global* batch, partners for mixing included:
together they see exactly what one would. Folders are read ahead in a thread, a DataLoader's images by its own
workers, with random choices of their dataset that depend on (seed, epoch, image) alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from trimtab import rng
from trimtab.data.adapters import DataLoaderSet
from trimtab.data.augment import PAIRS, RESIZED_CROP, SINGLE, boxes, parse_augment
from trimtab.data.folder import FolderSet, ahead
from trimtab.data.sets import Batch, Images, as_float
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
        parse_augment(self.augment)
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
        key = rng.key(_ORDER, self.epoch)
        order = rng.permutation(n, self.seed, key) if self.shuffle else torch.arange(n)
        batches = range(self.start, len(self))
        parts = [self._part(order[batch * self.batch_size :][: self.batch_size]) for batch in batches]
        if isinstance(self.images, DataLoaderSet):
            streamed = self.images.streamed(parts, rng.key(self.seed, self.epoch))
            return (
                self._batch(*arguments)
                for arguments in zip(batches, parts, map(_known, streamed), strict=True)
            )
        reads = (partial(self._read, positions) for positions in parts)
        calls = (partial(self._batch, *arguments) for arguments in zip(batches, parts, reads, strict=True))
        return ahead(calls) if isinstance(self.images, FolderSet) else (call() for call in calls)

    def _part(self, whole: Tensor) -> Tensor:
        """This process's positions among those of a batch, and a partner for the last if images are mixed."""
        n, mixed = len(whole), bool(parse_augment(self.augment)[1])
        part = torch.arange(n * self.rank // self.world, n * (self.rank + 1) // self.world + mixed)
        return whole[part % n]  # each image's partner follows it, the first one's precedes the last

    @property
    def _crops(self) -> float | None:
        """The strength of crops of whole pictures, which only their files hold; none if there are none."""
        singles = parse_augment(self.augment)[0]
        whole = isinstance(self.images, FolderSet) and singles and singles[0][0] == RESIZED_CROP
        return singles[0][1] if whole else None

    def _read(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        if self._crops is None or not isinstance(self.images, FolderSet):
            return self.images.raw(positions)
        chance = partial(self._scalars, self.images.ids[positions], 0)
        return self.images.cropped(positions, partial(boxes, self._crops, chance))

    def _batch(self, batch: int, positions: Tensor, read: Callable[[], tuple[Tensor, Tensor]]) -> Batch:
        """The images at these positions, augmented and mixed."""
        singles, pairs = parse_augment(self.augment)
        ids = self.images.ids[positions]
        pixels, y = read()
        for place, (name, strength) in list(enumerate(singles))[self._crops is not None :]:
            pixels = SINGLE[name][0](pixels, strength, partial(self._scalars, ids, place))
        x = as_float(pixels)
        if pairs:
            x, y, ids = *self._mixed(x, y, pairs, batch), ids[:-1]
        return Batch(x, y, ids)

    def _scalars(self, ids: Tensor, place: int, draw: int) -> Tensor:
        return rng.scalars(self.seed, ids, rng.key(_SINGLE, self.epoch, place, draw))

    def _mixed(
        self, x: Tensor, y: Tensor, pairs: list[tuple[str, float]], batch: int
    ) -> tuple[Tensor, Tensor]:
        """Each image with the one that follows it; the last of x is only a partner."""
        generator = np.random.default_rng(rng.key(self.seed, self.epoch, batch, _PAIRS))
        name, alpha = pairs[generator.integers(len(pairs))]
        x, weight = PAIRS[name][0](x[:-1], x[1:], generator.beta(alpha, alpha), generator)
        labels = F.one_hot(y, len(self.images.classes)).float()
        return x, weight * labels[:-1] + (1 - weight) * labels[1:]


def _known(read: tuple[Tensor, Tensor]) -> Callable[[], tuple[Tensor, Tensor]]:
    return lambda: read
