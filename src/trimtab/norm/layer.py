"""A batch-norm layer that is steered: the stock layer, with its hidden answers as a `Setting`.

`Steered` is mixed into the layer's own class (see `surgery`), so that keys, attributes and fused
activations stay. With a neutral setting it runs the stock forward pass and nothing else. Else:

    route the batch to its branches -> group within each part -> take moments -> normalise -> learn

Parts whose branches share statistics are estimated together; a branch learns once, from pooled moments,
so a grouped or routed pass leaves the same running statistics as a plain one. What normalises is read
before anything is learnt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, ClassVar, NamedTuple, cast

import torch
from torch import Tensor, nn

from trimtab.norm.moments import blend, moments, normalise_by, normalise_by_batch, pool
from trimtab.norm.setting import MAIN, NEUTRAL, Moments, Setting
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
    """One branch's share of the batch: its images, the holder of gamma and beta, the holder of statistics."""

    x: Tensor
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
        if self.setting.neutral and (isinstance(self, nn.SyncBatchNorm) or not self.pools_processes()):
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

    def source_now(self) -> str:
        if self.setting.source is not None:
            blends_nothing = self.setting.source == "blend" and self.setting.rho == 0
            return "running" if blends_nothing else self.setting.source
        return "batch" if self.training or not self.track_running_stats else "running"

    def update_now(self) -> bool | float | str:
        if self.setting.update is not None:
            return self.setting.update
        return self.training and self.track_running_stats

    def pools_processes(self) -> bool:
        return self.synchronised and world_size() > 1

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
    if (source != "batch" or update is not False) and not layer.track_running_stats:
        raise BadInput(
            'this layer keeps no running statistics (track_running_stats=False): use source="batch", '
            "update=False, or recalibrate a layer that tracks them"
        )
    parts = _route(x, layer)
    groups = _groups(layer, parts)
    out: list[Tensor] = [x] * (len(parts) * groups)
    everything: list[Moments] = []
    for statistics, members in _by_statistics(parts):
        seen = []
        for group in range(groups):
            pieces = [_group(parts[m].x, groups, group) for m in members]
            ys, batch = _normalise(
                layer, statistics, [parts[m].affine for m in members], pieces, source, update
            )
            if batch is not None:
                seen.append(Moments(batch.mean.detach(), batch.var.detach(), batch.n))
            for m, y in zip(members, ys, strict=True):
                out[m * groups + group] = y
        if update is not False:
            _learn(layer, statistics, seen, update)
        everything += seen
    if setting.observe is not None:
        setting.observe(_over_groups(layer, everything))
    return out[0] if len(out) == 1 else torch.cat(out)


def _normalise(
    layer: Steered,
    statistics: Holder,
    affines: list[Holder],
    pieces: list[Tensor],
    source: str,
    update: bool | float | str,
) -> tuple[list[Tensor], Moments | None]:
    """Normalise pieces that share statistics, each with its own gamma and beta."""
    setting, eps = layer.setting, layer.eps
    wanted = update is not False or setting.observe is not None
    pooled = layer.pools_processes() and (setting.groups or 1) == 1  # else each group lives on one process
    plain = setting.shift is None and setting.estimator is None
    if source == "batch" and plain and len(pieces) == 1 and not pooled:
        y, batch = normalise_by_batch(pieces[0], affines[0].weight, affines[0].bias, eps, wanted)
        return [y], batch

    batch = None
    if source != "running" or wanted:
        estimate = setting.estimator or moments
        with torch.set_grad_enabled(torch.is_grad_enabled() and source != "running"):
            batch = pool([estimate(piece) for piece in pieces])
    if batch is not None and pooled:
        batch = pool_processes(batch)

    if source == "batch":
        assert batch is not None
        mean, var = batch.mean, batch.var
    else:
        # Cloned if they are about to learn: the backward pass needs what normalised.
        mean, var = statistics.running_mean, statistics.running_var
        if update is not False:
            mean, var = mean.clone(), var.clone()
        if source == "blend":
            assert batch is not None
            mean, var = blend(batch, mean, var, setting.rho or 0.0, setting.blend_of or "std", eps)
    ys = [
        normalise_by(piece, mean, var, affine.weight, affine.bias, setting.shift, eps)
        for piece, affine in zip(pieces, affines, strict=True)
    ]
    return ys, batch


def _over_groups(layer: Steered, seen: list[Moments]) -> Moments:
    batch = pool(seen)
    if layer.pools_processes() and (layer.setting.groups or 1) > 1:
        return pool_processes(batch)  # an ungrouped batch was pooled before it normalised
    return batch


@torch.no_grad()
def _learn(layer: Steered, holder: Holder, seen: list[Moments], update: bool | float | str) -> None:
    batch = _over_groups(layer, seen)
    holder.num_batches_tracked.add_(1)
    momentum: Any = layer.momentum if update is True else update
    if momentum is None or momentum == "average":
        momentum = 1.0 / holder.num_batches_tracked.to(holder.running_mean.dtype)
    unbiased = batch.var * (batch.n / max(batch.n - 1, 1))
    holder.running_mean.lerp_(batch.mean.to(holder.running_mean.dtype), momentum)
    holder.running_var.lerp_(unbiased.to(holder.running_var.dtype), momentum)


def _route(x: Tensor, layer: Steered) -> list[Part]:
    branch = layer.setting.branch or MAIN
    route = ((branch, len(x)),) if isinstance(branch, str) else branch
    if sum(count for _, count in route) != len(x):
        counts = " + ".join(str(count) for _, count in route)
        raise BadInput(f"the route {counts} does not add up to the batch of {len(x)}")
    images = x.split([count for _, count in route]) if len(route) > 1 else (x,)
    return [
        Part(piece, layer.affine_holder(name), layer.statistics_holder(name))
        for piece, (name, _) in zip(images, route, strict=True)
    ]


def _by_statistics(parts: list[Part]) -> list[tuple[Holder, list[int]]]:
    """Which parts are estimated together, since their branches share statistics."""
    together: dict[Holder, list[int]] = {}
    for index, part in enumerate(parts):
        together.setdefault(part.statistics, []).append(index)
    return list(together.items())


def _groups(layer: Steered, parts: list[Part]) -> int:
    groups = layer.setting.groups or 1
    if layer.pools_processes():
        groups = local_groups(groups)
    for part in parts:
        if len(part.x) % groups:
            raise BadInput(f"{len(part.x)} images cannot be split into {groups} equal groups")
    return groups


def _group(x: Tensor, groups: int, index: int) -> Tensor:
    size = len(x) // groups
    return x if groups == 1 else x[index * size : (index + 1) * size]
