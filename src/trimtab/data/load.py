"""Load sets by name, as recipes and the command line do.

    sample                                  the embedded sample
    two-cue                                 the synthetic set; two-cue:robust, two-cue:faint: one cue alone
    cifar10, cifar100, svhn, tiny-imagenet  published sets that were fetched
    folder:PATH                             an image folder: a subfolder per class, or a table labels.csv
    csv:FILE                                a table of image files and labels (names, or numbers from 0 on)
    imagenet:PATH                           ImageNet or a variant: class folders by WordNet id, or 0 to 999;
                                            images with WordNet ids in their names; or a table with either
    npz:PATH                                arrays in a NumPy archive
    cifar10-c:PATH/CORRUPTION/SEVERITY      published corrupted sets, also cifar100-c
    imagenet-c:PATH/CORRUPTION/SEVERITY
    file:PATH                               a set that `data.save` wrote

A folder is split by its subfolders train and test (or val); without them every split is the whole folder.

`load(name, input=model.spec)` resizes and crops image files as the network records, whatever the name of the
set; `folder:PATH@SIZE` and `imagenet:PATH@SIZE` ask for another size. For a network without a record,
`imagenet:` means 256 pixels and a center crop of 224 (or of SIZE, with the same crop fraction),
`folder:PATH@SIZE` a center crop as high or wide as the picture, and `folder:PATH` the images as they are.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import partial
from importlib.resources import files
from pathlib import Path

from trimtab.data.arrays import CLEAN, cifar_c, npz
from trimtab.data.embedded import sample
from trimtab.data.fetch import PUBLISHED, fetched
from trimtab.data.files import read
from trimtab.data.folder import FolderSet, list_table, listed, open_folder
from trimtab.data.sets import Images
from trimtab.data.two_cue import TwoCue
from trimtab.io import existing
from trimtab.types import BadInput, InputSpec, nearest

TRAIN, TEST = ("train", "training"), ("test", "val", "validation")
"""Accepted names of a split's folder."""
IN_MEMORY = 2**30
"""Largest image folder, in decoded bytes, that is held in memory."""
LARGEST_SIDE = 4096
IMAGENET = InputSpec((224, 224), 3, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), crop_fraction=0.875)
"""The usual input of ImageNet networks."""

NAMES = (
    "sample", "two-cue", *PUBLISHED,
    "folder:PATH", "csv:FILE", "imagenet:PATH", "npz:PATH", "file:PATH",
    *(f"{kind}:PATH/CORRUPTION/SEVERITY" for kind in (*CLEAN, "imagenet-c")),
)  # fmt: skip
"""The forms of a name, as error messages and `trimtab data list` show them."""


def load(
    name: str,
    split: str = "test",
    root: str | Path | None = None,
    decoded: bool = True,
    input: InputSpec | None = None,
) -> Images:
    """Load a set by its name.

    Args:
        name: A name as listed above.
        split: train or test.
        root: Folder of the fetched sets.
        decoded: Whether a small image folder is decoded and cropped into memory; else its files are read on
            demand, and augmentation works on whole pictures.
        input: The network's input: files are resized and cropped as it records. Without it the name decides,
            and `prepared_for` can be called later.
    """
    if "\0" in name + split:
        raise BadInput(f"no data set is called {name!r}: it contains a null byte")
    recorded = input if input is not None and input.crop_fraction is not None else None
    kind, colon, rest = name.partition(":")
    images: Images
    match kind:
        case "sample" if not colon:
            return sample(split)
        case "two-cue":
            return _two_cue(rest)(split).images
        case _ if kind in PUBLISHED and not colon:
            return fetched(kind, split, root)
        case "folder" if rest:
            path, size = _path_and_size(rest)
            images = _folder(path, split, _preprocessing(size, recorded), decoded)
        case "csv" if rest:
            path, size = _path_and_size(rest)
            images = _table(path, _preprocessing(size, recorded), decoded)
        case "imagenet" if rest:
            path, size = _path_and_size(rest)
            images = _imagenet(path, split, _preprocessing(size, recorded or IMAGENET))
        case "imagenet-c" if rest:
            return _imagenet_c(*_path_and_corruption(rest))
        case _ if kind in CLEAN and rest:
            return cifar_c(kind, *_path_and_corruption(rest))
        case "npz" if rest:
            return npz(rest, split)
        case "file" if rest:
            return read(rest)
        case _:
            known = (each.partition(":")[0] for each in NAMES)
            hint = f" (did you mean folder:{name}?)" if Path(name).is_dir() else nearest(kind, known)
            raise BadInput(f"no data set is called {name!r}{hint}; there are {', '.join(NAMES)}")
    if recorded is None:
        object.__setattr__(images, "reopen", partial(load, name, split, root, decoded))
    return images


