"""Check models, images, labels and logits; does an image's output depend on the rest of its batch?"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.types import BadInput

PROBE = 4
"""Number of images that a network is probed with before it is attacked."""


def check_call(model: nn.Module, x: Tensor, y: Tensor) -> None:
    """Raise BadInput unless these are a module, images and their labels, which can be attacked."""
    if not isinstance(model, nn.Module):
        raise BadInput(f"an attack is made on a torch.nn.Module, found a {type(model).__name__}")
    check_images(x, y)


def check_images(x: Tensor, y: Tensor, bounded: bool = True) -> None:
    """Raise BadInput unless x are finite images, in [0, 1] if `bounded`, each with one label in y."""
    if not isinstance(x, Tensor) or not isinstance(y, Tensor):
        kinds = f"{type(x).__name__} and {type(y).__name__}"
        raise BadInput(f"images and labels must be torch tensors, found {kinds}; see torch.as_tensor")
    if not x.is_floating_point():
        raise BadInput(f"images must be floating point in [0, 1], found {x.dtype}; divide bytes by 255")
    check_pairs(x, y)
    if len(x) == 0:
        return
    low, high = (float(end) for end in x.detach().aminmax())  # NaN if there is one
    if not (math.isfinite(low) and math.isfinite(high)):
        raise BadInput("the images contain NaN or infinity")
    if bounded and (low < 0 or high > 1):
        raise BadInput(
            f"pixels must lie in [0, 1], found {low:.3g} to {high:.3g}; put mean and std inside the model "
            "(trimtab.models.wrap) and scale bytes by 1/255"
        )


def check_pairs(x: Tensor, y: Tensor) -> None:
    """Raise BadInput unless every image has one label; broadcasting would hide a mismatch."""
    if y.is_floating_point() or y.dim() != 1:
        raise BadInput(
            f"labels must be class numbers, one integer per image, found {y.dtype} {tuple(y.shape)}"
        )
    if len(x) != len(y):
        raise BadInput(f"{len(x)} images came with {len(y)} labels; give one label per image")


@torch.no_grad()
def check_labels(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Raise BadInput unless the network takes these images and labels; return its logits of the first few."""
    require_dtype(net, x)
    logits = require_logits(net(x[:PROBE]))
    if bool(logits.isnan().any(1).all()):
        raise BadInput("the model returns NaN; look for weights or statistics that are not finite (audit)")
    check_classes(y, logits.shape[1])
    return logits


def require_dtype(net: nn.Module, x: Tensor) -> None:
    """Raise BadInput unless the images are of the network's own dtype."""
    weight = next(net.parameters(), x)
    if weight.is_floating_point() and weight.dtype != x.dtype:
        raise BadInput(f"the images are {x.dtype} and the model is {weight.dtype}; convert one of them")


def check_classes(y: Tensor, outputs: int) -> None:
    """Raise BadInput unless these are labels of a network with this number of outputs."""
    low, high = int(y.min()), int(y.max())
    if outputs == 1:
        raise BadInput("the model has one output; let it return two logits, such as torch.cat([-z, z], 1)")
    if low < 0 or high >= outputs:
        raise BadInput(f"labels must lie in 0..{outputs - 1} for this model, found {low} to {high}")


def require_logits(output: Any, note: str = "") -> Tensor:
    """Return a model's output if it is logits of shape (N, classes), else raise BadInput."""
    if not isinstance(output, Tensor) or output.dim() != 2:
        kind = f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else f"a {type(output).__name__}"
        raise BadInput(f"the model must return logits of shape (N, classes), found {kind}{note}")
    return output


def is_misclassified(logits: Tensor, y: Tensor) -> Tensor:
    """Return for each image whether its largest logit is not its label's; NaN is never correct."""
    return (logits.argmax(1) != y) | logits.isnan().any(1)


def declares_coupling(model: nn.Module) -> bool:
    """Whether a model, or a part of it, declares that images of a batch influence each other."""
    return any([getattr(part, "couples_batch", False) for part in model.modules()])  # noqa: C419, faster


@torch.no_grad()
def couples_batch(model: nn.Module, x: Tensor, logits: Tensor | None = None) -> bool:
    """Return whether an image's output depends on the other images of its batch.

    A model may declare so itself (`couples_batch`); else the first image of `x` is tried in a batch of other
    images. A model whose output is random does not count as coupled.

    Args:
        model: The model, in the mode and setting to probe.
        x: Images (N, ...).
        logits: What the model returns for the first `PROBE` of them, if that is already known.
    """
    if declares_coupling(model):
        return True
    if len(x) < 2:
        return False
    first = model(x[:PROBE]) if logits is None else logits
    if not isinstance(first, Tensor):
        require_logits(first)
    first = first[:1]
    scale = float(first.abs().max().clamp(min=1e-6))
    elsewhere = model(torch.cat([x[:1], 1 - x[1:PROBE]]))[:1]
    if bool((first - elsewhere).abs().max() <= 1e-4 * scale):
        return False
    again = model(x[:PROBE])[:1]
    return bool((first - again).abs().max() <= 1e-6 * scale)
