"""Sets in NumPy's files: anyone's `.npz`, and CIFAR-10-C and CIFAR-100-C as published.

Nothing is unpickled: an array of Python objects is refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trimtab.data.published import CIFAR10
from trimtab.data.sets import ImageSet, from_arrays
from trimtab.io import existing, reading
from trimtab.types import BadInput, InputSpec

IMAGES, LABELS = ("images", "x", "data"), ("labels", "y", "targets")
"""What the arrays may be called, alone or with the split: x, x_test, test_images."""

CLEAN = {
    "cifar10-c": (
        InputSpec((32, 32), 3, (0.4914, 0.48216, 0.44653), (0.24703, 0.24349, 0.26159)),
        CIFAR10,
    ),
    "cifar100-c": (
        InputSpec((32, 32), 3, (0.50708, 0.48655, 0.44092), (0.26733, 0.25644, 0.27615)),
        tuple(map(str, range(100))),
    ),
}
"""Normalization and classes of the sets that were corrupted."""


def npz(path: str | Path, split: str) -> ImageSet:
    """Images (N, H, W), (N, H, W, C) or (N, C, H, W), integer labels and, if it is there, `classes`."""
    path = existing(path)
    with open(path, "rb") as file:
        with reading(path, "a NumPy archive"):
            arrays: Any = np.load(file, allow_pickle=False)
        if not isinstance(arrays, np.lib.npyio.NpzFile):
            raise BadInput(f"{path} holds a single array; an .npz file with images and labels is needed")
        keys = {key.lower(): key for key in arrays.files}
        chosen = [
            next((keys[key] for key in _spellings(words, split) if key in keys), None)
            for words in (IMAGES, LABELS)
        ]
        if None in chosen:
            expected = f"images and labels, or x_{split} and y_{split}"
            raise BadInput(f"{path} holds {', '.join(arrays.files) or 'nothing'}; expected {expected}")
        images, labels = (_member(arrays, key, path) for key in chosen)
        classes = _names(_member(arrays, keys["classes"], path), path) if "classes" in keys else None
    if labels.dtype.kind not in "iu":
        raise BadInput(f"{path} needs one integer label per image, found {labels.dtype}")
    if labels.dtype.kind == "u" and labels.size and labels.max() > np.iinfo(np.int64).max:
        raise BadInput(f"the labels in {path} go up to {labels.max()}, which is no class's number")
    if images.ndim and (labels.size != len(images) or labels.shape[:1] != images.shape[:1]):
        raise BadInput(f"{path} needs one label for each of its {len(images)} images, found {labels.shape}")
    whole = torch.from_numpy(labels.astype(np.int64)).reshape(-1)
    return from_arrays(_channels_first(images, path), whole, classes, path.stem)


def cifar_c(kind: str, folder: Path, corruption: str, severity: int) -> ImageSet:
    """One severity of a published array, which holds five of them, 1 to 5, one after the other."""
    path = existing(folder / f"{corruption}.npy")
    pixels, labels = _mapped(path), _mapped(existing(folder / "labels.npy"))
    if pixels.dtype != np.uint8 or pixels.shape != (50_000, 32, 32, 3) or labels.shape != (50_000,):
        described = f"{pixels.dtype} {pixels.shape} with labels {labels.shape}"
        raise BadInput(f"{path} is {described}; as published it is uint8 (50000, 32, 32, 3)")
    block = slice((severity - 1) * 10_000, severity * 10_000)
    spec, classes = CLEAN[kind]
    images = torch.from_numpy(pixels[block]).permute(0, 3, 1, 2)
    return ImageSet(
        images, torch.from_numpy(labels[block]).long(), classes, f"{kind} {corruption} {severity}", spec
    )


def _spellings(words: tuple[str, ...], split: str) -> list[str]:
    return [f"{split}_{word}" for word in words] + [f"{word}_{split}" for word in words] + list(words)


def _mapped(path: Path) -> np.ndarray:
    with reading(path, "a NumPy array"):
        return np.lib.format.open_memmap(path, mode="c")  # read when touched, never written back


def _member(arrays: Any, key: str | None, path: Path) -> np.ndarray:
    with reading(path):
        try:
            array = arrays[key]
        except ValueError as problem:
            if "Object arrays" in str(problem):
                raise BadInput(f"{path} holds Python objects in {key!r}, which are never unpickled") from None
            raise
    if not isinstance(array, np.ndarray):  # a member that is no array comes as its bytes
        raise BadInput(f"{key!r} in {path} is no array")
    return array


def _names(classes: np.ndarray, path: Path) -> list[str]:
    if classes.ndim != 1 or classes.dtype.kind not in "USiu":
        raise BadInput(f"the classes in {path} are {classes.dtype} {classes.shape}; give one name each")
    if classes.dtype.kind == "S":
        return [name.decode("utf-8", errors="replace") for name in classes.tolist()]
    return [str(name) for name in classes.tolist()]


def _channels_first(images: np.ndarray, path: Path) -> Tensor:
    if images.ndim == 3:
        images = images[:, None]
    elif images.ndim == 4 and images.shape[-1] in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    if images.dtype != np.uint8 and images.dtype.kind != "f":
        raise BadInput(f"the images in {path} are {images.dtype}; they must be uint8, or float in [0, 1]")
    # Of the floats torch knows three, in this machine's order of bytes.
    narrow = images if images.dtype in (np.uint8, np.float16, np.float32, np.float64) else images.astype("f4")
    return torch.from_numpy(np.ascontiguousarray(narrow, narrow.dtype.newbyteorder("=")))
