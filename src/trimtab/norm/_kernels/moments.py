"""Take batch moments, pool them, and normalize with them.

What differs from stock batch normalization is always expressed in vectors of one value per channel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from trimtab.norm.moments import widest
from trimtab.norm.setting import Moments, Shift
from trimtab.types import BadInput


def moments(x: Tensor) -> Moments:
    """Return mean and biased variance of each channel of x (N, C, ...), in float32 or wider."""
    wide = x if x.dtype == torch.float64 else x.float()
    n = x.numel() // x.shape[1]
    differentiable = torch.is_grad_enabled() and x.requires_grad
    if x.device.type == "cpu" and not differentiable and not torch.compiler.is_compiling():
        # The stock layer's own kernel: ten times as fast as var_mean here, but without a derivative.
        return Moments(*torch.batch_norm_update_stats(wide, None, None, 0.0), n)
    axes = [axis for axis in range(x.dim()) if axis != 1]
    var, mean = torch.var_mean(wide, axes, correction=0)
    return Moments(mean, var, n)


def exact_moments(x: Tensor) -> Moments:
    """Return mean and biased variance of each channel, pooled over images in the widest type.

    The stock kernel sums all elements of a channels-last batch in float32, which loses up to four digits.
    """
    if x.dim() < 3 or x.dtype == torch.float64:
        return moments(x.to(widest(x.device)))
    n, channels = x.shape[:2]
    each = moments(x.reshape(1, n * channels, -1))  # of every image's channels: few elements to a sum
    means, vars = (part.to(widest(x.device)).view(n, channels) for part in each[:2])
    var, mean = torch.var_mean(means, 0, correction=0)
    return Moments(mean, vars.mean(0) + var, n * each.n)


def keep(running: Tensor) -> Tensor:
    """Copy running statistics: the backward pass needs those that normalized, and they may be updated."""
    return _opaque_clone(running) if torch.compiler.is_compiling() else running.clone()


@torch.library.custom_op("trimtab::clone", mutates_args=())
def _opaque_clone(value: Tensor) -> Tensor:
    """Copy a tensor in an operation that torch.compile does not look into.

    It would repeat a plain copy in the backward pass, after the statistics were updated, and return wrong
    gradients silently (pytorch/pytorch#197039).
    """
    return value.clone()


@_opaque_clone.register_fake
def _(value: Tensor) -> Tensor:
    return torch.empty_like(value)


def pool(parts: Sequence[Moments]) -> Moments:
    """Return the moments of a union from the moments of its parts."""
    if len(parts) == 1:
        return parts[0]
    n = sum(part.n for part in parts)
    means, vars = torch.stack([part.mean for part in parts]), torch.stack([part.var for part in parts])
    fraction = means.new_tensor([part.n / n for part in parts]).view(-1, *[1] * (means.dim() - 1))
    mean = (fraction * means).sum(0)
    return Moments(mean, (fraction * (vars + (means - mean) ** 2)).sum(0), n)


def normalize_by_batch(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, want_moments: bool
) -> tuple[Tensor, list[Moments]]:
    """Apply stock training-mode batch norm; also return its (1, C) batch moments, if `want_moments`."""
    n = x.numel() // x.shape[1]
    if n == 1:
        raise BadInput('one value per channel has no std: give a larger batch, or use source="running"')
    if not want_moments:
        return F.batch_norm(x, None, None, weight, bias, True, 0.0, eps), []
    dtype = x.dtype if x.dtype == torch.float64 else torch.float32
    mean = torch.zeros(x.shape[1], dtype=dtype, device=x.device)
    var = torch.zeros_like(mean)
    gamma, beta = [None if half is None else half.to(dtype) for half in (weight, bias)]
    # With momentum 1 the "running" buffers that the kernel writes are the batch's own moments.
    y = F.batch_norm(x, mean, var, gamma, beta, True, 1.0, eps)
    return y, [Moments(mean[None], var[None] * ((n - 1) / n), n)]


def normalize_by(
    x: Tensor,
    mean: Tensor,
    var: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    shift: Shift | None,
    eps: float,
) -> Tensor:
    """Compute gamma (1 + delta_sigma) (x - (1 + delta_mu) mu) / sigma + beta for constant mu and sigma."""
    if shift is not None:
        weight, bias = shifted(mean, (var + eps).sqrt(), weight, bias, shift)
    return F.batch_norm(x, mean, var, weight, bias, False, 0.0, eps)


def scale_and_offset(
    center: Tensor,
    mean: Tensor,
    var: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    shift: Shift | None,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """Return this map as scale (x - center) + offset for any center, differentiable in mu and sigma."""
    sigma = (var + eps).sqrt()
    gamma, beta = shifted(mean, sigma, weight, bias, shift)
    scale = gamma / sigma
    return scale, beta + scale * (center - mean)


class TiltedLine(NamedTuple):
    """A layer's output gamma h + beta + tilt r, where h = (x - mean) / sigma and r = mean / sigma."""

    gamma: Tensor
    beta: Tensor
    tilt: Tensor | None
    """None is zero: the mean is not shifted."""
    through: bool
    """Whether r has a gradient."""


def tilted_line(like: Tensor, weight: Tensor | None, bias: Tensor | None, shift: Shift | None) -> TiltedLine:
    """Return the coefficients of a layer whose statistics are shifted."""
    gamma = torch.ones_like(like) if weight is None else weight.to(like.dtype)
    beta = torch.zeros_like(like) if bias is None else bias.to(like.dtype)
    if shift is None:
        return TiltedLine(gamma, beta, None, False)
    if shift.sigma is not None:
        gamma = gamma * (1 + shift.sigma.to(like.dtype))
    tilt = None if shift.mu is None else -gamma * shift.mu.to(like.dtype)
    return TiltedLine(gamma, beta, tilt, shift.through)


def shifted(
    mean: Tensor, sigma: Tensor, weight: Tensor | None, bias: Tensor | None, shift: Shift | None
) -> tuple[Tensor, Tensor]:
    """Return the gamma and beta with which a layer computes what shifted statistics would."""
    gamma, beta, tilt, through = tilted_line(mean, weight, bias, shift)
    if tilt is not None:
        ratio = mean / sigma
        beta = beta + tilt * (ratio if through else ratio.detach())
    return gamma, beta
