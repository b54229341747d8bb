"""The forward pass of a steered layer whose setting is not neutral.

    route the batch to its branches -> group within each part -> take moments -> normalize -> update

Parts whose branches share statistics are estimated together. What normalizes is read before anything is
updated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from trimtab.norm._kernels.groups import NO_STD, Groups, normalize_groups, take_moments
from trimtab.norm._kernels.moments import (
    keep,
    moments,
    normalize_by,
    normalize_by_batch,
    pool,
    scale_and_offset,
)
from trimtab.norm._kernels.parts import Coefficients, Partition, Vectors, normalize_parts
from trimtab.norm._kernels.shifted import is_constant, normalize_shifted
from trimtab.norm.moments import blend
from trimtab.norm.setting import MAIN, Moments, Shift
from trimtab.norm.synchronize import local_groups, pool_processes
from trimtab.types import BadInput

if TYPE_CHECKING:
    from trimtab.norm.layer import Holder, Steered


class Routed(NamedTuple):
    """The part of a batch that one branch normalizes."""

    images: int
    """Number of images."""
    affine: Holder
    """Holds gamma and beta."""
    statistics: Holder
    """Holds the running statistics."""


def steered_pass(layer: Steered, x: Tensor) -> Tensor:
    """Normalize x (N, C, ...) as the layer's setting says, and update its running statistics."""
    setting, source, update = layer.setting, layer.source_now(), layer.update_now()
    if (source != "batch" or update is not False) and not layer.keeps_statistics:
        raise BadInput('this layer keeps no running statistics: use source="batch" and update=False')
    parts = _route(layer, len(x))
    cut = Groups([part.images for part in parts], _groups_per_part(layer, parts))
    needs_moments = update is not False or setting.observe is not None
    if source == "running":
        y, batch = _normalize_by_running(layer, x, parts, cut, needs_moments)
    elif source == "blend" or not _independent(layer, parts):
        partition = Partition(cut, _coefficients(layer, parts, source))
        y, batch = normalize_parts(x, partition, _vectors(layer, parts), setting.estimator)
    else:
        y, batch = _normalize_by_groups(layer, x, parts, cut, needs_moments)

    if update is not False:
        _update_running(layer, parts, batch, update)
    if setting.observe is not None:
        setting.observe(_union(layer, batch))
    return y


def _normalize_by_running(
    layer: Steered, x: Tensor, parts: list[Routed], cut: Groups, needs_moments: bool
) -> tuple[Tensor, list[Moments]]:
    batch: list[Moments] = []
    if needs_moments:
        with torch.no_grad():
            batch = take_moments(x, cut, layer.setting.estimator or moments)
    ys = []
    for part, images in zip(parts, cut.of_parts(x), strict=True):
        mean, var = keep(part.statistics.running_mean), keep(part.statistics.running_var)
        affine = part.affine
        ys.append(normalize_by(images, mean, var, affine.weight, affine.bias, layer.setting.shift, layer.eps))
    return ys[0] if len(ys) == 1 else torch.cat(ys), batch


def _normalize_by_groups(
    layer: Steered, x: Tensor, parts: list[Routed], cut: Groups, needs_moments: bool
) -> tuple[Tensor, list[Moments]]:
    """Normalize each group by its own moments, with the fastest kernel that can."""
    shift, eps = layer.setting.shift, layer.eps
    affine = [(part.affine.weight, part.affine.bias) for part in parts]
    one_group = len(parts) == cut.each == 1
    if one_group and shift is None:
        return normalize_by_batch(x, *affine[0], eps, needs_moments)
    if one_group and shift and is_constant(shift):
        return normalize_shifted(x, *affine[0], shift, eps)
    return normalize_groups(x, cut, affine, shift, eps)


def _independent(layer: Steered, parts: list[Routed]) -> bool:
    """Whether each group is normalized by its own mean and variance only."""
    together = len(_by_statistics(parts)) < len(parts) or layer.pools_processes()
    return not together and layer.setting.estimator is None


def _vectors(layer: Steered, parts: list[Routed]) -> list[Tensor | None]:
    shift = layer.setting.shift or Shift()
    affine = [half for part in parts for half in (part.affine.weight, part.affine.bias)]
    return [shift.mu, shift.sigma, *affine]


