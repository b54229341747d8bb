"""AdvBN's inner attack: the statistics of one feature map, pushed to where the rest of the network errs.

Idea      z' = (1 + d_sigma)(z - mu) + (1 + d_mu) mu, one d per channel, shared by the whole batch; sign
          ascent on the batch's mean cross-entropy, every d clipped to [-eps, eps]
Paper     Shu et al., AdvBN: 6 steps of 0.2, eps 1.1 (so that a scale may change its sign); no random
          start; after a rectified feature z' is rectified, too
Norm      none turned here: the tail is used as the caller set it (AdvBN: auxiliary branch, running)
Cost      `steps` forward/backward passes of the tail only
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from trimtab.norm import perturb


def ascend(
    tail: Callable[[Tensor], Tensor],
    z: Tensor,
    y: Tensor,
    eps: float = 1.1,
    steps: int = 6,
    step: float = 0.2,
    rectify: bool = True,
    mu: Tensor | None = None,
    average: Callable[[Sequence[Tensor]], None] | None = None,
) -> tuple[Tensor, Tensor]:
    """(d_mu, d_sigma) that the batch of features `z` (N, C, ...) is hurt by most, within the cube.

    Where z is a part of the batch only, `mu` is the mean of the whole, and `average` replaces gradients
    by their means over all parts.
    """
    z = z.detach()
    d_mu = torch.zeros(z.shape[1], dtype=z.dtype, device=z.device)
    d_sigma = torch.zeros_like(d_mu)
    with torch.enable_grad():
        for _ in range(steps):
            d_mu.requires_grad_(True)
            d_sigma.requires_grad_(True)
            loss = F.cross_entropy(tail(perturbed(z, d_mu, d_sigma, rectify, mu)), y)
            grads = torch.autograd.grad(loss, (d_mu, d_sigma))
            if average is not None:
                average(grads)
            d_mu, d_sigma = (
                (d.detach() + step * grad.sign()).clamp(-eps, eps)
                for d, grad in zip((d_mu, d_sigma), grads, strict=True)
            )
    return d_mu, d_sigma


def perturbed(z: Tensor, d_mu: Tensor, d_sigma: Tensor, rectify: bool, mu: Tensor | None = None) -> Tensor:
    moved = perturb(z, d_mu, d_sigma, mu)
    # Unlike relu(), clamp() has a slope at 0, where all zeros of a rectified feature lie as d = 0.
    return moved.clamp(min=0) if rectify else moved
