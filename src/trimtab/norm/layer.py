"""A batch-norm layer that is steered: the stock layer, with its hidden answers as a `Setting`.

`Steered` is mixed into the layer's own class (see `surgery`), so that keys, attributes and fused
activations stay. With a neutral setting it runs the stock forward pass and nothing else. Else:

    route the batch to its branches -> group within each part -> take moments -> normalise -> learn

Parts whose branches share statistics are estimated together; a branch learns once, from pooled moments,
so a grouped or routed pass leaves the same running statistics as a plain one. What normalises is read
before anything is learnt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, ClassVar, NamedTuple, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trimtab.norm.groups import NO_DEVIATION, Groups, normalise_groups, take_moments
from trimtab.norm.moments import (
    blend,
    keep,
    moments,
    normalise_by,
    normalise_by_batch,
    pool,
    scale_and_offset,
)
from trimtab.norm.parts import Coefficients, Plan, Vectors, normalise_parts
from trimtab.norm.setting import MAIN, NEUTRAL, Moments, Setting, Shift
from trimtab.norm.shifted import is_constant, normalise_shifted
from trimtab.norm.synchronise import local_groups, pool_processes, world_size
from trimtab.types import BadInput


class Holder(nn.Module):
    """Whatever holds a branch: the steered layer itself for "main", else a `Branch`."""

    weight: nn.Parameter | None
    bias: nn.Parameter | None
    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor


class Branch(Holder):
    """Parameters and running statistics of one more branch of a layer. A half it shares is absent."""

    def __init__(self, affine_of: str | None, statistics_of: str | None) -> None:
        super().__init__()
        self.affine_of = affine_of
        self.statistics_of = statistics_of

    def extra_repr(self) -> str:
        shared = {"affine": self.affine_of, "statistics": self.statistics_of}
        return ", ".join(f"{half} of {owner}" for half, owner in shared.items() if owner)


class Part(NamedTuple):
    """One branch's share of the batch: how many images, the holder of gamma and beta, that of statistics."""

    images: int
    affine: Holder
    statistics: Holder


class Steered(Holder):
    """Mixed into a batch-norm class by `surgery.steered_class`; never constructed on its own."""

    setting: Setting
    """In force now; `use` replaces it and puts it back."""
    rest: Setting
    """In force when no `use` is: neutral unless `freeze` set it. Copies and pickles start from it."""
    synchronised: bool
    stock_class: ClassVar[type[nn.Module]]
    """The class it was, and will be after `release`."""
    tail: ClassVar[Callable[[Any, Tensor], Tensor]]
    """What the stock forward pass does after normalising (timm fuses drop-out and activation)."""

    num_features: int
    eps: float
    momentum: float | None
    track_running_stats: bool
    _check_input_dim: Callable[[Tensor], None]

    def forward(self, input: Tensor) -> Tensor:
        if self.runs_stock(input):
            return super().forward(input)  # the stock class is next in line
        self._check_input_dim(input)
        return self.tail(_steered_pass(self, input))

    # ---- branches -----------------------------------------------------------------------------------

    @property
    def branch_names(self) -> tuple[str, ...]:
        return (MAIN, *self.branch_modules)

    @property
    def branch_modules(self) -> Mapping[str, Branch]:
        """All branches but "main"; the submodule that holds them exists only once there is one."""
        box = self._modules.get("branches")
        return {} if box is None else cast(Mapping[str, Branch], box._modules)

    def holder(self, branch: str) -> Holder:
        """The module that a branch lives in: the layer itself for "main", else its `Branch`.

        A layer that never got this branch answers with "main" (AdvBN doubles only the tail's layers).
        """
        return self.branch_modules.get(branch, self)

    def affine_holder(self, branch: str) -> Holder:
        own = self.holder(branch)
        return self.holder(own.affine_of) if isinstance(own, Branch) and own.affine_of else own

    def statistics_holder(self, branch: str) -> Holder:
        own = self.holder(branch)
        return self.holder(own.statistics_of) if isinstance(own, Branch) and own.statistics_of else own

    # ---- answers of the stock layer, where a knob is None -----------------------------------------------

    def branch_now(self) -> str:
        """The branch in force; where a batch is routed to several, "main"."""
        return self.setting.branch if isinstance(self.setting.branch, str) else MAIN

    def source_now(self) -> str:
        if self.setting.source is not None:
            blends_nothing = self.setting.source == "blend" and self.setting.rho == 0
            return "running" if blends_nothing else self.setting.source
        return "batch" if self.training or not self.keeps_statistics else "running"

    def update_now(self) -> bool | float | str:
        if self.setting.update is not None:
            return self.setting.update
        return self.training and self.track_running_stats and self.keeps_statistics

    @property
    def keeps_statistics(self) -> bool:
        """Stock decides by the buffers: without them it normalises by the batch in every mode."""
        return self.running_mean is not None

    def pools_processes(self) -> bool:
        """Whether batch statistics are taken over all processes: as in SyncBatchNorm, only in training."""
        return self.synchronised and self.training and world_size(self.processes) > 1

    @property
    def processes(self) -> Any:
        """The process group that statistics are taken over: SyncBatchNorm may have one, None is all."""
        return getattr(self, "process_group", None)

    def runs_stock(self, input: Tensor) -> bool:
        if isinstance(self, nn.SyncBatchNorm) and self.training:
            alone = not dist.is_available() or not dist.is_initialized()
            return self.setting.neutral and (alone or (self.synchronised and input.is_cuda))  # all it takes
        return self.setting.neutral and not self.pools_processes()

    # ---- copies ---------------------------------------------------------------------------------------

    def __reduce_ex__(self, protocol: Any) -> Any:
        state = self.__dict__ | {"setting": self.rest}
        return _revive, (self.stock_class,), state


