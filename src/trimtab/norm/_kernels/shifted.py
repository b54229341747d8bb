"""Normalize one group under a constant shift: APART's second pass, in half the steps of `groups`.

    y = s (x - (1 + delta_mu) mean) + beta,    s = gamma (1 + delta_sigma) / sigma

With h = (x - mean) / sigma, r = mean / sigma, and q = sum h dy - delta_mu r sum dy,

    d gamma = (1 + delta_sigma) q,    d beta = sum dy,
    dx = s (dy - ((1 + delta_mu) sum dy + h q) / n),

where the delta_mu of dx is zero if what it multiplies is held constant. A shift that is itself
differentiated, and second derivatives, are left to `groups`, which defines what is computed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trimtab.norm._kernels.groups import NO_STD, Groups, gradients, plain, separate_nodes
from trimtab.norm._kernels.moments import moments, tilted_line
from trimtab.norm.setting import Moments, Shift
from trimtab.types import BadInput


def is_constant(shift: Shift) -> bool:
    """Return whether `normalize_shifted` applies: the shift needs no gradient, and nothing is compiled."""
    needs_grad = any(delta is not None and delta.requires_grad for delta in (shift.mu, shift.sigma))
    return not needs_grad and not torch.compiler.is_compiling()


def normalize_shifted(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, shift: Shift, eps: float
) -> tuple[Tensor, list[Moments]]:
    """Normalize x (N, C, ...) as one group; also return its (1, C) moments, as constants."""
    with torch.no_grad():
        seen = moments(x)
    if seen.n == 1:
        raise BadInput(NO_STD)
    y: Tensor = _Shifted.apply(seen, shift, eps, x, weight, bias)
    return y, [Moments(seen.mean[None], seen.var[None], seen.n)]


class _Shifted(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        seen: Moments,
        shift: Shift,
        eps: float,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
    ) -> Tensor:
        mean, wide = seen.mean, seen.mean.dtype
        rate = (seen.var + eps).rsqrt()
        scale = rate if weight is None else rate * weight.to(wide)
        if shift.sigma is not None:
            scale = torch.addcmul(scale, scale, shift.sigma.to(wide))
        center = mean if shift.mu is None else torch.addcmul(mean, mean, shift.mu.to(wide))
        offset = -scale * center if bias is None else torch.addcmul(bias.to(wide), scale, center, value=-1)
        ctx.save_for_backward(x, weight, bias)
        ctx.taken = seen, shift, eps, rate, scale
        y = torch.empty_like(x, dtype=wide)
        return torch.addcmul(_over(offset, x), x, _over(scale, x), out=y).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (dy,), (x, weight, bias) = grads, ctx.saved_tensors
        seen, shift, eps, rate, scale = ctx.taken
        if torch.is_grad_enabled():  # second derivatives
            weight, bias = separate_nodes([weight, bias])
            coef = tilted_line(seen.mean, weight, bias, shift)
            y = plain(x, Groups([len(x)], 1), [coef], eps)
            return None, None, None, *gradients([y], [x, weight, bias], [dy], ctx.needs_input_grad[3:], True)
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad[3:]
        # The stock layer's kernel; without a weight a GPU returns no sums.
        _, dot, total = torch.ops.aten.native_batch_norm_backward(
            dy, x, torch.ones_like(rate), None, None, seen.mean, rate, True, 0.0, [False, True, True]
        )
        inward, mu = dot, None if shift.mu is None else shift.mu.to(rate.dtype)
        if mu is not None:
            inward = torch.addcmul(dot, mu * seen.mean * rate, total, value=-1)
        d_weight = None
        if needs_weight:
            sigma = shift.sigma
            d_weight = inward if sigma is None else torch.addcmul(inward, inward, sigma.to(rate.dtype))
        dx = None
        if needs_x:
            factor, outward = scale * (-1 / seen.n), total
            if mu is not None and shift.through:
                outward = torch.addcmul(total, total, mu)
            elif mu is not None:
                inward = dot
            x_coef, constant = factor * rate * inward, factor * outward
            constant = torch.addcmul(constant, x_coef, seen.mean, value=-1)
            dx = torch.empty_like(x, dtype=rate.dtype)
            torch.addcmul(_over(constant, x), x, _over(x_coef, x), out=dx)
            dx = dx.addcmul_(dy, _over(scale, x)).to(x.dtype)
        return None, None, None, dx, d_weight, total if needs_bias else None


def _over(vector: Tensor, x: Tensor) -> Tensor:
    return vector.view(1, -1, *[1] * (x.dim() - 2))
