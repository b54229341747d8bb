"""Sets as files: one safetensors file per split, mapped into memory, placed whole or not at all.

The file holds `images` (uint8 or float32, NHWC), `labels` and `ids`; its metadata hold name, classes, mean,
deviation and a digest as JSON. Nothing in it can run code, and whoever reads safetensors can read it.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path

from PIL import Image
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from trimtab.data.sets import ImageSet
from trimtab.io import atomic_write
from trimtab.types import BadInput, InputSpec

_ABOUT = "trimtab"
FORMATS = ("BMP", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""What an image may be, by its content: Pillow would also hand others to outside programs."""
UNREADABLE = (
    OSError, ValueError, SyntaxError, TypeError, IndexError, KeyError, AttributeError, RuntimeError,
    EOFError, OverflowError, MemoryError, struct.error, zlib.error, Image.DecompressionBombError,
)  # fmt: skip
"""What Pillow raises on files that are damaged, or made to be."""


def default_root() -> Path:
    """Where fetched sets lie: $TRIMTAB_DATA, or ~/.cache/trimtab."""
    return Path(os.environ.get("TRIMTAB_DATA") or "~/.cache/trimtab").expanduser()


def save(images: ImageSet, path: str | Path) -> None:
    """Write a set as one file; `load("file:PATH")` reads it."""
    if not isinstance(images, ImageSet):
        raise BadInput(
            f"only a set in memory is written; a {type(images).__name__} has `in_memory()` for that"
        )
    tensors = {
        "images": images.images.permute(0, 2, 3, 1).contiguous(),
        "labels": images.labels.contiguous(),
        "ids": images.ids.contiguous(),
    }
    about = {
        "name": images.name,
        "classes": images.classes,
        "mean": images.spec.mean,
        "std": images.spec.std,
    }
    about["seal"] = _seal(images.digest, about)
    with atomic_write(Path(path)) as part:
        # One entry: safetensors writes several in an order that changes from process to process.
        save_file(tensors, part, metadata={_ABOUT: json.dumps(about)})


def read(path: str | Path) -> ImageSet:
    """Map a set that `save` wrote."""
    path = existing(path)
    try:
        with safe_open(path, framework="pt") as file:
            about = {key: json.loads(value) for key, value in (file.metadata() or {}).items()}
            about = about.get(_ABOUT, about)  # the first sets had an entry for each
            pixels, labels, ids = (file.get_tensor(key) for key in ("images", "labels", "ids"))
        _, height, width, channels = pixels.shape
        mean, std = (tuple(map(float, about[key])) for key in ("mean", "std"))
        spec = InputSpec((height, width), channels, mean, std)
        classes = tuple(map(str, about["classes"]))
        images = ImageSet(pixels.permute(0, 3, 1, 2), labels, classes, str(about["name"]), spec, ids)
    except BadInput:
        raise
    except (SafetensorError, KeyError, ValueError, TypeError, AttributeError, RuntimeError, OSError):
        raise BadInput(f"{path} is not an image set that trimtab wrote: it is {kind_of(path)}") from None
    held = {key: about[key] for key in ("name", "classes", "mean", "std")}
    if "seal" in about and about["seal"] != _seal(images.digest, held):
        raise BadInput(f"{path} is damaged: its images are not those that were saved; fetch or save it again")
    return images


def _seal(digest: str, about: Mapping[str, object]) -> str:
    """A hash over the images and what is said about them: by it damage is noticed."""
    return hashlib.sha256(f"{digest} {json.dumps(about, sort_keys=True)}".encode()).hexdigest()


def existing(path: str | Path) -> Path:
    """The path of a file that is there."""
    path = Path(path).expanduser()
    if not path.is_file():
        raise BadInput(f"{path} is {'a folder, not a file' if path.is_dir() else 'not there'}")
    return path


def kind_of(path: Path) -> str:
    """What a file is by its first bytes, in words for an error message."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        head = file.read(512)
    text = head.lstrip().lower()
    if not head:
        return "an empty file"
    if text.startswith((b"<!doctype html", b"<html", b"<head", b"<?xml")):
        return "a web page (HTML)"
    for start, words in _HEADS.items():
        if head.startswith(start):
            return words
    return f"{size} bytes of another kind, or cut short"


_HEADS = {
    b"\x80": "a Python pickle, which is never opened",
    b"\x1f\x8b": "a gzip file",
    b"PK\x03\x04": "a zip file",
    b"\x93NUMPY": "a NumPy array",
    b"\x89PNG": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"\x89HDF": "an HDF5 file",
}
