"""Randomness as a function of (seed, id, draw), never of the batch.

The same image gets the same start, noise and corruption whatever the batch size, the order, the
device or the number of processes. Numbers are drawn on the CPU, by a generator that is seeded anew for each
image, and then moved: the same on every device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trimtab.types import BadInput

_MASK = (1 << 64) - 1


def key(*parts: int) -> int:
    """Return one 64-bit seed mixed from integers (splitmix64, each part in turn)."""
    state = 0x9E3779B97F4A7C15
    for part in parts:
        part = part if isinstance(part, np.ndarray) else int(part)  # NumPy's own integers would overflow
        state = (state ^ (part & _MASK)) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ (state >> 30)) * 0x94D049BB133111EB & _MASK
        state = (state ^ (state >> 27)) + 0x9E3779B97F4A7C15 & _MASK
        state ^= state >> 31
    return state


def purpose(name: str, index: int = 0) -> int:
    """Return a `draw` number that no other purpose shares.

    Args:
        name: what the random numbers are for.
        index: a count within that purpose, such as the restart.
    """
    return key(*name.encode(), index)


def generator(seed: int, id: int = 0, draw: int = 0) -> torch.Generator:
    """Return a CPU generator for one image and one purpose (`draw`)."""
    return seeded(key(seed, id, draw))


def seeded(seed: int) -> torch.Generator:
    """Return a CPU generator; what it fills must be on the CPU as well, whatever torch's default device."""
    return torch.Generator("cpu").manual_seed(seed)


def ids_of(x: Tensor, ids: Tensor | Sequence[int] | None) -> list[int]:
    """Return the images' indices in their set: 0..N-1 of this call if none are given."""
    if ids is None:
        return list(range(len(x)))
    if isinstance(ids, Tensor) and (ids.is_floating_point() or ids.dim() != 1):
        raise BadInput(f"ids are whole numbers, one per image, found {ids.dtype} {tuple(ids.shape)}")
    listed = ids.tolist() if isinstance(ids, Tensor) else [int(i) for i in ids]
    if len(listed) != len(x):
        raise BadInput(f"{len(listed)} ids for {len(x)} images; give one id per image")
    return listed


def uniform(like: Tensor, seed: int, ids: Sequence[int], draw: int = 0) -> Tensor:
    """Return samples uniform in [0, 1), one independent stream per image, shaped as `like`."""
    return _fill(like, seed, ids, draw, "uniform_")


def normal(like: Tensor, seed: int, ids: Sequence[int], draw: int = 0) -> Tensor:
    """Return standard normal samples, one independent stream per image, shaped as `like`."""
    return _fill(like, seed, ids, draw, "normal_")


def integers(low: int, high: int, seed: int, ids: Sequence[int], draw: int = 0) -> Tensor:
    """Return one integer in [low, high) per image (on the CPU)."""
    sources = (generator(seed, i, draw) for i in ids)
    drawn = [int(torch.randint(low, high, (), generator=source, device="cpu")) for source in sources]
    return torch.tensor(drawn, device="cpu")


def scalars(seed: int, ids: Sequence[int] | Tensor, draw: int = 0) -> Tensor:
    """Return one number per image, uniform in [0, 1) (float64, on the CPU), hashed rather than generated.

    A batch costs microseconds, so this is what augmentation draws from.
    """
    return torch.from_numpy((_keys(seed, ids, draw) >> 11) * 2.0**-53)


def permutation(n: int, seed: int, draw: int = 0) -> Tensor:
    """Return a random permutation of 0..n-1 (on the CPU)."""
    return torch.randperm(n, generator=generator(seed, -1, draw), device="cpu")  # no image has this id


def _fill(like: Tensor, seed: int, ids: Sequence[int], draw: int, fill: str) -> Tensor:
    # Rows are filled in logical NCHW order on contiguous memory (filling a channels-last tensor is
    # several times slower), and only then take the layout of `like`.
    wide = like.dtype if like.dtype == torch.float64 else torch.float32
    out = torch.empty(like.shape, dtype=wide, device="cpu")
    source = torch.Generator("cpu")
    for row, row_seed in zip(out, _keys(seed, ids, draw).tolist(), strict=True):
        getattr(row, fill)(generator=source.manual_seed(row_seed))
    return torch.empty_like(like).copy_(out)


def _keys(seed: int, ids: Sequence[int] | Tensor, draw: int) -> Any:
    """key(seed, id, draw) of every image, as an array."""
    whole = ids.tolist() if isinstance(ids, Tensor) else ids
    wrapped = np.array([int(i) & _MASK for i in whole], dtype=np.uint64)  # which NumPy may make floats of
    return key(seed, wrapped, draw)  # type: ignore[arg-type]  # mixes arrays too
