"""The state of a model's normalisation layers as a whole: keep it, restore it, re-estimate it, freeze it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.norm.layer import Steered
from trimtab.norm.moments import blend
from trimtab.norm.setting import MAIN, NEUTRAL, Moments, Shift
from trimtab.norm.steering import layers, use
from trimtab.types import BadInput

Snapshot = dict[str, dict[str, Tensor]]
"""Per layer: its parameters and running statistics, of all branches, by name."""


def snapshot(model: nn.Module) -> Snapshot:
    """A copy of every value that the steered layers hold."""
    return {
        name: {key: value.clone() for key, value in layer.state_dict().items()}
        for name, layer in layers(model).items()
    }


@torch.no_grad()
def restore(model: nn.Module, kept: Snapshot) -> nn.Module:
    """Put back what `snapshot` kept, bit for bit, into the same tensors."""
    steered = layers(model)
    if steered.keys() != kept.keys():
        raise BadInput("the snapshot was taken of a model with other layers")
    for name, layer in steered.items():
        held = layer.state_dict()  # aliases the live tensors
        if held.keys() != kept[name].keys():
            raise BadInput(f"the snapshot was taken when {name!r} had other branches")
        for key, value in held.items():
            value.copy_(kept[name][key])
    return model


def recalibrate(model: nn.Module, batches: Iterable[Any], branch: str = MAIN) -> nn.Module:
    """Forget a branch's running statistics and re-estimate them as the average over `batches`.

    `batches` yields image tensors, or tuples that start with one. Modes and parameters are untouched;
    drop-out and the like are off while it runs.
    """
    steered = layers(model)
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with (
            torch.no_grad(),
            use(model, branch=branch, source="batch", update="average", groups=None, shift=None),
        ):
            images = iter(batches)
            first = next(images, None)
            if first is None:
                raise BadInput("recalibrating needs at least one batch of images, found none")
            for layer in steered.values():
                _forget(layer.statistics_holder(branch))
            for batch in _chain(first, images):
                model(images_for(model, batch))
    finally:
        for module, mode in modes.items():
            module.training = mode
    return model


@torch.no_grad()
def adopt(model: nn.Module, seen: dict[str, Moments], rho: float = 1.0, blend_of: str = "std") -> nn.Module:
    """Make the moments that `observe` saw the running statistics (main branch), or `rho` of them.

    What a pass with `source="blend"` and the same rho normalised with, a later pass with running
    statistics then reproduces.
    """
    for name, layer in layers(model).items():
        mean, var = blend(seen[name], layer.running_mean, layer.running_var, rho, blend_of, layer.eps)
        layer.running_mean.copy_(mean)
        layer.running_var.copy_(var)
    return model


def freeze(
    model: nn.Module, affine: bool = True, statistics: bool = True, branch: str | None = None
) -> nn.Module:
    """Keep normalisation layers as they are, also in `train()`, until `thaw`.

    `statistics` makes them normalise with running statistics that no longer learn; `affine` stops
    gamma and beta from training. With `branch`, only that branch's own parameters stop training
    (an unused branch must, before DDP wraps the model).
    """
    for layer in layers(model).values():
        if statistics and branch is None:
            layer.rest = replace(layer.rest, source="running", update=False)
            layer.setting = replace(layer.setting, source="running", update=False)
        if affine:
            _train_affine(layer, branch, False)
    return model


def thaw(model: nn.Module) -> nn.Module:
    """Undo `freeze`: stock behaviour, and gamma and beta of every branch train again."""
    for layer in layers(model).values():
        layer.rest = layer.setting = NEUTRAL
        _train_affine(layer, None, True)
    return model


def synchronise(model: nn.Module, on: bool = True) -> nn.Module:
    """Let every steered layer take its batch statistics over all processes (or stop doing so).

    With one process, or none initialised, this changes nothing. `groups` then counts groups of the
    global batch, in rank order.
    """
    for layer in layers(model).values():
        layer.synchronised = on
    return model


def parameters(model: nn.Module) -> list[nn.Parameter]:
    """Gamma and beta of every steered layer, all branches: what BN fine-tuning trains."""
    return [parameter for layer in layers(model).values() for parameter in layer.parameters()]


def shift_gradients(
    model: nn.Module, seen: dict[str, Moments], gradients: dict[nn.Parameter, Tensor]
) -> dict[str, Shift]:
    """The gradient with respect to a zero shift, read off the affine gradients of the same pass.

    With xhat = (x - mu) / sigma, y = gamma (1 + d_sigma)(xhat - d_mu mu / sigma) + beta gives at d = 0
        dL/d(d_sigma) = gamma dL/d(gamma),    dL/d(d_mu) = -(gamma mu / sigma) dL/d(beta),
    so that a pass of the stock fused kernel is enough. `seen` comes from `observe` around that pass.
    """
    found = {}
    for name, layer in layers(model).items():
        if (
            layer.weight is None
            or layer.bias is None
            or layer.weight not in gradients
            or layer.bias not in gradients
        ):
            raise BadInput(
                f"{name} has no affine gradient to read the shift's from; differentiate a zero shift"
            )
        gamma, batch = layer.weight.detach(), seen[name]
        ratio = batch.mean / (batch.var + layer.eps).sqrt()
        found[name] = Shift(-gamma * ratio * gradients[layer.bias], gamma * gradients[layer.weight])
    return found


def images_for(model: nn.Module, batch: Any) -> Tensor:
    """The image tensor of a batch (or the first of a tuple), where and as wide as the model is."""
    images = batch if isinstance(batch, Tensor) else batch[0]
    like = next(model.parameters(), images)
    return images.to(like.device, like.dtype if images.is_floating_point() else None)


def _forget(holder: Any) -> None:
    holder.running_mean.zero_()
    holder.running_var.fill_(1)
    holder.num_batches_tracked.zero_()


def _train_affine(layer: Steered, branch: str | None, on: bool) -> None:
    holder = layer if branch is None else layer.holder(branch)
    if branch is not None and branch != MAIN and holder is layer:
        return  # this layer never got the branch
    for parameter in holder.parameters(recurse=branch is None):
        parameter.requires_grad_(on)


def _chain(first: Any, rest: Iterable[Any]) -> Iterable[Any]:
    yield first
    yield from rest
