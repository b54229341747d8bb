"""Keep, restore, re-estimate and freeze the state of all normalization layers of a model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from trimtab._bfloat16 import require_usable
from trimtab._clone import deep_clone
from trimtab._mode import evaluation_mode
from trimtab.norm._kernels.moments import exact_moments, pool
from trimtab.norm.moments import blend, widest
from trimtab.norm.setting import MAIN, NEUTRAL, Moments
from trimtab.norm.steering import at_rest, layers, observe, steered_layers, use
from trimtab.norm.surgery import STATISTICS
from trimtab.types import BadInput

Snapshot = dict[str, dict[str, Tensor]]
"""Per layer: its parameters and running statistics, of all branches, by name."""


def snapshot(model: nn.Module) -> Snapshot:
    """Copy every parameter and running statistic of the steered layers."""
    return {
        name: {key: value.clone() for key, value in layer.state_dict().items()}
        for name, layer in steered_layers(model).items()
    }


@torch.no_grad()
def restore(model: nn.Module, kept: Snapshot) -> nn.Module:
    """Restore a snapshot bit for bit, into the same tensors, also if they have moved to another device."""
    steered = layers(model)
    if steered.keys() != kept.keys():
        raise BadInput("the snapshot was taken of a model with other layers")
    for name, layer in steered.items():
        state = layer.state_dict()  # aliases the live tensors
        if state.keys() != kept[name].keys():
            raise BadInput(f"the snapshot was taken when {name!r} had other branches")
        for key, value in state.items():
            before = kept[name][key].to(value)
            if not torch.equal(value, before):  # an unchanged tensor keeps its version
                value.copy_(before)
    return model


def recalibrate(
    model: nn.Module,
    batches: Iterable[Any],
    branch: str = MAIN,
    forward: Callable[[nn.Module, Any], Any] | None = None,
    only: Collection[str] | None = None,
) -> nn.Module:
    """Re-estimate a branch's running statistics on all images in `batches`.

    Each batch is normalized by its own moments, as in training, and all moments are pooled by count. They
    are written after the last batch, so an error changes nothing. The model runs in eval mode; its modes and
    parameters stay.

    Args:
        model: A steered model.
        batches: Image tensors, tuples that start with one, or whatever `forward` takes.
        branch: The branch whose running statistics are re-estimated.
        forward: `forward(model, batch)` for models that do not map one tensor to one output.
        only: Names of the layers to re-estimate (see `layers`); all if None.
    """
    seen = gather_moments(model, batches, forward, branch=branch, source="batch")
    unknown = sorted(set(only or ()) - layers(model).keys())
    if unknown:
        raise BadInput(f"there is no steered layer {unknown[0]!r}; norm.layers(model) lists them")
    chosen = {name: m._replace(var=m.unbiased) for name, m in seen.items() if only is None or name in only}
    return set_statistics(model, chosen, branch=branch)


def gather_moments(
    model: nn.Module,
    batches: Iterable[Any],
    forward: Callable[[nn.Module, Any], Any] | None = None,
    *,
    branch: str = MAIN,
    source: str = "batch",
) -> dict[str, Moments]:
    """Return the moments of each layer's input, pooled over all batches; the model is not changed.

    Args:
        model: A steered model, which runs in eval mode.
        batches: Image tensors, tuples that start with one, or whatever `forward` takes.
        forward: `forward(model, batch)` for models that do not map one tensor to one output.
        branch: The branch that normalizes.
        source: `"batch"`, as in training, or `"running"`: inputs as in evaluation, for any batch size.
    """
    seen: dict[str, list[Moments]] = {}
    exact = exact_moments if source == "running" else None  # batch moments are those that normalize
    steering = use(
        model, branch=branch, source=source, update=False, groups=None, shift=None, estimator=exact
    )
    with evaluation_mode(model), torch.no_grad(), steering:
        for batch in batches:
            with observe(model) as observed:
                forward(model, batch) if forward else model(images_for(model, batch))
            for name, moments in observed.items():
                wide = widest(moments.mean.device)
                seen.setdefault(name, []).append(Moments(moments[0].to(wide), moments[1].to(wide), moments.n))
    if not seen:
        raise BadInput("recalibrating needs at least one batch of images, found none")
    return {name: pool(parts) for name, parts in seen.items()}


@torch.no_grad()
def set_statistics(
    model: nn.Module,
    seen: dict[str, Moments],
    rho: float = 1.0,
    blend_of: str = "std",
    branch: str | None = None,
) -> nn.Module:
    """Set the running statistics of a branch to observed moments, or blend these into them.

    If a pass with `source="blend"` was observed, a later pass with running statistics reproduces it for the
    same `rho` and `blend_of`. Layers without observed moments, or without the branch, are not changed.

    Args:
        model: A steered model.
        seen: Moments by layer name, as `observe` returns them.
        rho: Weight of these moments; the running statistics have 1 - rho.
        blend_of: What is blended in addition to the mean (see `Setting.blend_of`).
        branch: The branch to change; the active one if None.
    """
    for name, layer in steered_layers(model).items():
        if name in seen and branch in (None, *layer.branch_names) and layer.keeps_statistics:
            holder = layer.statistics_holder(branch or layer.branch_now())
            mean, var = blend(seen[name], holder.running_mean, holder.running_var, rho, blend_of, layer.eps)
            holder.running_mean.copy_(mean)
            holder.running_var.copy_(var)
            if holder.num_batches_tracked is not None:
                holder.num_batches_tracked.add_(1)
    vars(model).pop("provenance", None)  # `adapt.frozen` wrote it; it no longer holds
    return model


def clone(model: nn.Module) -> nn.Module:
    """Return a copy that keeps the active branch: it stays active in the copy until `thaw`."""
    copy = deep_clone(model)
    for layer, original in zip(layers(copy).values(), layers(model).values(), strict=True):
        layer.rest = layer.setting = original.rest._replace(branch=original.setting.branch)
    return copy


def running(model: nn.Module, branch: str = MAIN) -> dict[str, Moments]:
    """Copy the running statistics of a branch, by layer name (n is the number of updates)."""
    copies = {}
    for name, layer in steered_layers(model).items():
        if layer.keeps_statistics and branch in layer.branch_names:
            holder = layer.statistics_holder(branch)
            updates = 0 if holder.num_batches_tracked is None else int(holder.num_batches_tracked)
            copies[name] = Moments(holder.running_mean.clone(), holder.running_var.clone(), updates)
    if not copies:
        raise BadInput(f"no layer keeps running statistics of a branch {branch!r}")
    return copies


def statistics(model: nn.Module) -> set[str]:
    """Return the names of the buffers that are running statistics, of steered and stock layers."""
    return {name for name, _ in model.named_buffers() if name.rpartition(".")[2] in STATISTICS}


def branches(model: nn.Module) -> tuple[str, ...]:
    """Return the names of all branches, "main" first."""
    return tuple(dict.fromkeys(name for layer in layers(model).values() for name in layer.branch_names))


def freeze(model: nn.Module, branch: str | None = None) -> nn.Module:
    """Freeze the normalization layers, also in `train()`, until `thaw`.

    They normalize with running statistics that are not updated, and gamma and beta need no gradient. With
    `branch`, only the parameters of that branch are frozen: do this with an unused branch before DDP wraps
    the model.
    """
    for layer in at_rest(model).values() if branch is None else ():
        source = "running" if layer.keeps_statistics else None
        layer.rest = layer.setting = layer.rest._replace(source=source, update=False)
    for parameter in affine_parameters(model, branch):
        parameter.requires_grad_(False)
    return model


def thaw(model: nn.Module) -> nn.Module:
    """Undo `freeze`: restore stock behavior, and train gamma and beta of every branch again."""
    for layer in at_rest(model).values():
        layer.rest = layer.setting = NEUTRAL
    for parameter in affine_parameters(model):
        parameter.requires_grad_(True)
    return model


def synchronize(model: nn.Module, on: bool = True) -> nn.Module:
    """Take the batch statistics of every steered layer over all processes, or with `on=False` no longer.

    With one process, or none initialized, this changes nothing. `groups` then counts groups of the
    global batch, in rank order.
    """
    for layer in steered_layers(model).values():
        layer.synchronized = on
    return model


def affine_parameters(model: nn.Module, branch: str | None = None) -> list[nn.Parameter]:
    """Return gamma and beta of every steered layer, of all branches or of one: what BN fine-tuning trains."""
    parameters: list[nn.Parameter] = []
    for layer in steered_layers(model).values():
        owners = layer.branch_names if branch is None else [n for n in layer.branch_names if n == branch]
        for holder in (layer.holder(name) for name in owners):
            parameters += holder.parameters(recurse=False)
    if branch is not None and not parameters:
        raise BadInput(f"no layer has parameters of a branch {branch!r}")
    return parameters


def track_statistics(model: nn.Module) -> nn.Module:
    """Add running statistics, with a stock layer's initial values, to layers that keep none."""
    for layer in steered_layers(model).values():
        if not layer.keeps_statistics:
            like = next((p for p in (layer.weight, *model.parameters()) if p is not None), torch.zeros(()))
            layer.running_mean = torch.zeros(layer.num_features, dtype=like.dtype, device=like.device)
            layer.running_var = torch.ones_like(layer.running_mean)
            layer.num_batches_tracked = torch.zeros((), dtype=torch.long, device=like.device)
            layer.track_running_stats = True
    return model


def images_for(model: nn.Module, batch: Any) -> Tensor:
    """Return the image tensor of a batch (or the first of a tuple) on the model's device and in its dtype."""
    images = batch if isinstance(batch, Tensor) else batch[0]
    like = next(model.parameters(), images)
    require_usable(model, like)
    return images.to(like.device, like.dtype if images.is_floating_point() else None)


def batch_counters(keys: Iterable[str]) -> set[str]:
    """Return the batch counters among a state dict's keys; checkpoints of torch before 0.4.1 have none."""
    return {key for key in keys if key.endswith("num_batches_tracked")}
