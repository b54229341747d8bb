"""Make normalization layers of any kind, and swap the kind in any model."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torch import Tensor, nn

from trimtab.norm.layer import Steered, after
from trimtab.norm.surgery import is_batch_norm
from trimtab.types import BadInput

KINDS = ("bn", "gn", "in", "ln", "none")


class InstanceNorm1d(nn.InstanceNorm1d):
    """Instance normalization of (N, C, L) only: the stock layer reads a batch (N, C) as one image (C, L)."""

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() != 3:
            raise BadInput(
                f"instance normalization needs features with positions (N, C, L), found shape "
                f"{tuple(input.shape)}; take gn or ln"
            )


def make(kind: str, channels: int, dims: int = 2) -> nn.Module:
    """Make a normalization layer for features (N, channels, ...) with `dims` spatial axes.

    Args:
        kind: `"bn"`, `"gn"` (32 groups, fewer if a group would have less than two channels), `"in"`, `"ln"`
            (one group: each image over all channels and positions) or `"none"`.
        channels: Number of channels.
        dims: Number of spatial axes.
    """
    if kind == "bn":
        return (nn.BatchNorm1d, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[dims](channels)
    if kind == "gn":
        groups = next(g for g in range(min(32, max(channels // 2, 1)), 0, -1) if channels % g == 0)
        return nn.GroupNorm(groups, channels)
    if kind == "in":
        if dims == 0:
            raise BadInput("instance normalization needs features with positions, found a layer on (N, C)")
        return (InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)[dims - 1](channels, affine=True)
    if kind == "ln":
        return nn.GroupNorm(1, channels)
    if kind == "none":
        return nn.Identity()
    raise BadInput(f"{kind!r} is no kind of normalization; use one of {', '.join(KINDS)}")


def swap(model: nn.Module, kind: str, only: Collection[str] | None = None) -> nn.Module:
    """Replace every batch-norm layer of `model`, in place, by a fresh one of another kind; return the model.

    Gains start at one and biases at zero, except that a constant gain is kept (residual networks start
    some gains at zero on purpose). The activation of a fused layer (timm's) is kept. Trained statistics do
    not carry over between kinds, so the network must be trained again.

    Args:
        model: A network with batch-norm layers.
        kind: One of `KINDS`.
        only: Names of the layers to replace; all if None.
    """
    if is_batch_norm(model):
        raise BadInput("the model is itself a batch-norm layer; swap works on a network that contains some")
    make(kind, 1)  # raises on an unknown kind before anything is replaced
    modules = dict(model.named_modules())
    for name in only or ():
        if name not in modules or not is_batch_norm(modules[name]):
            raise BadInput(f"{name} is no batch-norm layer of this {type(model).__name__}")
    successors: dict[nn.Module, nn.Module] = {}  # a layer used in two places stays one layer
    for path, parent in modules.items():
        for name, old in [(n, m) for n, m in parent._modules.items() if m is not None and is_batch_norm(m)]:
            if only is not None and (f"{path}.{name}" if path else name) not in only:
                continue
            if old not in successors:
                successors[old] = _successor(old, kind)
            setattr(parent, name, successors[old])
    return model


def _successor(old: nn.Module, kind: str) -> nn.Module:
    like: Any = old.weight if getattr(old, "weight", None) is not None else old.running_mean
    channels: Any = getattr(old, "num_features", None) or len(like)  # a frozen layer does not name them
    new = make(kind, channels, _dims(old)).to(like)
    gain, fresh = getattr(old, "weight", None), getattr(new, "weight", None)
    if gain is not None and fresh is not None and bool((gain == gain[0]).all()):
        fresh.data.fill_(gain[0].item())
    for module in after(old) if kind == "none" else ():
        # No layer before it makes a copy now, and others may read its input.
        module.inplace = False  # type: ignore[assignment]
    new = nn.Sequential(new, *after(old)) if after(old) else new
    return new.train(old.training)


def _dims(layer: nn.Module) -> int:
    stock = layer.stock_class if isinstance(layer, Steered) else type(layer)
    for kind, dims in ((nn.BatchNorm1d, 1), (nn.BatchNorm3d, 3)):
        if issubclass(stock, kind):
            return dims
    return 2