def _coefficients(layer: Steered, parts: list[Routed], source: str) -> Coefficients:
    """Scale and offset of each part as a function of its moments and of `_vectors`."""
    setting, eps = layer.setting, layer.eps
    together = _by_statistics(parts)
    running = {}
    if source == "blend":
        running = {holder: (keep(holder.running_mean), keep(holder.running_var)) for holder, _ in together}
    pooled = layer.pools_processes() and (setting.groups or 1) == 1  # else each group lives on one process

    def coefficients(batch: Sequence[Moments], vectors: Vectors) -> tuple[list[Tensor], list[Tensor]]:
        shift = setting.shift and replace(setting.shift, mu=vectors[0], sigma=vectors[1])
        of_part = {}
        for statistics, members in together:
            shared = pool([batch[m] for m in members])
            shared = pool_processes(shared, layer.processes) if pooled else shared
            mean, var = shared.mean, shared.var
            if source == "blend":
                rho, of = setting.rho or 0.0, setting.blend_of or "std"
                mean, var = blend(shared, *running[statistics], rho, of, eps)
            elif shared.n == 1:
                raise BadInput(NO_STD)
            for m in members:
                weight, bias = vectors[2 + 2 * m], vectors[3 + 2 * m]
                center = batch[m].mean.detach()
                of_part[m] = scale_and_offset(center, mean, var, weight, bias, shift, eps)
        scales, offsets = zip(*(of_part[m] for m in range(len(parts))), strict=True)
        return list(scales), list(offsets)

    return coefficients


# ---- route the batch to branches --------------------------------------------------------------------


def _route(layer: Steered, images: int) -> list[Routed]:
    """Return the parts that the layer's setting splits a batch of `images` into, in order."""
    branch = layer.setting.branch or MAIN
    counts = ((branch, images),) if isinstance(branch, str) else branch
    each = [count for _, count in counts]
    if sum(each) != images:
        raise BadInput(f"the route {' + '.join(map(str, each))} does not add up to the batch of {images}")
    return [Routed(count, layer.affine_holder(name), layer.statistics_holder(name)) for name, count in counts]


def _groups_per_part(layer: Steered, parts: list[Routed]) -> int:
    """Return the number of groups in each part on this process; refuse parts that cannot be split equally."""
    groups = layer.setting.groups or 1
    if layer.pools_processes():
        groups = local_groups(groups, layer.processes)
    for part in parts:
        if part.images % groups:
            raise BadInput(f"{part.images} images cannot be split into {groups} equal groups")
    return groups


def _by_statistics(parts: list[Routed]) -> list[tuple[Holder, list[int]]]:
    """Group parts by the holder of their statistics: parts that share one are estimated together."""
    together: dict[Holder, list[int]] = {}
    for index, part in enumerate(parts):
        together.setdefault(part.statistics, []).append(index)
    return list(together.items())


# ---- update running statistics ----------------------------------------------------------------------


def _update_running(
    layer: Steered, parts: list[Routed], batch: list[Moments], update: bool | float | str
) -> None:
    """Update the running statistics of every branch that took part, given the moments of each part."""
    for statistics, members in _by_statistics(parts):
        _update_holder(layer, statistics, _union(layer, [batch[m] for m in members]), update)


def _union(layer: Steered, batch: list[Moments]) -> Moments:
    """Pool the (groups, C) moments of parts into (C,) moments, over all processes where they are shared."""
    each = [Moments(*pair, m.n) for m in batch for pair in zip(m.mean, m.var, strict=True)]
    return pool_processes(pool(each), layer.processes) if layer.pools_processes() else pool(each)


@torch.no_grad()
def _update_holder(layer: Steered, holder: Holder, batch: Moments, update: bool | float | str) -> None:
    if holder.num_batches_tracked is not None:
        holder.num_batches_tracked.add_(1)
    momentum: Any = layer.momentum if update is True else update
    if momentum is None or momentum == "average":
        if holder.num_batches_tracked is None:
            raise BadInput("this layer counts no batches, so it cannot average over them: give a momentum")
        momentum = 1.0 / holder.num_batches_tracked.to(holder.running_mean.dtype)
    holder.running_mean.lerp_(batch.mean.to(holder.running_mean.dtype), momentum)
    holder.running_var.lerp_(batch.unbiased.to(holder.running_var.dtype), momentum)
