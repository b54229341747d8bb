"""Balls around images, in l_inf and l2: random starts, steepest directions and projections.

All functions act on each image separately; x has shape (N, ...). Images are in [0, 1]; clipping to that
box moves no coordinate away from the center, so a clipped projection stays inside the ball.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trimtab import rng
from trimtab.norm.moments import widest
from trimtab.types import Budget, Linf

LARGE = 16_384
"""Values per image above which l2 norms are computed in double precision."""


def column(per_image: Tensor, like: Tensor) -> Tensor:
    """Return one value per image as (N, 1, ...), which broadcasts over `like`, (N, ...)."""
    return per_image.view(-1, *[1] * (like.dim() - 1))


def norms(x: Tensor) -> Tensor:
    """Return the l2 norm of each image, shaped (N, 1, ...) to broadcast."""
    return column(_l2(x), x)


def _l2(x: Tensor) -> Tensor:
    """Return the l2 norm of each image (N,); of large images in double precision.

    In single precision, the rounding error of that many squares exceeds the tolerance of a budget.
    """
    wide = widest(x.device) if x[:1].numel() > LARGE else None
    return torch.linalg.vector_norm(x.flatten(1), dim=1, dtype=wide).to(x.dtype)


def unit(x: Tensor) -> Tensor:
    """Return each image divided by its l2 norm; zero stays zero."""
    largest = column(x.flatten(1).abs().amax(1), x)
    x = x / largest.clamp(min=torch.finfo(x.dtype).tiny)
    return x / norms(x).clamp(min=1e-12)


def direction(grad: Tensor, budget: Budget) -> Tensor:
    """Return the steepest ascent of unit size: the sign (l_inf), or the gradient over its norm (l2)."""
    # nan_to_num makes infinities large and NaN zero; sign needs no such care.
    return grad.sign() if isinstance(budget, Linf) else unit(grad.nan_to_num())


def project(x: Tensor, center: Tensor, budget: Budget) -> Tensor:
    """Return the nearest point of the ball, clipped to [0, 1]."""
    if isinstance(budget, Linf):
        near = torch.clamp(x, center - budget.radius, center + budget.radius)
    else:
        delta = x - center
        near = center + delta * (budget.radius / norms(delta).clamp(min=1e-12)).clamp(max=1.0)
    return near.clamp(0.0, 1.0)


def random_start(center: Tensor, budget: Budget, seed: int, ids: Sequence[int], draw: int = 0) -> Tensor:
    """Return a uniform point of the ball around each image, from the image's own random numbers.

    Args:
        center: The clean images (N, ...).
        budget: The ball.
        seed: Seed of all randomness.
        ids: The images' indices in their set.
        draw: Index of the point among the random points of an image.
    """
    if isinstance(budget, Linf):
        delta = (2 * rng.uniform(center, seed, ids, draw) - 1) * budget.radius
    else:
        gauss = rng.normal(center, seed, ids, draw)
        u = rng.uniform(center.flatten(1)[:, :1], seed, ids, rng.key(draw, 1))
        radius = budget.radius * u ** (1.0 / center[0].numel())
        delta = gauss / norms(gauss).clamp(min=1e-12) * column(radius, center)
    return project(center + delta, center, budget)


def distance(x: Tensor, center: Tensor, budget: Budget) -> Tensor:
    """Return how far each image is from its center, in the budget's norm."""
    delta = x - center
    if isinstance(budget, Linf):
        return delta.abs().amax(tuple(range(1, x.dim())))  # flattening first would copy
    return _l2(delta)
