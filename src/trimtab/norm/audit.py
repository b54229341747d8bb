"""Report the state of a model's normalization layers: what is wrong with them, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from trimtab._clone import deep_clone
from trimtab.norm._kernels.moments import moments, pool
from trimtab.norm.layer import Steered
from trimtab.norm.setting import MAIN, Moments
from trimtab.norm.state import images_for
from trimtab.norm.surgery import is_batch_norm
from trimtab.types import BadInput, html_table

DEAD_VARIANCE = 1e-10
"""A channel whose running variance is below this is constant: nothing passes through it."""
DRIFT = 0.5
"""Mean drift, in running stds, from which statistics are taken to belong to another domain."""

_MOMENTUM = {
    0: "running statistics never learn; take 0.1, or freeze on purpose",
    1: "running statistics are those of the last batch; take 0.1",
}
"""Momenta that make running statistics useless, and what to do."""
SCRIPT = "script"
_OTHER_KINDS = {nn.GroupNorm: "group", nn.LayerNorm: "layer"}


@dataclass(frozen=True)
class LayerWarning:
    """One thing that is wrong with a layer."""

    kind: str
    """In a word or two."""
    what: str
    """What is wrong, in a clause."""
    advice: str
    """What to do about it."""


@dataclass(frozen=True)
class LayerAudit:
    """The state of one normalization layer."""

    name: str
    """Its name in the model."""
    kind: str
    """`"batch"`, `"instance"`, `"group"`, `"layer"`, or `"script"` for a TorchScript module, whose layers
    are hidden."""
    channels: int
    """Number of channels."""
    branches: tuple[str, ...]
    """Names of its branches, "main" first."""
    training: bool
    """Whether the layer is in training mode."""
    warnings: tuple[LayerWarning, ...]
    """What is wrong with the layer."""
    momentum: float | None = None
    """Momentum of the running statistics; None for a cumulative average, or if the layer has none."""
    batches_seen: int | None = None
    """Updates of the main branch's running statistics; None if the layer keeps none."""
    drift_mean: float | None = None
    """|batch mean - running mean| / running std, averaged over channels; None without data."""
    drift_std: float | None = None
    """Batch std / running std, geometric mean over channels; None without data."""

    def __getattr__(self, name: str) -> Any:
        if name != "trouble":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        from warnings import warn

        warn("LayerAudit.trouble is now LayerAudit.warnings", DeprecationWarning, stacklevel=2)
        return self.warnings


@dataclass(frozen=True)
class Audit:
    """The state of all normalization layers of a model; prints as a table."""

    layers: tuple[LayerAudit, ...]
    """One row per layer, in the order of `model.named_modules()`."""

    @property
    def sound(self) -> bool:
        """Whether no layer has a warning."""
        return not any(layer.warnings for layer in self.layers)

    def __str__(self) -> str:
        width = max((len(layer.name) for layer in self.layers), default=0)
        lines = [
            f"{len(self.layers)} normalization layers, {'no warnings' if self.sound else 'with warnings'}"
        ]
        for layer in self.layers:
            lines.append(
                f"{layer.name:<{width}}  {layer.kind:<8} {layer.channels:>5}  {','.join(layer.branches)}"
            )
            lines += [f"{'':<{width}}  ! {warning.what}: {warning.advice}" for warning in layer.warnings]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = []
        for layer in self.layers:
            drift = ["" if d is None else f"{d:.2f}" for d in (layer.drift_mean, layer.drift_std)]
            warned = "; ".join(f"{warning.what}: {warning.advice}" for warning in layer.warnings)
            rows.append((layer.name, layer.kind, layer.channels, ", ".join(layer.branches), *drift, warned))
        header = ("layer", "kind", "channels", "branches", "mean shift in std", "std ratio", "warnings")
        return html_table(str(self).partition("\n")[0], header, rows)


def audit(model: nn.Module, batches: Iterable[Any] | None = None) -> Audit:
    """Inspect every normalization layer: kind, branches, state, warnings, advice. The model is not changed.

    Args:
        model: Any model, steered or not.
        batches: Image tensors, or tuples that start with one: each layer's running statistics are
            compared with those of these images.
    """
    for name, module in model.named_modules():
        lazy = isinstance(module, nn.modules.lazy.LazyModuleMixin)
        if lazy and (batches is not None or _kind(module)):
            what = name or "the model itself"
            raise BadInput(f"cannot audit {what} yet: it is lazy; run one batch through the model first")
    drift = {} if batches is None else _moments_on(model, batches)
    rows = []
    for name, module in model.named_modules():
        kind = _kind(module)
        if kind == "batch":
            rows.append(_audit_batch_norm(name, module, drift.get(name)))
        elif kind is not None:
            rows.append(_audit_other(name, module, kind))
        elif isinstance(module, torch.jit.ScriptModule) and not any(row.kind == SCRIPT for row in rows):
            closed = LayerWarning("scripted", "TorchScript hides its layers", "audit what it was made from")
            rows.append(LayerAudit(name, SCRIPT, 0, (), module.training, (closed,)))
    return Audit(tuple(rows))


