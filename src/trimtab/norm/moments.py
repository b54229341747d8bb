"""The arithmetic of batch statistics: take them, pool them, blend them, normalise with them.

What differs from stock batch normalisation is always expressed in vectors of one value per channel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from trimtab.norm.setting import Moments, Shift
from trimtab.types import BadInput


def widest(device: torch.device) -> torch.dtype:
    """What sums are taken in: float64, where there is one. Apple's GPUs have none."""
    return torch.float32 if device.type == "mps" else torch.float64


def moments(x: Tensor) -> Moments:
    """Mean and biased variance of each channel of x (N, C, ...), in float32 or wider."""
    wide = x if x.dtype == torch.float64 else x.float()
    n = x.numel() // x.shape[1]
    differentiable = torch.is_grad_enabled() and x.requires_grad
    if x.device.type == "cpu" and not differentiable and not torch.compiler.is_compiling():
        # The stock layer's own kernel: ten times as fast as var_mean here, but without a derivative.
        return Moments(*torch.batch_norm_update_stats(wide, None, None, 0.0), n)
    axes = [axis for axis in range(x.dim()) if axis != 1]
    var, mean = torch.var_mean(wide, axes, correction=0)
    return Moments(mean, var, n)


def robust_moments(x: Tensor) -> Moments:
    """Median and (1.4826 median absolute deviation)^2 of each channel: a few hostile images cannot move them.

    For a Gaussian channel they agree with mean and variance. After a ReLU more than half of a channel may
    be zero; where its MAD vanishes, the mean absolute deviation about the median stands in.
    """
    wide = (x if x.dtype == torch.float64 else x.float()).transpose(0, 1).flatten(1)  # (C, N * positions)
    median = wide.median(1).values
    off = (wide - median[:, None]).abs()
    deviation = 1.4826 * off.median(1).values
    deviation = torch.where(deviation > 0, deviation, 1.2533 * off.mean(1))
    return Moments(median, deviation**2, wide.shape[1])


def keep(running: Tensor) -> Tensor:
    """Running statistics as they are now: a backward pass needs what normalised, and any pass may learn."""
    return _opaque_clone(running) if torch.compiler.is_compiling() else running.clone()


@torch.library.custom_op("trimtab::clone", mutates_args=())
def _opaque_clone(value: Tensor) -> Tensor:
    """A copy that torch.compile does not look into.

    It would repeat a plain one in the backward pass, after the statistics have learnt, and give silently
    wrong gradients (pytorch/pytorch#197039).
    """
    return value.clone()


@_opaque_clone.register_fake
def _(value: Tensor) -> Tensor:
    return torch.empty_like(value)


def pool(parts: Sequence[Moments]) -> Moments:
    """The moments of the union, from the moments of its parts."""
    if len(parts) == 1:
        return parts[0]
    n = sum(part.n for part in parts)
    means, vars = torch.stack([part.mean for part in parts]), torch.stack([part.var for part in parts])
    share = means.new_tensor([part.n / n for part in parts]).view(-1, *[1] * (means.dim() - 1))
    mean = (share * means).sum(0)
    return Moments(mean, (share * (vars + (means - mean) ** 2)).sum(0), n)


def blend(
    batch: Moments, mean: Tensor, var: Tensor, rho: float, of: str, eps: float
) -> tuple[Tensor, Tensor]:
    """rho of the batch, 1 - rho of the running statistics: of the mean, and of what `blend_of` says."""
    if rho == 1:
        mean, var = batch.mean, batch.var  # nothing of the running ones, which may be NaN
    mixed_mean = rho * batch.mean + (1 - rho) * mean
    if of == "var":
        return mixed_mean, rho * batch.var + (1 - rho) * var
    if of == "pooled":
        between = rho * (1 - rho) * (batch.mean - mean) ** 2
        return mixed_mean, rho * batch.var + (1 - rho) * var + between
    deviation = rho * (batch.var + eps).sqrt() + (1 - rho) * (var + eps).sqrt()
    return mixed_mean, deviation**2 - eps


