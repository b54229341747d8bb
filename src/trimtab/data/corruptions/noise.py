"""Noise corruptions: Gaussian, shot, impulse, speckle."""

from __future__ import annotations

from functools import cache

import numpy as np
import scipy.stats
import torch
from torch import Tensor

from trimtab.data.corruptions.filters import ImageRNG


def gaussian_noise(x: Tensor, rng: ImageRNG, scale: float) -> Tensor:
    """Add Gaussian noise of the same std to every pixel, independent per channel."""
    return rng.normal(*x.shape[1:]).mul_(255 * scale).add_(x)


def speckle_noise(x: Tensor, rng: ImageRNG, scale: float) -> Tensor:
    """Add Gaussian noise in proportion to the pixel."""
    return rng.normal(*x.shape[1:]).mul_(scale).add_(1).mul_(x)


def impulse_noise(x: Tensor, rng: ImageRNG, amount: float) -> Tensor:
    """Set a fraction of the values to 0 or 255, with equal probability (salt and pepper)."""
    u = rng.uniform(*x.shape[1:])
    return torch.where(u < amount, (u < amount / 2) * 255.0, x)


def shot_noise(x: Tensor, rng: ImageRNG, photons: float) -> Tensor:
    """Replace each level by a Poisson count (mean `photons` for white), by Walker's alias method: exact.

    An 8-bit image has 256 rates, so the 256 distributions are tables: a uniform number picks a column of the
    rate's row, and its fraction decides between the column's own count and its alias.
    """
    keep, alias = (table.to(x.device) for table in _poisson_tables(int(photons)))
    columns = keep.shape[1]
    u = rng.uniform(*x.shape[1:]).mul_(columns)
    column = u.floor()
    cell = x.mul(columns).add_(column).long()
    counts = torch.where(u.sub_(column) < keep.view(-1)[cell], column, alias.view(-1)[cell])
    return counts.mul_(255 / photons)


@cache
def _poisson_tables(photons: int) -> tuple[Tensor, Tensor]:
    """Return Walker's tables: the probability to keep a column, and its alias, both (256, K).

    Row k is for the rate k / 255 * photons. Counts above `photons` are clipped to white, so their mass is
    added to that of `photons`.
    """
    columns = 1 << photons.bit_length()  # above photons; a power of two splits a uniform number exactly
    rates = np.arange(256)[:, None] / 255 * photons
    mass = np.zeros((256, columns))
    mass[:, : photons + 1] = scipy.stats.poisson.pmf(np.arange(photons + 1), rates)
    mass[:, photons] = scipy.stats.poisson.sf(photons - 1, rates[:, 0])
    mass *= columns
    # Walker's construction, in all 256 rows at once: each round fills up one poor column (mass below 1) from
    # a rich one. A rich column that becomes poor is the next to be filled.
    # Rounded and stably sorted, so that the tables do not depend on the last digits of a processor.
    mass = mass.round(12)
    level, order = np.arange(256), mass.argsort(1, kind="stable")
    next_poor, next_rich = np.ones(256, int), np.full(256, columns - 2)
    poor, rich = order[:, 0], order[:, -1]
    keep, alias = np.ones_like(mass), np.zeros_like(mass)
    for _ in range(columns - 1):
        keep[level, poor], alias[level, poor] = mass[level, poor], rich
        mass[level, rich] -= 1 - mass[level, poor]
        turned = mass[level, rich] < 1
        poor = np.where(turned, rich, order[level, np.minimum(next_poor, columns - 1)])
        rich = np.where(turned, order[level, next_rich], rich)
        next_poor, next_rich = next_poor + ~turned, next_rich - turned
    return torch.from_numpy(keep).float(), torch.from_numpy(alias).float()
