"""AdvBN's inner attack: perturb the statistics of one feature map to maximize the loss of what follows it.

Idea      z' = (1 + d_sigma)(z - mu) + (1 + d_mu) mu, one d per channel, shared by the whole batch; sign
          ascent on the batch's mean cross-entropy, every d clipped to [-eps, eps]
Paper     Shu et al., AdvBN: 6 steps of 0.2, eps 1.1 (so that a scale may change its sign); no random
          start; after a rectified feature z' is rectified, too
Norm      no knob is changed here: the tail runs as the caller set it (AdvBN: auxiliary branch, running)
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
    """Return the (d_mu, d_sigma) within [-eps, eps] that maximize the loss, by sign ascent from zero.

    Args:
        tail: The rest of the network: from a feature to logits.
        z: The batch of features, (N, C, ...).
        y: Labels (N,).
        eps: Bound of every delta.
        steps: Sign steps.
        step: Length of a step.
        rectify: Clip the perturbed feature at 0.
        mu: The mean to perturb, where z is only a part of the batch; else that of z.
        average: Replaces gradients, in place, by their means over all parts of the batch.
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
    """Return the feature with perturbed statistics, clipped at 0 if the feature itself is rectified."""
    z_adv = perturb(z, d_mu, d_sigma, mu)
    # Unlike relu(), clamp() has a gradient at 0, where all zeros of a rectified feature are while d = 0.
    return z_adv.clamp(min=0) if rectify else z_adv
