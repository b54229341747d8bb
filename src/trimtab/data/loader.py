"""One epoch of training batches, as a value.

The order of the images is a function of (seed, epoch), every other random choice one of (seed, epoch, image)
or (seed, epoch, batch). So an epoch can be resumed exactly, at any batch and by any number of processes: a
loader's state is two integers, `epoch` and `start` (the next batch).

    loader = Loader(images, 128, augment=("crop", "flip"), seed=0)
    for x, y, ids in loader.at(epoch=3, start=17): ...

Each of several processes takes a contiguous part of every *global* batch, with the partners for mixing:
together they give the batches of a single process. Folders are read ahead in a thread, a DataLoader's images
by its own workers, with random transforms that depend only on (seed, epoch, image).
"""

from __future__ import annotations

from collections.abc import Iterator
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

_ORDER, _SINGLE, _PAIRS = range(3)  # purposes of random numbers


@dataclass(frozen=True)
class Loader:
    """The batches of one epoch, from `start` on."""

    images: Images
    batch_size: int
    """Images per global batch."""
    augment: tuple[str, ...] = ()
    """Augmentations in order, by name: see augment.py."""
    seed: int = 0
    epoch: int = 0
    start: int = 0
    """Index of the first batch."""
    rank: int = 0
    """Index of this process."""
    world: int = 1
    """Number of processes."""
    shuffle: bool = True
    drop_last: bool = False
    """Leave out a last batch that is smaller than the others."""

    def __post_init__(self) -> None:
        parse_augment(self.augment)
        if self.batch_size < 1 or (self.drop_last and self.batch_size > len(self.images)):
            raise BadInput(f"batches of {self.batch_size} cannot be made from {len(self.images)} images")
        if not 0 <= self.rank < self.world:
            raise BadInput(f"there is no process {self.rank} of {self.world}; rank counts from 0")

    def __len__(self) -> int:
        """Return the number of batches in a whole epoch."""
        full, rest = divmod(len(self.images), self.batch_size)
        return full + (rest > 0 and not self.drop_last)

    def at(self, epoch: int, start: int = 0) -> Loader:
        """Return the same loader at another epoch and batch."""
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
                self._batch(batch, part, pixels, y)
                for batch, part, (pixels, y) in zip(batches, parts, streamed, strict=True)
            )
        calls = (partial(self._load, batch, part) for batch, part in zip(batches, parts, strict=True))
        return ahead(calls) if isinstance(self.images, FolderSet) else (call() for call in calls)

    def _part(self, batch: Tensor) -> Tensor:
        """This process's positions of a global batch; if images are mixed, also the partner of the last."""
        n, mixed = len(batch), bool(parse_augment(self.augment)[1])
        part = torch.arange(n * self.rank // self.world, n * (self.rank + 1) // self.world + mixed)
        return batch[part % n]  # each image's partner is the next one, the last image's the first

    @property
    def _crop_strength(self) -> float | None:
        """The strength of a resized crop that is taken of whole pictures when files are read, else None."""
        singles = parse_augment(self.augment)[0]
        from_files = isinstance(self.images, FolderSet) and singles and singles[0][0] == RESIZED_CROP
        return singles[0][1] if from_files else None

    def _read(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        if self._crop_strength is None or not isinstance(self.images, FolderSet):
            return self.images.raw(positions)
        uniform = partial(self._scalars, self.images.ids[positions], 0)
        return self.images.cropped(positions, partial(boxes, self._crop_strength, uniform))

    def _load(self, batch: int, positions: Tensor) -> Batch:
        return self._batch(batch, positions, *self._read(positions))

    def _batch(self, batch: int, positions: Tensor, pixels: Tensor, y: Tensor) -> Batch:
        """Augment and mix the images of a batch."""
        singles, pairs = parse_augment(self.augment)
        ids = self.images.ids[positions]
        for index, (name, strength) in enumerate(singles):
            if index > 0 or self._crop_strength is None:  # else the files were cropped when they were read
                pixels = SINGLE[name][0](pixels, strength, partial(self._scalars, ids, index))
        x = as_float(pixels)
        if pairs:
            x, y, ids = *self._mixed(x, y, pairs, batch), ids[:-1]
        return Batch(x, y, ids)

    def _scalars(self, ids: Tensor, index: int, draw: int) -> Tensor:
        """Uniform numbers of the images, for the augmentation of this index."""
        return rng.scalars(self.seed, ids, rng.key(_SINGLE, self.epoch, index, draw))

    def _mixed(
        self, x: Tensor, y: Tensor, pairs: list[tuple[str, float]], batch: int
    ) -> tuple[Tensor, Tensor]:
        """Mix each image with the next one; the last of x is only a partner."""
        generator = np.random.default_rng(rng.key(self.seed, self.epoch, batch, _PAIRS))
        name, alpha = pairs[generator.integers(len(pairs))]
        x, weight = PAIRS[name][0](x[:-1], x[1:], generator.beta(alpha, alpha), generator)
        labels = F.one_hot(y, len(self.images.classes)).float()
        return x, weight * labels[:-1] + (1 - weight) * labels[1:]