def _two_cue(cue: str) -> TwoCue:
    variants = {"": TwoCue(), "robust": TwoCue(faint="nothing"), "faint": TwoCue(robust="nothing")}
    if cue not in variants:
        raise BadInput(f"the two-cue set has no variant {cue!r}; there are two-cue:robust and two-cue:faint")
    return variants[cue]


def _folder(path: Path, split: str, spec: InputSpec | None, decoded: bool) -> Images:
    root = _split_folder(path, split, TEST)
    # Classes are those of the training images, if there are any: test images may lack some.
    train = next((path / name for name in TRAIN if root != path and (path / name).is_dir()), root)
    classes = None if train == root else listed(train).classes
    return _small_in_memory(open_folder(root, path.resolve().name, classes, spec, listed(root)), decoded)


def _table(path: Path, spec: InputSpec | None, decoded: bool) -> Images:
    listing = list_table(existing(path))
    return _small_in_memory(open_folder(path.parent, path.stem, None, spec, listing), decoded)


def _small_in_memory(images: FolderSet, decoded: bool) -> Images:
    """Return the images, decoded into memory if `decoded` is set and they are small."""
    size = len(images) * images.spec.channels * math.prod(images.spec.size)
    return images.in_memory() if decoded and size <= IN_MEMORY else images


def _preprocessing(size: int | None, recorded: InputSpec | None) -> InputSpec | None:
    """Return how files are prepared: as recorded, or by a center crop; at `size` if it is given."""
    spec = recorded or (InputSpec(crop_fraction=1.0) if size else None)
    return spec.at_size(size) if spec and size else spec


def _imagenet(path: Path, split: str, spec: InputSpec | None) -> FolderSet:
    # "test" is the validation set where there is one: ImageNet's own test images have no labels.
    root = _split_folder(path, split, ("val", "validation", "test"))
    listing = listed(root, by_wnid=True)
    numbers = tuple(map(str, range(1000)))
    classes = numbers if listing.labels[0] in numbers else _wnids()  # ImageNet-V2 numbers its folders
    return replace(open_folder(root, path.resolve().name, classes, spec, listing), classes=_wnids())


def _imagenet_c(folder: Path, corruption: str, severity: int) -> FolderSet:
    # Unpacked as published, in groups (noise, blur, ...), or without them; images are 224 x 224 already.
    places = [folder / corruption / str(severity), *sorted(folder.glob(f"*/{corruption}/{severity}"))]
    root = next((place for place in places if place.is_dir()), places[0])
    spec = replace(IMAGENET, crop_fraction=None)
    return open_folder(root, f"imagenet-c {corruption} {severity}", _wnids(), spec)


def has_splits(name: str) -> bool:
    """Return whether the set can have other images for training than for testing.

    A folder without folders for splits has not, nor have a table and what `save` wrote.

    Args:
        name: A name as in `load`.
    """
    kind, _, rest = name.partition(":")
    if kind == "folder":
        path, _ = _path_and_size(rest)
        return any((path / split).is_dir() for split in (*TRAIN, *TEST))
    return kind not in ("csv", "file")


def _split_folder(path: Path, split: str, test: tuple[str, ...]) -> Path:
    """Return the folder of a split, or `path` itself if it has no folders of splits."""
    names = {"train": TRAIN, "test": test}.get(split, (split,))
    present = [path / name for name in (*TRAIN, *TEST, split) if (path / name).is_dir()]
    matching = [path / name for name in names if (path / name).is_dir()]
    if present and not matching:
        there = ", ".join(place.name for place in present)
        raise BadInput(
            f"{path} has no folder for the split {split!r}, only {there}; add {' or '.join(names)}"
        )
    return matching[0] if matching else path


def _path_and_size(rest: str) -> tuple[Path, int | None]:
    """Parse PATH or PATH@SIZE."""
    sized = re.fullmatch(r"(.+)@(\d{1,9})", rest, re.ASCII)
    if sized and not Path(rest).expanduser().exists():
        size = int(sized[2])
        if not 1 <= size <= LARGEST_SIDE:
            raise BadInput(f"images can be resized to 1 to {LARGEST_SIDE} pixels, found {size}")
        return Path(sized[1]).expanduser(), size
    return Path(rest).expanduser(), None


def _path_and_corruption(rest: str) -> tuple[Path, str, int]:
    """Parse PATH/CORRUPTION/SEVERITY."""
    path = Path(rest).expanduser()
    if path.name not in ("1", "2", "3", "4", "5"):
        raise BadInput(f"{rest!r} must end in a corruption and its severity, like PATH/gaussian_noise/3")
    return path.parent.parent, path.parent.name, int(path.name)


def _wnids() -> tuple[str, ...]:
    """The WordNet ids of ImageNet's 1000 classes, in the order of every model's logits."""
    return tuple((files("trimtab.data") / "imagenet.txt").read_text().split())
