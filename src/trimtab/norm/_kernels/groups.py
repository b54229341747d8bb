"""Normalize each group of images by its moments: grouped, routed and shifted passes.

With one value per channel of gamma, beta and tilt, and h and r of each group,

    y = gamma h + beta + tilt r,    h = (x - mean) / sigma,    r = mean / sigma

is stock batch normalization where the tilt is zero, and APART's shifted one where gamma stands for
gamma (1 + delta_sigma) and the tilt for - gamma (1 + delta_sigma) delta_mu. The full-size steps are those
of the stock layer: forward the moments and one map, backward the sums that are the gradients of gamma and
beta, and one map more,

    dx = gamma / sigma (dy - (sum dy + h sum h dy) / n) + tilt sum dy (1 - r h) / (sigma n).

The last term is that of r, which a shift may hold constant. `plain` is the same in ordinary operations: it
defines what is computed, and serves second derivatives and `torch.compile` (which fuses it).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trimtab.norm._kernels.moments import TiltedLine, moments, tilted_line
from trimtab.norm.setting import Moments, Shift
from trimtab.types import BadInput

Affine = tuple[Tensor | None, Tensor | None]

NO_STD = 'one value has no std: use larger groups, or source="running"'


class Groups(NamedTuple):
    """How a batch is split: into parts, and each part into the same number of equal groups."""

    counts: list[int]
    """Images in each part, in order."""
    each: int
    """Groups of a part."""

    def parts(self, *columns: Tensor | Sequence[Any]) -> Any:
        """Iterate over the parts: batches are split, lists taken as they are."""
        return zip(*[self.of_parts(c) if isinstance(c, Tensor) else c for c in columns], strict=True)

    def of_parts(self, x: Tensor) -> Sequence[Tensor]:
        """Split a batch into its parts."""
        return (x,) if len(self.counts) == 1 else x.split(self.counts)

    def within(self, part: Tensor) -> Tensor:
        """View a part (N, C, ...) as (groups, images, C, ...)."""
        return part.unflatten(0, (self.each, -1))


def normalize_groups(
    x: Tensor, cut: Groups, affine_of: Sequence[Affine], shift: Shift | None, eps: float
) -> tuple[Tensor, list[Moments]]:
    """Normalize each group of x (N, C, ...); also return the (groups, C) moments of each part, as constants.

    `affine_of` holds the weight and bias of each part's branch.
    """
    with torch.no_grad():
        seen = take_moments(x, cut, moments)
    if 1 in [m.n for m in seen]:
        raise BadInput(NO_STD)
    lines = [tilted_line(m.mean[0], *pair, shift) for m, pair in zip(seen, affine_of, strict=True)]
    if torch.compiler.is_compiling():
        return plain(x, cut, lines, eps), seen
    y: Tensor = _Grouped.apply(cut, seen, eps, x, *[value for coef in lines for value in coef])
    return y, seen


def take_moments(x: Tensor, cut: Groups, estimator: Callable[[Tensor], Moments]) -> list[Moments]:
    """Return the moments of each part's groups, stacked to (groups, C)."""
    batch = []
    for part in cut.of_parts(x):
        each = [estimator(group) for group in part.chunk(cut.each)]
        mean, var = torch.stack([m.mean for m in each]), torch.stack([m.var for m in each])
        batch.append(Moments(mean, var, each[0].n))
    return batch


def over(vector: Tensor, x: Tensor) -> Tensor:
    """View (groups, C) so that it broadcasts over grouped images (groups, images, C, ...)."""
    return vector.view(len(vector), 1, -1, *[1] * (x.dim() - 2))


def affine(part: Tensor, scale: Tensor, offset: Tensor, cut: Groups, out: Tensor) -> None:
    """Compute out = scale part + offset, with (groups, C) vectors."""
    torch.addcmul(over(offset, part), cut.within(part), over(scale, part), out=cut.within(out))


def plain(x: Tensor, cut: Groups, lines: Sequence[TiltedLine], eps: float) -> Tensor:
    """Normalize in ordinary operations: the definition of what the fused passes compute."""
    ys = []
    for part, coef, m in cut.parts(x, lines, take_moments(x, cut, moments)):
        sigma = (m.var + eps).sqrt()
        ratio = m.mean / sigma if coef.through else (m.mean / sigma).detach()
        offset = coef.beta if coef.tilt is None else coef.beta + coef.tilt * ratio
        scale = coef.gamma / sigma
        y = over(scale, part) * (cut.within(part) - over(m.mean, part)) + over(offset.expand_as(scale), part)
        ys.append(y.flatten(0, 1))
    return torch.cat(ys).to(x.dtype)


