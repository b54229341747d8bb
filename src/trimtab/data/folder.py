"""Image folders, decoded from disk as they are needed.

The class of an image is the subfolder that it lies in, or what a table `labels.csv` says; in ImageNet's
folders it may be the WordNet id in the name of the file.

Memory is bounded by the batches in flight, so ImageNet streams. How a file becomes pixels is in the set's
`InputSpec`: resized and cropped as recorded with a network, or, without a crop fraction, taken as it is, and
then all images must have the same size and mode.

Classes take turns, in a fixed random order: any stretch of the set holds each of them in proportion, or is a
spread sample of them, so that its first images (an evaluation's limit, a batch to adapt on) and its last ones
(held out to validate) represent all. An image's id is its index among the sorted files, or in the table.
"""

from __future__ import annotations

import csv
import hashlib
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from trimtab.data.pictures import MODES, Form, decode, form, prepare, stretch
from trimtab.data.sets import Batch, Images, ImageSet, Which, in_turns, moments, positions_of, spans
from trimtab.io import reading
from trimtab.types import BadInput, InputSpec

SUFFIXES = (".jpeg", ".jpg", ".png", ".bmp", ".ppm", ".pgm", ".tif", ".tiff", ".webp")
UNCOMPRESSED = (".bmp", ".ppm", ".pgm", ".tif", ".tiff")
TABLE = "labels.csv"
"""What a table of labels in an image folder is called."""
COLUMNS = (("file", "filename", "path", "image"), ("label", "class", "target", "wnid"))
"""What its columns may be called."""
WNID = re.compile(r"n\d{8}")
WORKERS = min(32, 2 * (os.cpu_count() or 1))

T = TypeVar("T")


class Listing(NamedTuple):
    """The images of a folder."""

    files: Sequence[str]
    """Their paths below it."""
    labels: Sequence[str]
    """The class of each, by its name."""
    classes: Sequence[str]
    """All classes, in the order in which they are counted."""