def normalise_by_batch(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, want_moments: bool
) -> tuple[Tensor, list[Moments]]:
    """Stock training-mode batch norm; its batch moments, (1, C), come for free when wanted."""
    n = x.numel() // x.shape[1]
    if n == 1:
        raise BadInput('one value per channel has no deviation: give a larger batch, or use source="running"')
    if not want_moments:
        return F.batch_norm(x, None, None, weight, bias, True, 0.0, eps), []
    dtype = x.dtype if x.dtype == torch.float64 else torch.float32
    mean = torch.zeros(x.shape[1], dtype=dtype, device=x.device)
    var = torch.zeros_like(mean)
    gamma, beta = (None if half is None else half.to(dtype) for half in (weight, bias))
    # With momentum 1 the "running" buffers that the kernel writes are the batch's own moments.
    y = F.batch_norm(x, mean, var, gamma, beta, True, 1.0, eps)
    return y, [Moments(mean[None], var[None] * ((n - 1) / n), n)]


def normalise_by(
    x: Tensor,
    mean: Tensor,
    var: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    shift: Shift | None,
    eps: float,
) -> Tensor:
    """gamma (1 + delta_sigma) (x - (1 + delta_mu) mu) / sigma + beta, for a constant mu and sigma."""
    if shift is not None:
        weight, bias = shifted(mean, (var + eps).sqrt(), weight, bias, shift)
    return F.batch_norm(x, mean, var, weight, bias, False, 0.0, eps)


def scale_and_offset(
    centre: Tensor,
    mean: Tensor,
    var: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    shift: Shift | None,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """The same as a map about any centre: scale (x - centre) + offset. Differentiable in mu and sigma."""
    sigma = (var + eps).sqrt()
    gamma, beta = shifted(mean, sigma, weight, bias, shift)
    scale = gamma / sigma
    return scale, beta + scale * (centre - mean)


class Line(NamedTuple):
    """What a layer makes of h = (x - mean) / sigma and r = mean / sigma: gamma h + beta + tilt r."""

    gamma: Tensor
    beta: Tensor
    tilt: Tensor | None
    """None is zero: nothing shifts the mean."""
    through: bool
    """Whether r has a gradient."""


def line(like: Tensor, weight: Tensor | None, bias: Tensor | None, shift: Shift | None) -> Line:
    """A layer's line, as if its statistics were shifted."""
    gamma = torch.ones_like(like) if weight is None else weight.to(like.dtype)
    beta = torch.zeros_like(like) if bias is None else bias.to(like.dtype)
    if shift is None:
        return Line(gamma, beta, None, False)
    if shift.sigma is not None:
        gamma = gamma * (1 + shift.sigma.to(like.dtype))
    tilt = None if shift.mu is None else -gamma * shift.mu.to(like.dtype)
    return Line(gamma, beta, tilt, shift.through)


def shifted(
    mean: Tensor, sigma: Tensor, weight: Tensor | None, bias: Tensor | None, shift: Shift | None
) -> tuple[Tensor, Tensor]:
    """gamma and beta that make a layer behave as if its statistics were shifted."""
    gamma, beta, tilt, through = line(mean, weight, bias, shift)
    if tilt is not None:
        ratio = mean / sigma
        beta = beta + tilt * (ratio if through else ratio.detach())
    return gamma, beta


def perturb(z: Tensor, d_mu: Tensor, d_sigma: Tensor, mu: Tensor | None = None) -> Tensor:
    """AdvBN's perturbation of a feature z (N, C, ...): (1 + d_sigma)(z - mu) + (1 + d_mu) mu.

    mu is the mean of each channel over the batch and all positions; d_mu and d_sigma have one value per
    channel, shared by the whole batch. The mean becomes (1 + d_mu) mu, the deviation |1 + d_sigma| sigma.
    Give `mu` where z is a part of the batch only.
    """
    shape = [1, -1] + [1] * (z.dim() - 2)
    if mu is None:
        mu = z.mean([axis for axis in range(z.dim()) if axis != 1])
    mu = mu.view(shape)
    return (1 + d_sigma.view(shape)) * (z - mu) + (1 + d_mu.view(shape)) * mu
