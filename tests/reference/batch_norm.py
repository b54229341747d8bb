"""Batch normalization written out in plain tensor operations, for any number of positions' axes."""

from __future__ import annotations

import torch
from torch import Tensor


def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance per channel of x (N, C, ...)."""
    flat = x.transpose(0, 1).flatten(1)  # (C, values)
    mean = flat.sum(1) / flat.shape[1]
    return mean, ((flat - mean[:, None]) ** 2).sum(1) / flat.shape[1]


def normalize(
    x: Tensor,
    mean: Tensor,
    var: Tensor,
    gamma: Tensor,
    beta: Tensor,
    eps: float = 1e-5,
    d_mu: Tensor | None = None,
    d_sigma: Tensor | None = None,
) -> Tensor:
    """gamma (1 + d_sigma) (x - (1 + d_mu) mean) / sqrt(var + eps) + beta."""
    none = torch.zeros_like(mean)
    d_mu, d_sigma = none if d_mu is None else d_mu, none if d_sigma is None else d_sigma

    def over(vector: Tensor) -> Tensor:
        return vector.view(1, -1, *[1] * (x.dim() - 2))

    centered = x - over((1 + d_mu) * mean)
    return over(gamma * (1 + d_sigma)) * centered / over(torch.sqrt(var + eps)) + over(beta)