def _kind(module: nn.Module) -> str | None:
    if is_batch_norm(module):
        return "batch"
    if isinstance(module, nn.modules.instancenorm._InstanceNorm):
        return "instance"
    return next((kind for cls, kind in _OTHER_KINDS.items() if isinstance(module, cls)), None)


def _audit_batch_norm(name: str, layer: Any, batch: Moments | None) -> LayerAudit:
    warnings = []
    branches = layer.branch_names if isinstance(layer, Steered) else (MAIN,)
    for branch in branches:
        statistics = layer.statistics_holder(branch) if isinstance(layer, Steered) else layer
        affine = layer.affine_holder(branch) if isinstance(layer, Steered) else layer
        where = "" if branch == MAIN else f"branch {branch}: "
        warnings += [replace(w, what=where + w.what) for w in _state_warnings(affine, statistics)]
    momentum = getattr(layer, "momentum", None)
    if momentum in _MOMENTUM:
        warnings.append(LayerWarning("momentum", f"momentum {momentum:g}", _MOMENTUM[momentum]))
    drift_mean = drift_std = None
    if batch is not None and layer.running_mean is not None:
        sigma = (layer.running_var + layer.eps).sqrt()
        drift_mean = float(((batch.mean - layer.running_mean).abs() / sigma).mean())
        drift_std = float(((batch.var + layer.eps).sqrt() / sigma).log().mean().exp())
        off = not drift_mean < DRIFT or not 0.5 < drift_std < 2.0
        if off and not any(w.kind == "never trained" for w in warnings):
            what = f"on this data the mean is {drift_mean:.2g} stds off, the std is {drift_std:.2g}x"
            warnings.append(
                LayerWarning("drift", what, "the statistics are of another domain: recalibrate or adapt")
            )
    return LayerAudit(
        name=name,
        kind="batch",
        channels=_channels(layer),
        branches=branches,
        momentum=momentum,
        training=layer.training,
        batches_seen=None
        if layer.running_mean is None
        else int(getattr(layer, "num_batches_tracked", 0) or 0),
        drift_mean=drift_mean,
        drift_std=drift_std,
        warnings=tuple(warnings),
    )


def _state_warnings(affine: Any, statistics: Any) -> Iterable[LayerWarning]:
    mean, var = statistics.running_mean, statistics.running_var
    gains = [t for t in (affine.weight, affine.bias) if t is not None]
    if not all(bool(t.isfinite().all()) for t in gains):
        yield LayerWarning("not finite", "non-finite gain or bias", "restore an earlier checkpoint")
    if mean is None:
        yield LayerWarning(
            "no statistics",
            "keeps no running statistics",
            "an image's output depends on its batch; track them",
        )
        return
    if not (mean.isfinite().all() and var.isfinite().all()):
        yield LayerWarning("not finite", "non-finite running statistics", "recalibrate on clean data")
    elif bool((mean == 0).all()) and bool((var == 1).all()):
        yield LayerWarning(
            "never trained", "running statistics were never trained", "train, or recalibrate on data"
        )
    else:
        negative, dead = int((var < 0).sum()), int(((var >= 0) & (var < DEAD_VARIANCE)).sum())
        if negative:
            yield LayerWarning(
                "negative", f"{negative} channels have a negative variance", "recalibrate on clean data"
            )
        if dead:
            what = f"{dead} of {len(var)} channels are dead (constant)"
            yield LayerWarning(
                "dead channels", what, "prune them or lower the learning rate; their shift has no effect"
            )


def _audit_other(name: str, layer: Any, kind: str) -> LayerAudit:
    warnings = []
    if not all(bool(parameter.isfinite().all()) for parameter in layer.parameters()):
        warnings.append(
            LayerWarning("not finite", "non-finite gain or bias", "restore an earlier checkpoint")
        )
    channels = _channels(layer)
    return LayerAudit(name, kind, channels, (MAIN,), layer.training, tuple(warnings))


def _channels(layer: Any) -> int:
    for attribute in ("num_features", "num_channels"):
        if hasattr(layer, attribute):
            return int(getattr(layer, attribute))
    sizes = getattr(layer, "normalized_shape", None) or (len(layer.weight),)
    return int(sizes[-1])


@torch.no_grad()
def _moments_on(model: nn.Module, batches: Iterable[Any]) -> dict[str, Moments]:
    """The moments of what each batch-norm layer receives, the network as it is in eval mode."""
    probe = deep_clone(model).eval()
    seen: dict[str, list[Moments]] = {}

    def watch(name: str) -> Any:
        return lambda module, inputs: seen.setdefault(name, []).append(moments(inputs[0]))

    for name, module in probe.named_modules():
        if is_batch_norm(module):
            module.register_forward_pre_hook(watch(name))
    for batch in batches:
        probe(images_for(probe, batch))
    return {name: pool(parts) for name, parts in seen.items()}
