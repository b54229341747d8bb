"""A corrupted set as files, laid out like CIFAR-10-C."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from trimtab.data.corruptions.apply import corrupt
from trimtab.data.corruptions.tables import CORRUPTIONS, EXTRA_CORRUPTIONS
from trimtab.data.files import placed
from trimtab.types import BadInput


def write_cifar10_c(
    images: Tensor,
    labels: Tensor,
    folder: str | Path,
    names: Sequence[str] = CORRUPTIONS + EXTRA_CORRUPTIONS,
    seed: int = 0,
    frost_textures: str | Path | None = None,
    table: int | None = None,
) -> list[Path]:
    """Write one `<corruption>.npy` each and `labels.npy`, as CIFAR-10-C does, and return their paths.

    A file holds uint8 (5 N, H, W, C): the N images, in order, at severity 1, then at 2, up to 5; the labels
    are repeated to match. `images` are uint8, or floating point in [0, 1], (N, C, H, W). Each file appears
    whole or not at all, and one that was there is replaced.
    """
    if labels.shape != (len(images),):
        raise BadInput(f"{len(images)} images need as many labels, found {tuple(labels.shape)}")
    if len(labels) and not (labels.min() >= 0 and labels.max() <= 255):
        raise BadInput("labels must lie in 0..255, since CIFAR-10-C stores them in one byte each")
    paths = [Path(folder) / f"{name}.npy" for name in (*names, "labels")]
    shape = (5 * len(images), *images.shape[2:], images.shape[1])
    for name, path in zip(names, paths, strict=False):
        corrupted = partial(corrupt, name=name, seed=seed, frost_textures=frost_textures, table=table)
        with placed(path) as part:
            file = np.lib.format.open_memmap(part, mode="w+", dtype=np.uint8, shape=shape)
            done = 0
            for severity in range(1, 6):
                for some, ids in _pieces(images):
                    levels = corrupted(some, severity=severity, ids=ids).mul_(255).round_()
                    file[done : done + len(ids)] = levels.to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()
                    done += len(ids)
            file.flush()
    with placed(paths[-1]) as part, open(part, "wb") as handle:
        np.save(handle, np.tile(labels.cpu().numpy().astype(np.uint8), 5))
    return paths


def _pieces(images: Tensor, at_once: int = 500) -> Iterator[tuple[Tensor, range]]:
    """Floating-point images with their ids, some at a time."""
    for start in range(0, len(images), at_once):
        some = images[start : start + at_once]
        yield some / 255 if some.dtype == torch.uint8 else some, range(start, start + len(some))