def _revive(stock: type[nn.Module]) -> Steered:
    made = steered_class(stock)
    return made.__new__(made)


# ---- which classes can be steered ------------------------------------------------------------------------

TAILS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "torch.nn.modules.batchnorm._BatchNorm.forward": lambda layer, y: y,
    "torch.nn.modules.batchnorm.SyncBatchNorm.forward": lambda layer, y: y,
    "timm.layers.norm_act.BatchNormAct2d.forward": lambda layer, y: layer.act(layer.drop(y)),
}
"""The forward passes that are understood, and what each does after normalising."""


def after(layer: nn.Module) -> list[nn.Module]:
    """The modules that run after normalising, in order, when a layer is taken apart."""
    return [child for name, child in layer.named_children() if name in ("drop", "act")]


def start(layer: Steered) -> None:
    """Give a layer whose class was just changed the state that the stock one lacks."""
    layer.__dict__.update(setting=NEUTRAL, rest=NEUTRAL, synchronised=isinstance(layer, nn.SyncBatchNorm))


def understood(kind: type[nn.Module]) -> bool:
    return _forward_of(kind) in TAILS


def _steered_class(stock: type[nn.Module]) -> type[Steered]:
    body = {
        "stock_class": stock,
        "tail": TAILS[_forward_of(stock)],
        # In torch.nn by name, so that fx tracers take a steered layer as a leaf, as they do a stock one.
        "__module__": "torch.nn.modules.batchnorm",
    }
    return type(f"Steered{stock.__name__}", (Steered, stock), body)


steered_class: Callable[[type[nn.Module]], type[Steered]] = cache(_steered_class)  # type: ignore[assignment]
"""The steered subclass of a batch-norm class: one per class, so that types compare equal."""


def _forward_of(kind: type[nn.Module]) -> str:
    return f"{kind.forward.__module__}.{kind.forward.__qualname__}"


# ---- the pass -----------------------------------------------------------------------------------------


def _steered_pass(layer: Steered, x: Tensor) -> Tensor:
    setting, source, update = layer.setting, layer.source_now(), layer.update_now()
    if (source != "batch" or update is not False) and not layer.keeps_statistics:
        raise BadInput('this layer keeps no running statistics: use source="batch" and update=False')
    parts = _route(layer, len(x))
    cut = Groups([part.images for part in parts], _groups(layer, parts))
    wanted = update is not False or setting.observe is not None
    seen: list[Moments] = []
    if source == "running":
        if wanted:
            with torch.no_grad():
                seen = take_moments(x, cut, setting.estimator or moments)
        ys = [_by_running(layer, *one) for one in zip(parts, cut.of_parts(x), strict=True)]
        y = ys[0] if len(ys) == 1 else torch.cat(ys)
    elif source == "blend" or not _alone(layer, parts):
        plan = Plan(cut, _coefficients(layer, parts, source))
        y, seen = normalise_parts(x, plan, _vectors(layer, parts), setting.estimator)
    elif len(parts) == cut.each == 1 and setting.shift is None:
        y, seen = normalise_by_batch(x, parts[0].affine.weight, parts[0].affine.bias, layer.eps, wanted)
    elif len(parts) == cut.each == 1 and setting.shift and is_constant(setting.shift):
        own = parts[0].affine
        y, seen = normalise_shifted(x, own.weight, own.bias, setting.shift, layer.eps)
    else:
        affine = [(part.affine.weight, part.affine.bias) for part in parts]
        y, seen = normalise_groups(x, cut, affine, setting.shift, layer.eps)

    if update is not False:
        for statistics, members in _by_statistics(parts):
            _learn(layer, statistics, _union(layer, [seen[m] for m in members]), update)
    if setting.observe is not None:
        setting.observe(_union(layer, seen))
    return y


