"""Image folders, one subfolder per class, decoded from disk as they are needed.

Memory is bounded by the batches in flight, so ImageNet streams. The shorter side is resized and the centre
cut out as torchvision's `Resize` and `CenterCrop` do (the usual evaluation of ImageNet: 256, then 224);
without a size all images must have the same size and mode, and are taken as they are.

Classes take turns: any stretch of the set holds each of them in proportion, so that its first images (an
evaluation's limit, a batch to adapt on) and its last ones (held out to validate) stand for all.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from trimtab.data.files import FORMATS, UNREADABLE, kind_of
from trimtab.data.sets import Batch, Images, ImageSet, Which, in_turns, moments, positions_of, spans
from trimtab.types import BadInput, InputSpec

SUFFIXES = (".jpeg", ".jpg", ".png", ".bmp", ".ppm", ".pgm", ".tif", ".tiff", ".webp")
UNCOMPRESSED = (".bmp", ".ppm", ".pgm", ".tif", ".tiff")
WORKERS = min(32, 2 * (os.cpu_count() or 1))
LONGEST = 65_536
"""Pixels of the longer side after resizing; beyond lies what is no picture."""
MODES = {"L": 1, "RGB": 3}
"""What pixels may be, and their channels."""
DEEP = ("I", "F")
"""How modes begin whose levels go beyond 255, where Pillow's conversion cuts them off."""

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class FolderSet(Images):
    """Images that stay on disk."""

    root: Path
    files: tuple[str, ...]
    """Paths below the root."""
    labels: Tensor
    classes: tuple[str, ...]
    name: str
    spec: InputSpec
    ids: Tensor
    resize: int | None = None
    """Length the shorter side is brought to before the centre is cut out; None leaves it."""

    def raw(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        with ThreadPoolExecutor(WORKERS) as pool:
            pixels = list(pool.map(self._decode, positions.tolist()))
        return torch.from_numpy(np.stack(pixels)), self.labels.index_select(0, positions)

    def cropped(self, positions: Tensor, boxes: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """As `raw`, of a part of each whole picture, stretched; `boxes` gives them, as shares, by W / H."""
        with ThreadPoolExecutor(WORKERS) as pool:
            found = list(pool.map(self._open, positions.tolist()))
            shapes = torch.tensor([image.width / image.height for image in found], dtype=torch.float64)
            pixels = list(pool.map(self._stretched, found, boxes(shapes).tolist()))
        return torch.from_numpy(np.stack(pixels)), self.labels.index_select(0, positions)

    def batches(self, size: int, start: int = 0) -> Iterator[Batch]:
        return ahead(partial(self.take, positions) for positions in spans(len(self), size, start))

    def subset(self, which: Which) -> FolderSet:
        keep = positions_of(which, len(self))
        files = tuple(self.files[i] for i in keep.tolist())
        return replace(self, files=files, labels=self.labels[keep], ids=self.ids[keep])

    @cached_property
    def digest(self) -> str:
        """Of the files' names and sizes: reading all pixels of ImageNet takes longer than many uses of it.

        Uncompressed files are of one size whatever they show, so they are read.
        """
        content = hashlib.sha256(f"{self.spec.size} {self.spec.channels} {self.resize}".encode())
        for file in self.files:
            path = self.root / file
            content.update(
                f"\n{file} {path.stat().st_size}".encode(errors="surrogateescape")
            )  # or it is no text
            if file.lower().endswith(UNCOMPRESSED):
                content.update(hashlib.sha256(path.read_bytes()).digest())
        for part in (self.labels, self.ids):
            content.update(part.contiguous().numpy().data)
        return content.hexdigest()

    def in_memory(self) -> ImageSet:
        """All images, decoded."""
        pixels, labels = self.raw(torch.arange(len(self)))
        return ImageSet(pixels.permute(0, 3, 1, 2), labels, self.classes, self.name, self.spec, self.ids)

    def _open(self, position: int) -> Image.Image:
        return _opened(self.root / self.files[position], "L" if self.spec.channels == 1 else "RGB")

    def _decode(self, position: int) -> np.ndarray:
        """(H, W, C) uint8: the middle of the picture."""
        path, image, (height, width) = self.root / self.files[position], self._open(position), self.spec.size
        if self.resize is not None:
            short = min(image.size)
            sides = [int(self.resize * side / short) for side in image.size]
            if max(sides) > LONGEST:
                raise BadInput(f"{path} is too narrow to be resized: it would become {sides[0]}x{sides[1]}")
            image = image.resize(sides, Image.Resampling.BILINEAR)
        left, top = round((image.width - width) / 2), round((image.height - height) / 2)
        if left < 0 or top < 0 or (self.resize is None and (left or top)):
            raise BadInput(f"{path} is {image.width}x{image.height}, expected {width}x{height}")
        return self._array(image.crop((left, top, left + width, top + height)))

    def _stretched(self, image: Image.Image, box: Sequence[float]) -> np.ndarray:
        """(H, W, C) uint8: the part of the picture in a box of shares (left, top, width, height)."""
        left, top, across, down = (share * side for share, side in zip(box, 2 * image.size, strict=True))
        (height, width), way = self.spec.size, Image.Resampling.BILINEAR
        return self._array(image.resize((width, height), way, (left, top, left + across, top + down)))

    def _array(self, image: Image.Image) -> np.ndarray:
        return np.array(image).reshape(*self.spec.size, self.spec.channels)


def open_folder(
    root: Path,
    name: str,
    classes: Sequence[str] | None = None,
    size: int | None = None,
    resize: int | None = None,
    normalisation: tuple[tuple[float, ...], tuple[float, ...]] | None = None,
) -> FolderSet:
    """The images below `root` (class/.../image); labels count in `classes`, or in the sorted class folders.

    With a `size` they become RGB of that size, else they must agree in size and mode. Mean and deviation are
    those of at most a thousand of the images, evenly spaced, unless given.
    """
    listed, of_class = list_images(root)
    order = in_turns(of_class)
    files, folders = [listed[i] for i in order], [of_class[i] for i in order]
    classes = tuple(classes or sorted(set(folders)))
    if unknown := sorted(set(folders) - set(classes)):
        raise BadInput(
            f"{root} has class folders that do not fit: {unknown[0]!r} is none of {len(classes)} classes"
        )
    index = {one: number for number, one in enumerate(classes)}
    labels = torch.tensor([index[folder] for folder in folders])
    if size is None:
        (width, height), mode = common_form(root, files)
        spec = _blank((height, width), MODES[mode])
    else:
        spec = _blank((size, size), 3)
    name, *shown = (
        os.fsencode(one).decode("utf-8", "replace") for one in (name, *classes)
    )  # or it is no text
    ids = torch.arange(len(files))
    images = FolderSet(root, tuple(files), labels, tuple(shown), name, spec, ids, resize)
    if normalisation is None:
        few = torch.linspace(0, len(images) - 1, min(len(images), 1000)).long()
        normalisation = moments(images.raw(part)[0] for part in few.split(100))
    return replace(images, spec=replace(spec, mean=normalisation[0], std=normalisation[1]))


def list_images(root: Path) -> tuple[list[str], list[str]]:
    """The image files below each class folder, sorted, and the class folder of each."""
    if not root.is_dir():
        raise BadInput(f"{root} is not a folder")
    files: list[str] = []
    folders: list[str] = []
    visible = (entry.name for entry in os.scandir(root) if entry.is_dir() and entry.name[0] != ".")
    for folder in sorted(name for name in visible if name != "__MACOSX"):  # which archivers leave behind
        found = sorted(_below(root / folder, Path(folder)))
        if not found:
            raise BadInput(f"the class folder {root / folder} holds no images; fill it or remove it")
        files += found
        folders += [folder] * len(found)
    if not files:
        raise BadInput(
            f"{root} holds no class folders with images; put the images of each class in a subfolder"
        )
    return files, folders


def _below(place: Path, named: Path, above: tuple[str, ...] = ()) -> Iterator[str]:
    """Image files in a folder and its subfolders; links are followed, but not in circles."""
    real = os.path.realpath(place)
    if real in above:
        return
    with os.scandir(place) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _below(place / entry.name, named / entry.name, (*above, real))
            elif entry.name.lower().endswith(SUFFIXES) and entry.name[0] != "." and entry.is_file():
                yield str(named / entry.name)


def common_form(root: Path, files: Sequence[str]) -> tuple[tuple[int, int], str]:
    """The (width, height) and mode that all files share, by their headers."""

    def form(file: str) -> tuple[tuple[int, int], str]:
        with _seen(root / file) as image:
            _refuse_deep(root / file, image)
            return image.size, image.mode

    with ThreadPoolExecutor(WORKERS) as pool:
        forms = list(pool.map(form, files))
    for file, found in zip(files, forms, strict=True):
        if found != forms[0]:
            raise BadInput(
                f"the images in {root} are of mixed size or mode: {files[0]} is {_say(forms[0])}, {file} is "
                f"{_say(found)}; write folder:PATH@SIZE to bring all to RGB of one size"
            )
    if forms[0][1] not in MODES:
        raise BadInput(
            f"the images in {root} are {_say(forms[0])}; only grey (L) and RGB are taken as they are, write "
            "folder:PATH@SIZE to bring all to RGB of one size"
        )
    return forms[0]


def ahead(calls: Iterable[Callable[[], T]], depth: int = 2) -> Iterator[T]:
    """What the calls return, in order; the next ones run meanwhile in a thread, at most `depth` of them."""
    pool = ThreadPoolExecutor(1)
    waiting: deque[Future[T]] = deque()
    try:
        for call in calls:
            waiting.append(pool.submit(call))
            if len(waiting) > depth:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _refuse_deep(path: Path, image: Image.Image) -> None:
    if image.mode.startswith(DEEP):
        raise BadInput(f"{path} has {image.mode} pixels, of more than 8 bits; convert it to 8 bits first")


def _opened(path: Path, mode: str) -> Image.Image:
    """The whole picture, decoded."""
    with _seen(path) as image:
        _refuse_deep(path, image)
        try:
            return image.convert(mode)
        except UNREADABLE:
            raise BadInput(f"{path} is damaged or cut short: it cannot be decoded") from None


def _seen(path: Path) -> Image.Image:
    """The picture's size and mode; its pixels are read when they are asked for."""
    try:
        return Image.open(path, formats=FORMATS)
    except Image.DecompressionBombError:
        raise BadInput(f"{path} says it has more pixels than any photograph; remove it") from None
    except UNREADABLE:
        raise BadInput(f"{path} is not a readable image: it is {kind_of(path)}") from None


def _blank(size: tuple[int, int], channels: int) -> InputSpec:
    return InputSpec(size, channels, (0.0,) * channels, (1.0,) * channels)


def _say(form: tuple[tuple[int, int], str]) -> str:
    return f"{form[0][0]}x{form[0][1]} {form[1]}"
