"""Normalize by blends, by statistics that parts or processes share, and by user-defined estimators.

Where each group is normalized by its own mean and variance only, `groups` is faster. In general the
output of a group of images is  scale (x - center) + offset  with one value per channel, and scale and
offset follow from the moments of all groups by arithmetic on such vectors.
Autograd differentiates that arithmetic; the full-size steps are few and fused, as in the stock layer:
forward the moments and the map, backward the two sums that the stock kernel takes, and

    dx = scale dy + (d_mean + 2 d_var (x - mean)) / n.

`_plain` is the same in ordinary operations. It defines what is computed, and serves second derivatives,
`torch.compile` (which fuses it) and user-defined estimators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trimtab.norm._kernels.groups import (
    Groups,
    affine,
    grad_input,
    gradients,
    over,
    separate_nodes,
    sums_over,
    take_moments,
)
from trimtab.norm._kernels.moments import moments
from trimtab.norm.setting import Moments

Vectors = Sequence[Tensor | None]
"""Gains, biases and shifts: all that scale and offset depend on other than the moments."""
Estimator = Callable[[Tensor], Moments]
Coefficients = Callable[[Sequence[Moments], Vectors], tuple[list[Tensor], list[Tensor]]]


class Partition(NamedTuple):
    """How a batch is split, and how its parts are normalized."""

    cut: Groups
    coefficients: Coefficients
    """(groups, C) moments of each part -> (groups, C) scales and offsets of each, its mean the center."""


def normalize_parts(
    x: Tensor, partition: Partition, vectors: Vectors, estimator: Estimator | None
) -> tuple[Tensor, list[Moments]]:
    """Normalize x (N, C, ...) by a split; also return the (groups, C) moments of each part, as constants."""
    if estimator is not None or torch.compiler.is_compiling():
        return _plain(x, partition, vectors, estimator or moments)
    with torch.no_grad():
        seen = take_moments(x, partition.cut, moments)
    y: Tensor = _Fused.apply(partition, seen, x, *vectors)
    return y, seen


def _plain(
    x: Tensor, partition: Partition, vectors: Vectors, estimator: Estimator
) -> tuple[Tensor, list[Moments]]:
    seen = take_moments(x, partition.cut, estimator)
    fixed = [Moments(m.mean.detach(), m.var.detach(), m.n) for m in seen]
    scales, offsets = partition.coefficients(seen, vectors)
    ys = [
        (partition.cut.within(part) - over(m.mean, part)) * over(scale, part) + over(offset, part)
        for part, m, scale, offset in partition.cut.parts(x, fixed, scales, offsets)
    ]
    return torch.cat([y.flatten(0, 1) for y in ys]).to(x.dtype), fixed


class _Fused(torch.autograd.Function):
    """`_plain` with its full-size steps fused, and the vector arithmetic as a small graph inside."""

    @staticmethod
    def forward(
        ctx: Any, partition: Partition, seen: list[Moments], x: Tensor, *vectors: Tensor | None
    ) -> Tensor:
        with torch.set_grad_enabled(any(ctx.needs_input_grad)):
            batch = [Moments(_leaf(m.mean, True), _leaf(m.var, True), m.n) for m in seen]
            leaves = [None if v is None else _leaf(v, v.requires_grad) for v in vectors]
            scales, offsets = partition.coefficients(batch, leaves)
        ctx.save_for_backward(x, *vectors)
        ctx.partition, ctx.batch, ctx.leaves, ctx.scales, ctx.offsets = (
            partition,
            batch,
            leaves,
            scales,
            offsets,
        )

        y = torch.empty_like(x, dtype=scales[0].dtype)
        with torch.no_grad():
            for part, out, m, scale, offset in partition.cut.parts(x, y, seen, scales, offsets):
                affine(part, scale, offset - scale * m.mean, partition.cut, out)
        return y.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, *vectors = ctx.saved_tensors
        needs = ctx.needs_input_grad[2:]
        if torch.is_grad_enabled():  # second derivatives
            vectors = separate_nodes(vectors)
            y, _ = _plain(x, ctx.partition, vectors, moments)
            d_inputs = gradients([y], [x, *vectors], [grads[0]], needs, create_graph=True)
            return None, None, *d_inputs
        return None, None, *_fused_backward(ctx, x, grads[0], needs)


def _fused_backward(ctx: Any, x: Tensor, dy: Tensor, needs: Sequence[bool]) -> list[Tensor | None]:
    cut: Groups = ctx.partition.cut
    sums = [
        sums_over(part, grad, m.mean, torch.ones_like(m.mean), cut)
        for part, grad, m in cut.parts(x, dy, ctx.batch)
    ]
    d_scales, d_offsets = zip(*sums, strict=True)
    leaves = [value for m in ctx.batch for value in (m.mean, m.var)]
    d_leaves = gradients(
        [*ctx.scales, *ctx.offsets],
        [*leaves, *ctx.leaves],
        [*d_scales, *d_offsets],
        [needs[0]] * len(leaves) + [*needs[1:]],
    )
    d_moments, d_vectors = d_leaves[: len(leaves)], d_leaves[len(leaves) :]
    if not needs[0]:
        return [None, *d_vectors]

    dx = torch.empty_like(x, dtype=ctx.scales[0].dtype)
    rows = cut.parts(x, dy, dx, ctx.batch, ctx.scales, d_moments[::2], d_moments[1::2])
    for part, grad, out, m, scale, d_mean, d_var in rows:
        x_coef = 2 * d_var / m.n
        grad_input(part, grad, scale, x_coef, d_mean / m.n, m.mean, cut, out)
    return [dx.to(x.dtype), *d_vectors]


def _leaf(value: Tensor, differentiable: bool) -> Tensor:
    return value.detach().requires_grad_(differentiable)