def _by_running(layer: Steered, part: Part, x: Tensor) -> Tensor:
    mean, var = keep(part.statistics.running_mean), keep(part.statistics.running_var)
    return normalise_by(x, mean, var, part.affine.weight, part.affine.bias, layer.setting.shift, layer.eps)


def _alone(layer: Steered, parts: list[Part]) -> bool:
    """Whether each group's own mean and variance are all that the batch normalises it by."""
    together = len(_by_statistics(parts)) < len(parts) or layer.pools_processes()
    return not together and layer.setting.estimator is None


def _vectors(layer: Steered, parts: list[Part]) -> list[Tensor | None]:
    shift = layer.setting.shift or Shift()
    affine = [half for part in parts for half in (part.affine.weight, part.affine.bias)]
    return [shift.mu, shift.sigma, *affine]


def _coefficients(layer: Steered, parts: list[Part], source: str) -> Coefficients:
    """Scale and offset of each part as a function of its moments and of `_vectors`."""
    setting, eps = layer.setting, layer.eps
    together = _by_statistics(parts)
    running = {}
    if source == "blend":
        running = {own: (keep(own.running_mean), keep(own.running_var)) for own, _ in together}
    pooled = layer.pools_processes() and (setting.groups or 1) == 1  # else each group lives on one process

    def coefficients(seen: Sequence[Moments], vectors: Vectors) -> tuple[list[Tensor], list[Tensor]]:
        shift = setting.shift and replace(setting.shift, mu=vectors[0], sigma=vectors[1])
        found = {}
        for statistics, members in together:
            batch = pool([seen[m] for m in members])
            batch = pool_processes(batch, layer.processes) if pooled else batch
            mean, var = batch.mean, batch.var
            if source == "blend":
                rho, of = setting.rho or 0.0, setting.blend_of or "std"
                mean, var = blend(batch, *running[statistics], rho, of, eps)
            elif batch.n == 1:
                raise BadInput(NO_DEVIATION)
            for m in members:
                weight, bias = vectors[2 + 2 * m], vectors[3 + 2 * m]
                centre = seen[m].mean.detach()
                found[m] = scale_and_offset(centre, mean, var, weight, bias, shift, eps)
        scales, offsets = zip(*(found[m] for m in range(len(parts))), strict=True)
        return list(scales), list(offsets)

    return coefficients


def _union(layer: Steered, seen: list[Moments]) -> Moments:
    """The moments of parts and their groups put together, over all processes."""
    each = [Moments(*of, m.n) for m in seen for of in zip(m.mean, m.var, strict=True)]
    return pool_processes(pool(each), layer.processes) if layer.pools_processes() else pool(each)


@torch.no_grad()
def _learn(layer: Steered, holder: Holder, batch: Moments, update: bool | float | str) -> None:
    if holder.num_batches_tracked is not None:
        holder.num_batches_tracked.add_(1)
    momentum: Any = layer.momentum if update is True else update
    if momentum is None or momentum == "average":
        if holder.num_batches_tracked is None:
            raise BadInput("this layer counts no batches, so it cannot average over them: give a momentum")
        momentum = 1.0 / holder.num_batches_tracked.to(holder.running_mean.dtype)
    unbiased = batch.var * (batch.n / max(batch.n - 1, 1))
    holder.running_mean.lerp_(batch.mean.to(holder.running_mean.dtype), momentum)
    holder.running_var.lerp_(unbiased.to(holder.running_var.dtype), momentum)


def _route(layer: Steered, images: int) -> list[Part]:
    branch = layer.setting.branch or MAIN
    route = ((branch, images),) if isinstance(branch, str) else branch
    if sum(count for _, count in route) != images:
        counts = " + ".join(str(count) for _, count in route)
        raise BadInput(f"the route {counts} does not add up to the batch of {images}")
    return [Part(count, layer.affine_holder(name), layer.statistics_holder(name)) for name, count in route]


def _by_statistics(parts: list[Part]) -> list[tuple[Holder, list[int]]]:
    """Which parts are estimated together, since their branches share statistics."""
    together: dict[Holder, list[int]] = {}
    for index, part in enumerate(parts):
        together.setdefault(part.statistics, []).append(index)
    return list(together.items())


def _groups(layer: Steered, parts: list[Part]) -> int:
    groups = layer.setting.groups or 1
    if layer.pools_processes():
        groups = local_groups(groups, layer.processes)
    for part in parts:
        if part.images % groups:
            raise BadInput(f"{part.images} images cannot be split into {groups} equal groups")
    return groups
