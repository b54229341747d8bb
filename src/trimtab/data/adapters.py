"""Image sets from DataLoaders, datasets, arrays and names.

A DataLoader over an indexable dataset stays lazy. Its collation and workers are used, its order and its batch
size are not: images are read in the order of their dataset indices, which are the ids, and none is shuffled,
dropped or read twice. Random transforms of the dataset depend only on a seed and the image, so every reading
gives the same pixels, and every epoch of training other ones. Pixels must be uint8, or float in [0, 1].
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
    """Return an image set from a set, a name, a DataLoader, a dataset, a pair (images, labels), or any
    iterable of such pairs.

    Image files are resized and cropped as `input` records, unless the set was loaded for another `InputSpec`.
    """
    if isinstance(source, str):
        return load(source, input=input)
    if isinstance(source, Images):
        return source if input is None else source.prepared_for(input)
    if isinstance(source, Dataset) and not isinstance(source, IterableDataset):
        source = DataLoader(source)
    if isinstance(source, DataLoader) and not isinstance(source.dataset, IterableDataset):
        return DataLoaderSet(source, _sampled_indices(source), name or type(source.dataset).__name__)
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


@dataclass(frozen=True, eq=False, repr=False)
class DataLoaderSet(Images):
    """The images of an indexable dataset, read on demand."""

    loader: DataLoader
    ids: Tensor
    """Indices in the dataset."""
    name: str
    parent: DataLoaderSet | None = None
    """The set of which this is a subset, if it is one."""

    def raw(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        dataset = SeededDataset(self.loader.dataset)
        return self._checked(self._collated([dataset[i] for i in self.ids[positions].tolist()]))

    def streamed(self, parts: Iterable[Tensor], seed: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """`raw` of each part in turn, read by the loader's workers."""
        loader = DataLoader(
            SeededDataset(self.loader.dataset, seed),
            batch_sampler=[self.ids[part].tolist() for part in parts],
            num_workers=self.loader.num_workers,
            collate_fn=self._collated,
            worker_init_fn=self.loader.worker_init_fn,
            multiprocessing_context=self.loader.multiprocessing_context,
            generator=torch.Generator(),  # or iterating would draw from the global one
        )
        return map(self._checked, loader)

    def batches(self, size: int, start: int = 0) -> Iterator[Batch]:
        parts = list(spans(len(self), size, start))
        for part, (pixels, y) in zip(parts, self.streamed(parts), strict=True):
            yield Batch(as_float(pixels), y, self.ids[part])

    def _collated(self, images: list[Any]) -> Any:
        collate = self.loader.collate_fn
        try:
            if self.loader.batch_sampler is None:  # `batch_size=None`: the loader collates single images
                return default_collate([collate(image) for image in images])
            return collate(images)
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
        return replace(self, ids=self.ids[positions_of(which, len(self))], parent=self.parent or self)

    @cached_property
    def labels(self) -> Tensor:  # type: ignore[override]
        return self._content[0]

    @cached_property
    def digest(self) -> str:
        return self._content[1]

    @cached_property
    def classes(self) -> tuple[str, ...]:  # type: ignore[override]
        names = getattr(self.loader.dataset, "classes", None)
        if isinstance(names, list | tuple) and all(isinstance(name, str) for name in names):
            return tuple(names)
        return self.parent.classes if self.parent else tuple(map(str, range(int(self.labels.max()) + 1)))

    @cached_property
    def spec(self) -> InputSpec:  # type: ignore[override]
        """Mean and std are those of at most a thousand images, evenly spaced."""
        positions = torch.linspace(0, len(self) - 1, min(len(self), 1000)).long()
        parts = [self.raw(part)[0] for part in positions.split(100)]
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
class SeededDataset(Dataset):
    """A dataset whose random transforms depend only on a seed and the image's index."""

    dataset: Any
    seed: int = 0

    def __getitem__(self, index: int) -> Any:
        with _seeded(rng.key(self.seed, index)):
            return self.dataset[index]


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed the global generators (torch, NumPy, Python), and restore their states."""
    generator = torch.default_generator
    torch_state, numpy_state = generator.get_state(), np.random.get_state()  # noqa: NPY002
    python_state = random.getstate()
    try:
        generator.manual_seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        random.seed(seed)
        yield
    finally:
        generator.set_state(torch_state)
        np.random.set_state(numpy_state)  # noqa: NPY002
        random.setstate(python_state)


def _sampled_indices(loader: DataLoader) -> Tensor:
    """The sorted indices that a loader's sampler gives; the state of all generators is restored."""
    generator = getattr(loader.sampler, "generator", None)
    before = generator.get_state() if generator is not None else None
    by_batches = loader.batch_size is None and loader.batch_sampler is not None
    try:
        with torch.random.fork_rng(devices=[]):  # a random sampler draws its seed from the global generator
            sampled = [*(chain.from_iterable(loader.batch_sampler) if by_batches else loader.sampler)]  # type: ignore[arg-type]
    finally:
        if generator is not None:  # ... or from its own
            generator.set_state(before)
    try:
        indices = [operator.index(index) for index in sampled]
    except TypeError:
        raise BadInput("the loader's sampler gives no single indices; make it a batch_sampler") from None
    if len(set(indices)) < len(indices):
        raise BadInput(
            "the loader draws some images several times and others never (a sampler with replacement); "
            "give one that draws each once, or the dataset itself"
        )
    return torch.tensor(sorted(indices))


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
