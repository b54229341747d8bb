"""Arithmetic on moments that other packages share: robust estimates, blends, AdvBN's perturbation."""

from __future__ import annotations

import torch
from torch import Tensor

from trimtab.norm.setting import Moments


def widest(device: torch.device) -> torch.dtype:
    """Return the widest floating-point type of a device, for sums: float64, except on Apple's GPUs."""
    return torch.float32 if device.type == "mps" else torch.float64


def robust_moments(x: Tensor) -> Moments:
    """Return median and (1.4826 MAD)^2 of each channel, which a few adversarial images cannot move.

    MAD is the median absolute difference from the median. For a Gaussian channel both agree with mean and
    variance. After a ReLU more than half of a channel may be zero; where its MAD vanishes, the mean absolute
    difference from the median replaces it.
    """
    wide = (x if x.dtype == torch.float64 else x.float()).transpose(0, 1).flatten(1)  # (C, N * positions)
    median = wide.median(1).values
    difference = (wide - median[:, None]).abs()
    std = 1.4826 * difference.median(1).values
    std = torch.where(std > 0, std, 1.2533 * difference.mean(1))
    return Moments(median, std**2, wide.shape[1])


def blend(
    batch: Moments, mean: Tensor, var: Tensor, rho: float, of: str, eps: float
) -> tuple[Tensor, Tensor]:
    """Blend batch and running statistics with weights rho and 1 - rho.

    Args:
        batch: Moments of the batch.
        mean: Running mean.
        var: Running variance.
        rho: Weight of the batch.
        of: What is blended in addition to the mean: "std", "var" or "pooled" (see `Setting.blend_of`).
        eps: Added to a variance before its root is taken.

    Returns:
        The blended mean and variance.
    """
    if rho == 1:
        mean, var = batch.mean, batch.var  # without the running ones, which may be NaN
    mixed_mean = rho * batch.mean + (1 - rho) * mean
    if of == "var":
        return mixed_mean, rho * batch.var + (1 - rho) * var
    if of == "pooled":
        between = rho * (1 - rho) * (batch.mean - mean) ** 2
        return mixed_mean, rho * batch.var + (1 - rho) * var + between
    std = rho * (batch.var + eps).sqrt() + (1 - rho) * (var + eps).sqrt()
    return mixed_mean, std**2 - eps


def perturb(z: Tensor, d_mu: Tensor, d_sigma: Tensor, mu: Tensor | None = None) -> Tensor:
    """Perturb the statistics of features z (N, C, ...) as AdvBN does: (1 + d_sigma)(z - mu) + (1 + d_mu) mu.

    mu is the mean of each channel over the batch and all positions; d_mu and d_sigma have one value per
    channel, shared by the whole batch. The mean becomes (1 + d_mu) mu, the std |1 + d_sigma| sigma.
    Give `mu` if z is only a part of the batch.
    """
    shape = [1, -1] + [1] * (z.dim() - 2)
    if mu is None:
        mu = z.mean([axis for axis in range(z.dim()) if axis != 1])
    mu = mu.view(shape)
    return (1 + d_sigma.view(shape)) * (z - mu) + (1 + d_mu.view(shape)) * mu
