"""Noise: Gaussian, shot, impulse, speckle."""

from __future__ import annotations

from functools import cache

import numpy as np
import scipy.stats
import torch
from torch import Tensor

from trimtab.data.corruptions.filters import Chance


def gaussian_noise(x: Tensor, chance: Chance, scale: float) -> Tensor:
    """Additive noise of the same std in every pixel, independent per channel."""
    return chance.normal(*x.shape[1:]).mul_(255 * scale).add_(x)


def speckle_noise(x: Tensor, chance: Chance, scale: float) -> Tensor:
    """Noise in proportion to the pixel."""
    return chance.normal(*x.shape[1:]).mul_(scale).add_(1).mul_(x)


def impulse_noise(x: Tensor, chance: Chance, amount: float) -> Tensor:
    """Salt and pepper: a fraction of the values becomes 0 or 255, with equal probability."""
    u = chance.uniform(*x.shape[1:])
    return torch.where(u < amount, (u < amount / 2) * 255.0, x)


def shot_noise(x: Tensor, chance: Chance, photons: float) -> Tensor:
    """Poisson counts of a full scale of `photons`, drawn exactly by Walker's alias method.

    An 8-bit image has 256 rates, so the 256 distributions are tables: a uniform number picks a column of the
    rate's row, and its fraction decides between the column's own count and its alias.
    """
    keep, alias = (table.to(x.device) for table in _poisson_tables(int(photons)))
    columns = keep.shape[1]
    u = chance.uniform(*x.shape[1:]).mul_(columns)
    column = u.floor()
    cell = x.mul(columns).add_(column).long()
    counts = torch.where(u.sub_(column) < keep.view(-1)[cell], column, alias.view(-1)[cell])
    return counts.mul_(255 / photons)


@cache
def _poisson_tables(photons: int) -> tuple[Tensor, Tensor]:
    """Walker's tables for the rates level / 255 * photons: chance to keep a column, and its alias, (256, K).

    Counts above `photons` are white like `photons` itself, so their mass is there.
    """
    columns = 1 << photons.bit_length()  # above photons; a power of two splits a uniform number exactly
    rates = np.arange(256)[:, None] / 255 * photons
    share = np.zeros((256, columns))
    share[:, : photons + 1] = scipy.stats.poisson.pmf(np.arange(photons + 1), rates)
    share[:, photons] = scipy.stats.poisson.sf(photons - 1, rates[:, 0])
    share *= columns
    # Every round closes, in all 256 rows at once, one column that has less than its share: a rich column
    # fills it up. A rich column that thereby turns poor is the next to be closed.
    # Rounded and stably sorted, so that the last digits of another processor do not make other tables.
    share = share.round(12)
    level, order = np.arange(256), share.argsort(1, kind="stable")
    next_poor, next_rich = np.ones(256, int), np.full(256, columns - 2)
    poor, rich = order[:, 0], order[:, -1]
    keep, alias = np.ones_like(share), np.zeros_like(share)
    for _ in range(columns - 1):
        keep[level, poor], alias[level, poor] = share[level, poor], rich
        share[level, rich] -= 1 - share[level, poor]
        turned = share[level, rich] < 1
        poor = np.where(turned, rich, order[level, np.minimum(next_poor, columns - 1)])
        rich = np.where(turned, order[level, next_rich], rich)
        next_poor, next_rich = next_poor + ~turned, next_rich - turned
    return torch.from_numpy(keep).float(), torch.from_numpy(alias).float()
