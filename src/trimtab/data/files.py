"""Sets as files: one safetensors file per split, mapped into memory and written atomically.

The file holds `images` (uint8 or float32, NHWC), `labels` and `ids`; its metadata hold name, classes, mean,
std and a hash as JSON. It cannot run code, and any safetensors reader can open it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file

from trimtab.data.sets import ImageSet
from trimtab.io import atomic_write, existing, reading
from trimtab.types import BadInput, InputSpec

_METADATA = "trimtab"
FORMATS = ("BMP", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""Accepted image formats; Pillow would pass some others to external programs."""


def default_root() -> Path:
    """Return the folder of fetched sets: $TRIMTAB_DATA, or ~/.cache/trimtab."""
    return Path(os.environ.get("TRIMTAB_DATA") or "~/.cache/trimtab").expanduser()


def save(images: ImageSet, path: str | Path) -> None:
    """Write a set as one file; `load("file:PATH")` reads it."""
    if not isinstance(images, ImageSet):
        raise BadInput(
            f"only a set in memory can be saved; a {type(images).__name__} has `in_memory()` for that"
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
        # One entry, since safetensors writes several in a random order.
        save_file(tensors, part, metadata={_METADATA: json.dumps(about)})


def read(path: str | Path) -> ImageSet:
    """Map a set that `save` wrote."""
    path = existing(path)
    with reading(path, "an image set that trimtab wrote"):
        with safe_open(path, framework="pt") as file:
            about = {key: json.loads(value) for key, value in (file.metadata() or {}).items()}
            about = about.get(_METADATA, about)  # sets of the first versions had one entry per key
            pixels, labels, ids = (file.get_tensor(key) for key in ("images", "labels", "ids"))
        _, height, width, channels = pixels.shape
        mean, std = (tuple(map(float, about[key])) for key in ("mean", "std"))
        spec = InputSpec((height, width), channels, mean, std)
        classes = tuple(map(str, about["classes"]))
        images = ImageSet(pixels.permute(0, 3, 1, 2), labels, classes, str(about["name"]), spec, ids)
        description = {key: about[key] for key in ("name", "classes", "mean", "std")}
    if "seal" in about and about["seal"] != _seal(images.digest, description):
        raise BadInput(f"{path} is damaged: its images are not those that were saved; fetch or save it again")
    return images


def _seal(digest: str, about: Mapping[str, object]) -> str:
    """Return a hash of the images and their description, by which damage is detected."""
    return hashlib.sha256(f"{digest} {json.dumps(about, sort_keys=True)}".encode()).hexdigest()
