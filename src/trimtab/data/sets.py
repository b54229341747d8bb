"""Image sets: pixels as stored, labels, class names, and the order that never changes.

A set has labels, ids, class names, an `InputSpec`, a digest and one verb, `raw(positions)`: `take`, `batches`
and the training `Loader` follow from it. `ImageSet` holds its pixels in memory (or mapped from a file),
`FolderSet` and `DataLoaderSet` decode them when asked.

Positions count within the set at hand; ids name an image in the set it was taken from. A subset keeps the
ids, so the randomness that belongs to an image follows it into every subset.
"""

from __future__ import annotations

import hashlib
import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from trimtab import rng
from trimtab.types import BadInput, InputSpec

MOST_CLASSES = 1_000_000
"""Where classes are only counted: a label of this size is no class, but some other number."""
Which: TypeAlias = slice | Sequence[int] | Tensor
T = TypeVar("T", bound="Images")
_CLASSES = rng.purpose("the order in which classes take turns")


class Batch(NamedTuple):
    """What a network and its attacks consume."""

    x: Tensor
    """float32 in [0, 1], (N, C, H, W), channels-last in memory."""
    y: Tensor
    """int64 (N,), or float32 (N, classes) where labels were mixed."""
    ids: Tensor
    """int64 (N,), the images' indices in their set."""

    def to_model(self, model: nn.Module) -> Batch:
        """Return the batch on the model's device, images in its dtype."""
        like = next(model.parameters(), self.x)
        return Batch(self.x.to(like.device, like.dtype), self.y.to(like.device), self.ids)

    def beside(self, model: nn.Module) -> Batch:
        """Deprecated name of `to_model`."""
        warnings.warn("Batch.beside is now Batch.to_model", DeprecationWarning, stacklevel=2)
        return self.to_model(model)


