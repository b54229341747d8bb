"""A corrupted set as files, laid out like CIFAR-10-C."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from trimtab.data.corruptions.apply import corrupt
from trimtab.data.corruptions.tables import CORRUPTIONS, EXTRA_CORRUPTIONS
from trimtab.io import atomic_write
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
    levels = images if images.dtype == torch.uint8 else (images * 255).round().to(torch.uint8)
    for name, path in zip(names, paths, strict=False):
        with atomic_write(path) as part, open(part, "wb") as handle:
            changed = [corrupt(levels, name, s, seed, None, frost_textures, table) for s in range(1, 6)]
            np.save(handle, torch.cat(changed).permute(0, 2, 3, 1).cpu().numpy())
    with atomic_write(paths[-1]) as part, open(part, "wb") as handle:
        np.save(handle, np.tile(labels.cpu().numpy().astype(np.uint8), 5))
    return paths
