"""The state of a model's normalisation layers as a whole: keep it, restore it, re-estimate it, freeze it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.copies import duplicate
from trimtab.norm.moments import blend, pool
from trimtab.norm.setting import MAIN, NEUTRAL, Moments, Shift
from trimtab.norm.steering import Seen, at_rest, layers, observe, steered_layers, use
from trimtab.norm.surgery import STATISTICS
from trimtab.types import BadInput

Snapshot = dict[str, dict[str, Tensor]]
"""Per layer: its parameters and running statistics, of all branches, by name."""


def snapshot(model: nn.Module) -> Snapshot:
    """A copy of every value that the steered layers hold."""
    return {
        name: {key: value.clone() for key, value in layer.state_dict().items()}
        for name, layer in steered_layers(model).items()
    }


@torch.no_grad()
def restore(model: nn.Module, kept: Snapshot) -> nn.Module:
    """Put back what `snapshot` kept, bit for bit, into the same tensors, wherever they have moved since."""
    steered = layers(model)
    if steered.keys() != kept.keys():
        raise BadInput("the snapshot was taken of a model with other layers")
    for name, layer in steered.items():
        held = layer.state_dict()  # aliases the live tensors
        if held.keys() != kept[name].keys():
            raise BadInput(f"the snapshot was taken when {name!r} had other branches")
        for key, value in held.items():
            before = kept[name][key].to(value)
            if not torch.equal(value, before):  # what did not change keeps its version
                value.copy_(before)
    return model


def recalibrate(model: nn.Module, batches: Iterable[Any], branch: str = MAIN) -> nn.Module:
    """Re-estimate a branch's running statistics as those of all images in `batches`, however they are cut.

    `batches` yields image tensors, or tuples that start with one. Each batch is normalised by itself, as
    in training, and the moments of all are pooled by count; they are written when all went well. Modes
    and parameters are untouched; drop-out and the like are off while it runs.
    """
    seen: dict[str, list[Moments]] = {}
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        steering = use(model, branch=branch, source="batch", update=False, groups=None, shift=None)
        with torch.no_grad(), steering:
            for batch in batches:
                with observe(model) as once:
                    model(images_for(model, batch))
                for name, found in once.items():
                    seen.setdefault(name, []).append(found)
    finally:
        for module, mode in modes.items():
            module.training = mode
    if not seen:
        raise BadInput("recalibrating needs at least one batch of images, found none")
    return adopt(model, {name: _unbiased(pool(found)) for name, found in seen.items()}, branch=branch)


def _unbiased(found: Moments) -> Moments:
    """With the variance that torch stores."""
    return found._replace(var=found.var * (found.n / max(found.n - 1, 1)))


@torch.no_grad()
def adopt(
    model: nn.Module,
    seen: dict[str, Moments],
    rho: float = 1.0,
    blend_of: str = "std",
    branch: str | None = None,
) -> nn.Module:
    """Make the moments that `observe` saw the running statistics of a branch, or `rho` of them.

    Without a name it is the branch in force.

    What a pass with `source="blend"` and the same rho normalised with, a later pass with running
    statistics then reproduces. Layers that were not seen, or never got the branch, stay as they are.
    """
    for name, layer in steered_layers(model).items():
        if name in seen and branch in (None, *layer.branch_names) and layer.keeps_statistics:
            holder = layer.statistics_holder(branch or layer.branch_now())
            mean, var = blend(seen[name], holder.running_mean, holder.running_var, rho, blend_of, layer.eps)
            holder.running_mean.copy_(mean)
            holder.running_var.copy_(var)
            if holder.num_batches_tracked is not None:
                holder.num_batches_tracked.add_(1)
    vars(model).pop("provenance", None)  # which `adapt.frozen` noted of statistics that are no more
    return model


def copied(model: nn.Module) -> nn.Module:
    """A copy that goes on with the branch in force: for it that is the resting setting, until `thaw`."""
    made = duplicate(model)
    for layer, original in zip(layers(made).values(), layers(model).values(), strict=True):
        layer.rest = layer.setting = replace(original.rest, branch=original.setting.branch)
    return made


def running(model: nn.Module, branch: str = MAIN) -> dict[str, Moments]:
    """A copy of the running statistics of a branch, layer by layer (n is the number of updates)."""
    found = {}
    for name, layer in steered_layers(model).items():
        if layer.keeps_statistics and branch in layer.branch_names:
            holder = layer.statistics_holder(branch)
            updates = 0 if holder.num_batches_tracked is None else int(holder.num_batches_tracked)
            found[name] = Moments(holder.running_mean.clone(), holder.running_var.clone(), updates)
    if not found:
        raise BadInput(f"no layer keeps running statistics of a branch {branch!r}")
    return found


def statistics(model: nn.Module) -> set[str]:
    """The names of the buffers that learn: running statistics of any layer, steered or not."""
    return {name for name, _ in model.named_buffers() if name.rpartition(".")[2] in STATISTICS}


def branches(model: nn.Module) -> tuple[str, ...]:
    """The names of all branches, "main" first."""
    return tuple(dict.fromkeys(name for layer in layers(model).values() for name in layer.branch_names))


def freeze(model: nn.Module, branch: str | None = None) -> nn.Module:
    """Keep normalisation layers as they are, also in `train()`, until `thaw`.

    They normalise with running statistics that no longer learn, and gamma and beta stop training. With
    `branch`, only that branch's own parameters stop training: an unused branch must, before DDP wraps
    the model.
    """
    for layer in at_rest(model).values() if branch is None else ():
        source = "running" if layer.keeps_statistics else None
        layer.rest = layer.setting = replace(layer.rest, source=source, update=False)
    for parameter in affine_parameters(model, branch):
        parameter.requires_grad_(False)
    return model


def thaw(model: nn.Module) -> nn.Module:
    """Undo `freeze`: stock behaviour, and gamma and beta of every branch train again."""
    for layer in at_rest(model).values():
        layer.rest = layer.setting = NEUTRAL
    for parameter in affine_parameters(model):
        parameter.requires_grad_(True)
    return model


def synchronise(model: nn.Module, on: bool = True) -> nn.Module:
    """Let every steered layer take its batch statistics over all processes (or stop doing so).

    With one process, or none initialised, this changes nothing. `groups` then counts groups of the
    global batch, in rank order.
    """
    for layer in steered_layers(model).values():
        layer.synchronised = on
    return model


def affine_parameters(model: nn.Module, branch: str | None = None) -> list[nn.Parameter]:
    """Gamma and beta of every steered layer, of all branches or of one: what BN fine-tuning trains."""
    found = []
    for layer in steered_layers(model).values():
        owners = layer.branch_names if branch is None else [n for n in layer.branch_names if n == branch]
        for holder in (layer.holder(name) for name in owners):
            found += list(holder.parameters(recurse=False))
    if branch is not None and not found:
        raise BadInput(f"no layer has parameters of a branch {branch!r}")
    return found


def shift_gradients(model: nn.Module, seen: Seen, gradients: dict[nn.Parameter, Tensor]) -> dict[str, Shift]:
    """The gradient with respect to a zero shift, read off the affine gradients of the same pass.

    With xhat = (x - mu) / sigma, y = gamma (1 + d_sigma)(xhat - d_mu mu / sigma) + beta gives at d = 0
        dL/d(d_sigma) = gamma dL/d(gamma),    dL/d(d_mu) = -(gamma mu / sigma) dL/d(beta),
    so that a pass of the stock fused kernel is enough. `seen` comes from `observe` around that pass, in which
    every layer must have run once: what two calls add to one gradient cannot be told apart.
    """
    found = {}
    for name, layer in layers(model).items():
        own = layer.affine_holder(layer.branch_now())
        if own.weight is None or own.bias is None or not {own.weight, own.bias} <= gradients.keys():
            raise BadInput(
                f"{name} has no affine gradient to read the shift's from: let gamma and beta train, or "
                "differentiate zero_shifts(model)"
            )
        if seen.calls[name] != 1 or not isinstance(layer.setting.branch or MAIN, str):
            raise BadInput(
                f"{name} normalised {seen.calls[name]} times, or for several branches, in one pass: its "
                "shift's gradient cannot be read off; differentiate zero_shifts(model)"
            )
        gamma, batch = own.weight.detach(), seen[name]
        ratio = batch.mean / (batch.var + layer.eps).sqrt()
        found[name] = Shift(-gamma * ratio * gradients[own.bias], gamma * gradients[own.weight])
    return found


def start_statistics(model: nn.Module) -> nn.Module:
    """Give layers that keep no running statistics some, as a stock layer starts with."""
    for layer in steered_layers(model).values():
        if not layer.keeps_statistics:
            like = next((p for p in (layer.weight, *model.parameters()) if p is not None), torch.zeros(()))
            layer.running_mean = torch.zeros(layer.num_features, dtype=like.dtype, device=like.device)
            layer.running_var = torch.ones_like(layer.running_mean)
            layer.num_batches_tracked = torch.zeros((), dtype=torch.long, device=like.device)
            layer.track_running_stats = True
    return model


def images_for(model: nn.Module, batch: Any) -> Tensor:
    """The image tensor of a batch (or the first of a tuple), where and as wide as the model is."""
    images = batch if isinstance(batch, Tensor) else batch[0]
    like = next(model.parameters(), images)
    return images.to(like.device, like.dtype if images.is_floating_point() else None)