class Images(ABC):
    """What every set can do, in memory or streamed."""

    labels: Tensor
    ids: Tensor
    classes: tuple[str, ...]
    name: str
    spec: InputSpec
    reopen: Callable[..., Images] | None = None
    """Opens the whole set again for an `input=`, if it was loaded from files without one."""

    @abstractmethod
    def raw(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Pixels as stored, uint8 or float32 in [0, 1], (n, H, W, C), and labels at these positions."""

    @abstractmethod
    def subset(self, which: Which) -> Images:
        """The images at these positions, with the ids they have here."""

    @property
    @abstractmethod
    def digest(self) -> str:
        """A hash of what results depend on: pixels, labels and ids."""

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        height, width = self.spec.size
        shape = f"{self.spec.channels}x{height}x{width}"
        kind, classes = type(self).__name__, len(self.classes)
        return f"{kind}({self.name!r}, {len(self)} images {shape}, {classes} classes)"

    def prepared_for(self, spec: InputSpec) -> Images:
        """The same images, files among them resized and cropped as a network's `InputSpec` records.

        Arrays, and files whose preparation was decided when they were loaded, stay as they are.
        """
        if self.reopen is None or spec.crop_fraction is None:
            return self
        whole = self.reopen(input=spec)
        return whole if torch.equal(whole.ids, self.ids) else whole.subset(whole.positions(self.ids))

    def reopens(self, other: T) -> T:
        """`other`, a part or another form of this set, with this set's way of opening it again."""
        object.__setattr__(other, "reopen", self.reopen)
        return other

    def positions(self, ids: Tensor) -> Tensor:
        """Where the images with these ids are in this set."""
        order = self.ids.argsort()
        places = order[torch.searchsorted(self.ids[order], ids).clamp(max=len(order) - 1)]
        if not torch.equal(self.ids[places], ids):
            raise BadInput(f"{self.name} does not hold all of these images")
        return places

    def take(self, positions: Tensor) -> Batch:
        """The batch of these positions."""
        pixels, y = self.raw(positions)
        return Batch(as_float(pixels), y, self.ids.index_select(0, positions))

    def batches(self, size: int, start: int = 0) -> Iterator[Batch]:
        """All images in fixed order, `size` at a time, from position `start` on; the last may be smaller."""
        return map(self.take, spans(len(self), size, start))


@dataclass(frozen=True, eq=False, repr=False)
class ImageSet(Images):
    """Images that lie in memory or in a mapped file."""

    images: Tensor
    """uint8, or float32 in [0, 1], (N, C, H, W); kept channels-last."""
    labels: Tensor
    """int64 (N,)."""
    classes: tuple[str, ...]
    name: str
    spec: InputSpec
    ids: Tensor = None  # type: ignore[assignment]
    """Indices in the set they were taken from; 0..N-1 unless given."""

    def __post_init__(self) -> None:
        if self.ids is None:
            object.__setattr__(self, "ids", torch.arange(len(self.images)))
        _check(self)
        object.__setattr__(self, "images", self.images.contiguous(memory_format=torch.channels_last))

    def raw(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        return self._pixels.index_select(0, positions), self.labels.index_select(0, positions)

    def subset(self, which: Which) -> ImageSet:
        contiguous = isinstance(which, slice) and which.step in (None, 1)  # then it is a view
        keep = which if contiguous else positions_of(which, len(self))
        part = replace(self, images=self.images[keep], labels=self.labels[keep], ids=self.ids[keep])
        return self.reopens(part)

    @cached_property
    def digest(self) -> str:
        return content_digest(tuple(self._pixels.shape), [self._pixels, self.labels, self.ids])

    @property
    def _pixels(self) -> Tensor:  # (N, H, W, C), contiguous
        return self.images.permute(0, 2, 3, 1)


def content_digest(shape: tuple[int, ...], parts: Iterable[Tensor]) -> str:
    """A hash over the shape of all pixels (N, H, W, C), the pixels in one or more parts, labels and ids."""
    content = hashlib.sha256()
    for number, part in enumerate(parts):
        if number == 0:
            content.update(f"{part.dtype} {shape}".encode())
        content.update(part.contiguous().numpy().data)
    return content.hexdigest()


def as_float(pixels: Tensor) -> Tensor:
    """(n, H, W, C) as stored -> (n, C, H, W) in [0, 1], float32, channels-last."""
    x = pixels.to(torch.float32)
    if pixels.dtype == torch.uint8:
        x.div_(255)
    return x.permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)


def in_turns(classes: Sequence[str]) -> list[int]:
    """Positions by how far through its class an image lies, and for equals by a fixed random order of the
    classes: neighbors in a list of classes look alike, as do all the birds of ImageNet. So any stretch of a
    set that comes class by class, also one with a single image of each class, is a sample of all classes."""
    sizes, seen = Counter(classes), Counter[str]()
    mixed = rng.permutation(len(sizes), 0, _CLASSES).tolist()
    place = dict(zip(sorted(sizes), mixed, strict=True))
    keys = []
    for name in classes:
        seen[name] += 1
        keys.append(((seen[name] - 0.5) / sizes[name], place[name]))
    return sorted(range(len(classes)), key=keys.__getitem__)


def spans(count: int, size: int, start: int = 0) -> Iterator[Tensor]:
    """The positions start..count-1 cut into consecutive parts of `size`."""
    if size < 1 or start < 0:
        raise BadInput(f"a batch has at least 1 image and starts at 0 or later, found {size} and {start}")
    return (torch.arange(at, min(at + size, count)) for at in range(start, count, size))


def positions_of(which: Which, count: int) -> Tensor:
    """Positions as a tensor, each checked to lie within the set."""
    positions = torch.as_tensor(range(count)[which] if isinstance(which, slice) else which)
    if positions.numel() == 0:
        raise BadInput("a subset needs at least one image")
    if positions.dtype == torch.bool or positions.is_floating_point() or positions.ndim != 1:
        raise BadInput("a subset is given by a slice or by a list of integer positions")
    if positions.min() < 0 or positions.max() >= count:
        span = f"{int(positions.min())} to {int(positions.max())}"
        raise BadInput(f"positions must lie in 0..{count - 1}, found {span}")
    return positions.to(torch.int64)


def moments(parts: Iterable[Tensor]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std per channel of (n, H, W, C) pixels in [0, 1], to five decimals."""
    total, square, count = np.zeros(1), np.zeros(1), 0
    for pixels in parts:
        flat = pixels.reshape(-1, pixels.shape[-1]).numpy()
        if pixels.dtype == torch.uint8:  # exact, and free of a copy in float
            levels = np.arange(256) / 255
            seen = np.stack([np.bincount(channel, minlength=256) for channel in flat.T])  # (C, 256)
            total, square = total + seen @ levels, square + seen @ levels**2
        else:
            wide = flat.astype(np.float64)
            total, square = total + wide.sum(0), square + (wide**2).sum(0)
        count += len(flat)
    mean = total / count
    std = np.sqrt(np.maximum(square / count - mean**2, 0))
    # A channel that never changes has nothing to normalize: it is only centered.
    return tuple(np.round(mean, 5).tolist()), tuple(np.where(std < 1e-5, 1.0, np.round(std, 5)).tolist())


def from_arrays(
    images: Tensor, labels: Tensor, classes: Sequence[str] | None = None, name: str = "images"
) -> ImageSet:
    """A set from (N, C, H, W) images and labels alone: classes are counted, mean and std computed."""
    check_images(images, name)
    if labels.ndim != 1 or labels.is_floating_point() or len(labels) == 0:
        described = f"{labels.dtype} {tuple(labels.shape)}"
        raise BadInput(f"{name} needs one integer label per image, found {described}")
    if int(labels.max()) >= MOST_CLASSES:
        raise BadInput(
            f"{name} has a label {int(labels.max())}; labels count classes, fewer than {MOST_CLASSES}"
        )
    if classes is None:
        classes = [str(c) for c in range(int(labels.max()) + 1)]
    images = images if images.dtype == torch.uint8 else images.to(torch.float32)
    mean, std = moments(images.permute(0, 2, 3, 1).split(1000))
    spec = InputSpec((images.shape[2], images.shape[3]), images.shape[1], mean, std)
    return ImageSet(images, labels.to(torch.int64), tuple(classes), name, spec)


def check_images(images: Tensor, name: str = "images") -> None:
    """Refuse what is not a batch of uint8 images or of float images in [0, 1]."""
    if images.ndim != 4 or images.shape[1] not in (1, 3) or images.numel() == 0:
        raise BadInput(f"{name} must be images (N, 1 or 3 channels, H, W), found {tuple(images.shape)}")
    if images.dtype == torch.uint8:
        return
    if not images.is_floating_point():
        raise BadInput(f"{name} must be uint8, or float in [0, 1], found {images.dtype}")
    low, high = map(float, images.aminmax())
    if not (low >= 0 and high <= 1):
        scaled = low >= 0 and high > 2
        what = "divide by 255" if scaled else "leave out the normalization, it happens inside the model"
        raise BadInput(f"{name} must have pixels in [0, 1], found {low:.3g} to {high:.3g}; {what}")


def _check(images: ImageSet) -> None:
    check_images(images.images, images.name)
    n, channels, *size = images.images.shape
    if images.images.dtype not in (torch.uint8, torch.float32):
        raise BadInput(f"{images.name} must be uint8 or float32, found {images.images.dtype}")
    for part, values in (("label", images.labels), ("id", images.ids)):
        if values.shape != (n,) or values.dtype != torch.int64:
            described = f"{values.dtype} {tuple(values.shape)}"
            raise BadInput(
                f"{images.name} needs one int64 {part} for each of its {n} images, found {described}"
            )
    low, high, classes = int(images.labels.min()), int(images.labels.max()), len(images.classes)
    if low < 0 or high >= classes:
        raise BadInput(f"{images.name} has labels {low} to {high}, which do not fit its {classes} classes")
    if tuple(size) != images.spec.size or channels != images.spec.channels:
        raise BadInput(f"{images.name} is {channels}x{size[0]}x{size[1]}, its InputSpec says {images.spec}")