@dataclass(frozen=True, eq=False, repr=False)
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

    def raw(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        with ThreadPoolExecutor(WORKERS) as pool:
            pixels = list(pool.map(self._prepare, positions.tolist()))
        return torch.from_numpy(np.stack(pixels)), self.labels.index_select(0, positions)

    def cropped(self, positions: Tensor, boxes: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """As `raw`, of a part of each whole picture, resized; `boxes` gives it in fractions from W / H."""
        with ThreadPoolExecutor(WORKERS) as pool:
            images = list(pool.map(self._decode, positions.tolist()))
            aspects = torch.tensor([image.width / image.height for image in images], dtype=torch.float64)
            cut = partial(stretch, spec=self.spec)
            pixels = list(pool.map(lambda image, box: cut(image, box=box), images, boxes(aspects).tolist()))
        return torch.from_numpy(np.stack(pixels)), self.labels.index_select(0, positions)

    def batches(self, size: int, start: int = 0) -> Iterator[Batch]:
        return ahead(partial(self.take, positions) for positions in spans(len(self), size, start))

    def subset(self, which: Which) -> FolderSet:
        keep = positions_of(which, len(self))
        files = tuple(self.files[i] for i in keep.tolist())
        return self.reopens(replace(self, files=files, labels=self.labels[keep], ids=self.ids[keep]))

    @cached_property
    def digest(self) -> str:
        """Of the files' names and sizes: reading all pixels of ImageNet takes longer than many uses of it.

        Uncompressed files are of one size whatever they show, so they are read.
        """
        content = hashlib.sha256(f"{self.spec.size} {self.spec.channels} {_preparation(self.spec)}".encode())
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

    def _decode(self, position: int) -> Image.Image:
        return decode(self.root / self.files[position], self.spec.channels)

    def _prepare(self, position: int) -> np.ndarray:
        return prepare(self._decode(position), self.spec, self.root / self.files[position])


def _preparation(spec: InputSpec) -> str:
    """What of the preparation tells digests apart; plain bilinear center crops by their size alone."""
    how = f" {spec.interpolation} {spec.crop_mode}"
    return f"{spec.resized and min(spec.resized)}{'' if how == ' bilinear center' else how}"


def open_folder(
    root: Path,
    name: str,
    classes: Sequence[str] | None = None,
    spec: InputSpec | None = None,
    listing: Listing | None = None,
) -> FolderSet:
    """The images below `root` (class/.../image), or in a listing; labels count in `classes`, or in order.

    Without a `spec` they must agree in size and mode, and are taken as they are. Mean and std are those of at
    most a thousand of the images, evenly spaced, unless `spec` has them.
    """
    listing = listing or list_images(root)
    order = in_turns(listing.labels)
    files, labels = [listing.files[i] for i in order], [listing.labels[i] for i in order]
    classes = tuple(classes or listing.classes)
    if unknown := sorted(set(labels) - set(classes)):
        which = f"{unknown[0]!r} is none of {len(classes)} classes"
        raise BadInput(f"{root} has classes that do not fit: {which}")
    index = {name: number for number, name in enumerate(classes)}
    numbers = torch.tensor([index[label] for label in labels])
    if spec is None:
        (width, height), mode = common_form(root, files)
        spec = InputSpec((height, width), MODES[mode])
    name, *shown = (
        os.fsencode(text).decode("utf-8", "replace") for text in (name, *classes)
    )  # or it is no text
    images = FolderSet(root, tuple(files), numbers, tuple(shown), name, spec, torch.tensor(order))
    if any(spec.mean):
        return images
    few = torch.linspace(0, len(images) - 1, min(len(images), 1000)).long()
    mean, std = moments(images.raw(part)[0] for part in few.split(100))
    return replace(images, spec=replace(spec, mean=mean, std=std))


def listed(root: Path, by_wnid: bool = False) -> Listing:
    """List the images of a folder, with their classes by its table, its class folders or their names.

    Args:
        root: the folder.
        by_wnid: whether images without class folders are labeled by the WordNet ids in their names.
    """
    if (root / TABLE).is_file():
        return list_table(root / TABLE)
    if by_wnid and root.is_dir() and not any(entry.is_dir() for entry in root.iterdir()):
        return list_by_wnid(root)
    return list_images(root)


def list_table(path: Path) -> Listing:
    """Read a CSV table of files and labels; labels that are whole numbers count classes from 0 on.

    Args:
        path: a table of two columns, file and label; with more of them, its header names these two. The paths
            begin at its folder.
    """
    with reading(path, "a table of files and labels"), open(path, encoding="utf-8-sig", newline="") as file:
        rows = [[cell.strip() for cell in row] for row in csv.reader(file) if row]
    named = _columns(rows[0]) if rows else []
    if len(named) != 2 and (not rows or len(rows[0]) != 2):
        raise BadInput(f"{path} needs a header that names one of its columns file and one label")
    body, (at_file, at_label) = (rows[1:], named) if len(named) == 2 else (rows, (0, 1))
    for row in body:
        if len(row) <= max(at_file, at_label) or not row[at_label]:
            raise BadInput(f"{path} has no label in the line {','.join(row)}; write file,label")
        if not (path.parent / row[at_file]).is_file():
            raise BadInput(
                f"{path} lists {row[at_file]}, which is not there; paths begin at the table's folder"
            )
    if not body:
        raise BadInput(f"{path} lists no images; write a line file,label for each")
    files, labels = [row[at_file] for row in body], [row[at_label] for row in body]
    if all(re.fullmatch("[0-9]{1,6}", label) for label in labels):
        numbers = list(map(int, labels))
        return Listing(files, list(map(str, numbers)), list(map(str, range(1 + max(numbers)))))
    return Listing(files, labels, sorted(set(labels)))


def _columns(header: Sequence[str]) -> list[int]:
    """Return which columns of a table its header names as files and as labels, in this order."""
    names = [name.lower() for name in header]
    return [names.index(word) for words in COLUMNS for word in names if word in words]


def list_by_wnid(root: Path) -> Listing:
    """List the images of a folder whose names hold the WordNet ids of their classes.

    Args:
        root: the folder.
    """
    files = sorted(_below(root, Path()))
    matches = [WNID.search(Path(file).name) for file in files]
    wnids = [match[0] for match in matches if match]
    if not files or len(wnids) < len(files):
        which = f"{files[matches.index(None)]} has none" if files else "it is empty"
        raise BadInput(
            f"{root} holds neither class folders, nor a table {TABLE}, nor only images with WordNet ids in "
            f"their names: {which}"
        )
    return Listing(files, wnids, sorted(set(wnids)))


def list_images(root: Path) -> Listing:
    """The image files below each class folder, sorted, and the class folder of each."""
    if not root.is_dir():
        raise BadInput(f"{root} is not a folder")
    files: list[str] = []
    folders: list[str] = []
    visible = (entry.name for entry in os.scandir(root) if entry.is_dir() and entry.name[0] != ".")
    for folder in sorted(name for name in visible if name != "__MACOSX"):  # which archivers leave behind
        images = sorted(_below(root / folder, Path(folder)))
        if not images:
            raise BadInput(f"the class folder {root / folder} holds no images; fill it or remove it")
        files += images
        folders += [folder] * len(images)
    if not files:
        raise BadInput(
            f"{root} holds no class folders with images; put the images of each class in a subfolder, or "
            f"list files and labels in {TABLE}"
        )
    return Listing(files, folders, sorted(set(folders)))


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


def common_form(root: Path, files: Sequence[str]) -> Form:
    """The (width, height) and mode that all files share, by their headers."""
    with ThreadPoolExecutor(WORKERS) as pool:
        forms = list(pool.map(lambda file: form(root / file), files))
    for file, other in zip(files, forms, strict=True):
        if other != forms[0]:
            raise BadInput(
                f"the images in {root} are of mixed size or mode: {files[0]} is {_text(forms[0])}, {file} is "
                f"{_text(other)}; write folder:PATH@SIZE to bring all to RGB of one size"
            )
    if forms[0][1] not in MODES:
        raise BadInput(
            f"the images in {root} are {_text(forms[0])}; only gray (L) and RGB are taken as they are, write "
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


def _text(form: Form) -> str:
    return f"{form[0][0]}x{form[0][1]} {form[1]}"
