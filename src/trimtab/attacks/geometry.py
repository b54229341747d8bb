"""Balls around images, in l_inf and l2: where to start, which way to step, how to come back inside.

All functions act on each image on its own; x has shape (N, ...). Images live in [0, 1]; clipping to
that box moves no coordinate away from the centre, so a clipped projection stays inside the ball.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trimtab import draws
from trimtab.norm.moments import widest
from trimtab.types import Budget, Linf

LARGE = 16_384
"""Values of an image beyond which norms are taken in double precision."""


def norms(x: Tensor) -> Tensor:
    """l2 norm of each image, shaped (N, 1, ...) to broadcast."""
    return _l2(x).view(-1, *[1] * (x.dim() - 1))


def _l2(x: Tensor) -> Tensor:
    """Of large images in double precision: in single, the sum of so many squares is off by more than a budget
    allows."""
    wide = widest(x.device) if x[:1].numel() > LARGE else None
    return torch.linalg.vector_norm(x.flatten(1), dim=1, dtype=wide).to(x.dtype)


def unit(x: Tensor) -> Tensor:
    """Each image over its l2 norm; zero stays zero. Scaled first, since squares of small numbers vanish."""
    largest = x.flatten(1).abs().amax(1).view(-1, *[1] * (x.dim() - 1))
    x = x / largest.clamp(min=torch.finfo(x.dtype).tiny)
    return x / norms(x).clamp(min=1e-12)


def direction(grad: Tensor, budget: Budget) -> Tensor:
    """Steepest ascent of unit size: the sign (l_inf), or the gradient over its norm (l2)."""
    # An infinite slope is a large one; what is no number has no direction, nor a sign.
    return grad.sign() if isinstance(budget, Linf) else unit(grad.nan_to_num())


def project(x: Tensor, centre: Tensor, budget: Budget) -> Tensor:
    """The nearest point of the ball (and then of the pixel box)."""
    if isinstance(budget, Linf):
        near = torch.clamp(x, centre - budget.radius, centre + budget.radius)
    else:
        delta = x - centre
        near = centre + delta * (budget.radius / norms(delta).clamp(min=1e-12)).clamp(max=1.0)
    return near.clamp(0.0, 1.0)


def random_start(centre: Tensor, budget: Budget, seed: int, ids: Sequence[int], draw: int = 0) -> Tensor:
    """Uniform in the ball, each image by its own seed."""
    if isinstance(budget, Linf):
        delta = (2 * draws.uniform(centre, seed, ids, draw) - 1) * budget.radius
    else:
        gauss = draws.normal(centre, seed, ids, draw)
        share = draws.uniform(centre.flatten(1)[:, :1], seed, ids, draws.key(draw, 1))
        radius = budget.radius * share ** (1.0 / centre[0].numel())
        delta = gauss / norms(gauss).clamp(min=1e-12) * radius.view(-1, *[1] * (centre.dim() - 1))
    return project(centre + delta, centre, budget)


def distance(x: Tensor, centre: Tensor, budget: Budget) -> Tensor:
    """How far each image is from its centre, in the budget's norm."""
    delta = x - centre
    if isinstance(budget, Linf):
        return delta.abs().amax(tuple(range(1, x.dim())))  # which flattening would first lay out anew
    return _l2(delta.flatten(1))