class _Grouped(torch.autograd.Function):
    """`plain` with its full-size steps fused."""

    @staticmethod
    def forward(ctx: Any, cut: Groups, seen: list[Moments], eps: float, x: Tensor, *flat: Any) -> Tensor:
        ctx.cut, ctx.eps, ctx.taken = cut, eps, []
        ctx.through = flat[3::4]
        ctx.save_for_backward(x, *[value for value in flat if not isinstance(value, bool)])
        y = torch.empty_like(x, dtype=seen[0].mean.dtype)
        for part, out, coef, m in cut.parts(
            x, y, list(map(TiltedLine, *[flat[k::4] for k in range(4)])), seen
        ):
            rate = (m.var + eps).rsqrt()
            ratio, scale = m.mean * rate, coef.gamma * rate
            lean = coef.gamma if coef.tilt is None else coef.gamma - coef.tilt
            affine(part, scale, coef.beta - lean * ratio, cut, out)
            ctx.taken.append((m, rate, ratio, scale))
        return y.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, *vectors = ctx.saved_tensors
        vectors = separate_nodes(vectors) if torch.is_grad_enabled() else vectors
        lines = list(map(TiltedLine, *[vectors[k::3] for k in range(3)], ctx.through))
        if torch.is_grad_enabled():  # second derivatives
            y = plain(x, ctx.cut, lines, ctx.eps)
            inputs = [x, *(value for coef in lines for value in coef)]
            d_inputs = gradients([y], inputs, [grads[0]], ctx.needs_input_grad[3:], create_graph=True)
            return None, None, None, *d_inputs
        return None, None, None, *_fused_backward(ctx, x, lines, grads[0])


def _fused_backward(ctx: Any, x: Tensor, lines: list[TiltedLine], dy: Tensor) -> list[Tensor | None]:
    cut: Groups = ctx.cut
    dx = torch.empty_like(x, dtype=ctx.taken[0][-1].dtype) if ctx.needs_input_grad[3] else None
    d_vectors: list[Tensor | None] = []
    rows = cut.parts(x, dy, x if dx is None else dx, lines, ctx.taken)
    for part, grad, out, coef, (m, rate, ratio, scale) in rows:
        dot, total = sums_over(part, grad, m.mean, rate, cut)
        d_tilt = None if coef.tilt is None else (total * ratio).sum(0)
        d_vectors += [dot.sum(0), total.sum(0), d_tilt, None]
        if dx is None:
            continue
        # dx = scale dy - ((gamma - tilt) sum dy + h (gamma sum h dy + tilt r sum dy)) / (sigma n)
        inward, constant = coef.gamma * dot, coef.gamma * total
        if coef.tilt is not None and coef.through:
            tilted = coef.tilt * total
            inward, constant = torch.addcmul(inward, tilted, ratio), constant - tilted
        factor = rate / -m.n
        x_coef = inward * (factor * rate)
        grad_input(part, grad, scale, x_coef, constant * factor, m.mean, cut, out)
    return [None if dx is None else dx.to(x.dtype), *d_vectors]


def sums_over(x: Tensor, dy: Tensor, mean: Tensor, rate: Tensor, cut: Groups) -> tuple[Tensor, Tensor]:
    """Return sum dy (x - mean) rate and sum dy, per group and channel, by the stock layer's kernel."""
    ones = torch.ones_like(mean[0])  # a weight, without which a GPU returns no sums
    each = [
        torch.ops.aten.native_batch_norm_backward(
            grad, group, ones, None, None, center, scale, True, 0.0, [False, True, True]
        )
        for grad, group, center, scale in zip(dy.chunk(cut.each), x.chunk(cut.each), mean, rate, strict=True)
    ]
    return torch.stack([dot for _, dot, _ in each]), torch.stack([total for _, _, total in each])


def grad_input(
    part: Tensor,
    grad: Tensor,
    scale: Tensor,
    x_coef: Tensor,
    constant: Tensor,
    mean: Tensor,
    cut: Groups,
    out: Tensor,
) -> None:
    """Compute out = scale grad + x_coef (part - mean) + constant, with (groups, C) vectors."""
    affine(part, x_coef, constant - x_coef * mean, cut, out)
    cut.within(out).addcmul_(cut.within(grad), over(scale, part))


def separate_nodes(vectors: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Give each vector a graph node: parts may share a vector, and each needs its part of the gradient."""
    return [None if v is None else v.view_as(v) for v in vectors]


def gradients(
    of: list[Tensor],
    wrt: list[Any],
    grad_outputs: list[Tensor],
    needs: Sequence[bool],
    create_graph: bool = False,
) -> list[Any]:
    """Return gradients with respect to the inputs that need one, None for the others."""
    inputs = [value for value, need in zip(wrt, needs, strict=True) if need]
    each = iter(torch.autograd.grad(of, inputs, grad_outputs, True, create_graph, allow_unused=True))
    return [next(each) if need else None for need in needs]
