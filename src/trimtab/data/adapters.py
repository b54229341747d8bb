"""Anything with images and labels as a set: DataLoaders, datasets, arrays, names.

A DataLoader over an indexable dataset stays lazy: its images are read in the dataset's order, whatever its
sampler's order is, with its collation and its workers. So ids are the dataset's indices, batches can have any
size, and nothing is shuffled, dropped or read twice. What a dataset chooses at random by itself depends on a
seed and the image alone: the same for every reading, another one in every epoch of training. Pixels must be
uint8, or float in [0, 1].
"""

from __future__ import annotations

import operator
import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from trimtab import rng
from trimtab.data.load import load
from trimtab.data.sets import (
    Batch,
    Images,
    Which,
    as_float,
    check_images,
    content_digest,
    from_arrays,
    moments,
    positions_of,
    spans,
)
from trimtab.types import BadInput, InputSpec


def as_set(source: Any, name: str | None = None, input: InputSpec | None = None) -> Images:
    """Adapt whatever holds images: a set, a name, a DataLoader, a dataset, (images, labels), or any iterable
    of (images, labels) batches.

    Image files are resized and cropped as `input` records, unless the set was loaded for another.
    """
    if isinstance(source, str):
        return load(source, input=input)
    if isinstance(source, Images):
        return source if input is None else source.prepared_for(input)
    if isinstance(source, Dataset) and not isinstance(source, IterableDataset):
        source = DataLoader(source)
    if isinstance(source, DataLoader) and not isinstance(source.dataset, IterableDataset):
        return DataLoaderSet(source, _drawn(source), name or type(source.dataset).__name__)
    if isinstance(source, tuple) and _is_pair(source):
        source = [source]
    if not isinstance(source, Iterable):
        kind = type(source).__name__
        raise BadInput(f"a {kind} is no image set; give one, a DataLoader or (images, labels)")
    batches = [_pair(batch) for batch in source]
    if not batches:
        raise BadInput("the loader gives no batches; it needs at least one image")
    x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    return from_arrays(x, y, name=name or "images")


@dataclass(frozen=True, eq=False)
class DataLoaderSet(Images):
    """The images of an indexable dataset, read when they are needed."""

    loader: DataLoader
    ids: Tensor
    """Indices in the dataset."""
    name: str
    whole: DataLoaderSet | None = None
    """The set that this is a part of."""

    def raw(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        dataset = Drawn(self.loader.dataset)
        return self._checked(self._collated([dataset[i] for i in self.ids[positions].tolist()]))

    def streamed(self, parts: Iterable[Tensor], seed: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """`raw` of one part after the other, by the loader's own workers."""
        again = DataLoader(
            Drawn(self.loader.dataset, seed),
            batch_sampler=[self.ids[part].tolist() for part in parts],
            num_workers=self.loader.num_workers,
            collate_fn=self._collated,
            worker_init_fn=self.loader.worker_init_fn,
            multiprocessing_context=self.loader.multiprocessing_context,
            generator=torch.Generator(),  # or iterating would draw from the global one
        )
        return map(self._checked, again)

    def batches(self, size: int, start: int = 0) -> Iterator[Batch]:
        parts = list(spans(len(self), size, start))
        for part, (pixels, y) in zip(parts, self.streamed(parts), strict=True):
            yield Batch(as_float(pixels), y, self.ids[part])

    def _collated(self, images: list[Any]) -> Any:
        alone = self.loader.batch_sampler is None  # it hands out single images, as they are
        try:
            collate = self.loader.collate_fn
            return default_collate([collate(image) for image in images]) if alone else collate(images)
        except TypeError as problem:
            first = images[0][0] if isinstance(images[0], tuple | list) else images[0]
            raise BadInput(
                f"the images of {self.name} cannot be put into a batch: one is a {type(first).__name__}; "
                "let the dataset give tensors"
            ) from problem

    def _checked(self, batch: Any) -> tuple[Tensor, Tensor]:
        x, y = _pair(batch)
        check_images(x, self.name)
        return x.permute(0, 2, 3, 1), y

    def subset(self, which: Which) -> DataLoaderSet:
        return replace(self, ids=self.ids[positions_of(which, len(self))], whole=self.whole or self)

    @cached_property
    def labels(self) -> Tensor:  # type: ignore[override]
        return self._content[0]

    @cached_property
    def digest(self) -> str:
        return self._content[1]

    @cached_property
    def classes(self) -> tuple[str, ...]:  # type: ignore[override]
        named = getattr(self.loader.dataset, "classes", None)
        if isinstance(named, list | tuple) and all(isinstance(name, str) for name in named):
            return tuple(named)
        return self.whole.classes if self.whole else tuple(map(str, range(int(self.labels.max()) + 1)))

    @cached_property
    def spec(self) -> InputSpec:  # type: ignore[override]
        """Mean and std are those of at most a thousand images, evenly spaced."""
        few = torch.linspace(0, len(self) - 1, min(len(self), 1000)).long()
        parts = [self.raw(part)[0] for part in few.split(100)]
        _, height, width, channels = parts[0].shape
        return InputSpec((height, width), channels, *moments(parts))

    @cached_property
    def _content(self) -> tuple[Tensor, str]:
        """Labels and digest, in one pass over all images."""
        labels: list[Tensor] = []

        def parts() -> Iterator[Tensor]:
            for pixels, y in self.streamed(list(spans(len(self), 256))):
                labels.append(y)
                yield pixels
            yield torch.cat(labels)
            yield self.ids

        digest = content_digest((len(self), *self.raw(torch.tensor([0]))[0].shape[1:]), parts())
        return torch.cat(labels), digest


@dataclass(frozen=True, eq=False)
class Drawn(Dataset):
    """A dataset whose own random choices are a function of a seed and the image's index."""

    dataset: Any
    seed: int = 0

    def __getitem__(self, index: int) -> Any:
        with _chance(rng.key(self.seed, index)):
            return self.dataset[index]


@contextmanager
def _chance(seed: int) -> Iterator[None]:
    """Seed what datasets draw from (torch, NumPy, Python), and leave it as it was."""
    source, numpys, pythons = torch.default_generator, np.random.get_state(), random.getstate()  # noqa: NPY002
    before = source.get_state()
    try:
        source.manual_seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        random.seed(seed)
        yield
    finally:
        source.set_state(before)
        np.random.set_state(numpys)  # noqa: NPY002
        random.setstate(pythons)


def _drawn(loader: DataLoader) -> Tensor:
    """The indices that a loader draws, in order; its generator, and the global one, are left as they were."""
    generator = getattr(loader.sampler, "generator", None)
    before = generator.get_state() if generator is not None else None
    by_batches = loader.batch_size is None and loader.batch_sampler is not None
    try:
        with torch.random.fork_rng(devices=[]):  # a random sampler draws its seed from the global generator
            drawn = [*(chain.from_iterable(loader.batch_sampler) if by_batches else loader.sampler)]  # type: ignore[arg-type]
    finally:
        if generator is not None:  # ... or from its own
            generator.set_state(before)
    try:
        drawn = [operator.index(index) for index in drawn]
    except TypeError:
        raise BadInput("the loader's sampler gives no single indices; make it a batch_sampler") from None
    if len(set(drawn)) < len(drawn):
        raise BadInput(
            "the loader draws some images several times and others never (a sampler with replacement); "
            "give one that draws each once, or the dataset itself"
        )
    return torch.tensor(sorted(drawn))


def _pair(batch: Any) -> tuple[Tensor, Tensor]:
    """Images (N, C, H, W), uint8 or float32, and int64 labels of a batch from someone's loader."""
    if not _is_pair(batch):
        raise BadInput("a loader must give batches of (images, labels) as tensors")
    x, y = map(torch.as_tensor, batch[:2])
    y = y.squeeze(1) if y.ndim == 2 and y.shape[1] == 1 else y
    if y.shape != x.shape[:1]:
        raise BadInput(f"there must be one label per image, found {tuple(y.shape)} for {len(x)} images")
    if y.is_floating_point() and not bool((y.frac() == 0).all()):
        raise BadInput(f"labels must be whole numbers, found {float(y[y.frac() != 0][0]):g}")
    return x if x.dtype == torch.uint8 else x.to(torch.float32), y.to(torch.int64)


def _is_pair(value: Any) -> bool:
    return (
        isinstance(value, tuple | list)
        and len(value) >= 2
        and all(isinstance(part, Tensor | np.ndarray) for part in value[:2])
    )
