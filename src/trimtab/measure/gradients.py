"""Loss gradients as pictures: what a change of the image would have to look like to hurt.

Adversarially trained networks have gradients that follow the object. Under noise they lose it, and
adapted statistics bring it back (Nandy et al., figures 2 and 4).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trimtab.attacks.base import check_images, check_labels
from trimtab.attacks.guard import bare, guard, refuse_stream
from trimtab.measure.ligs import input_gradient


def loss_gradients(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The gradient of each image's cross-entropy; give `adapt.per_batch(model)` for the adapted one."""
    check_images(x, y)
    refuse_stream(model)
    if len(x) == 0:
        return torch.zeros_like(x)
    model = bare(model)
    with guard(model):
        check_labels(model, x, y)
        return input_gradient(model, x, y)


def as_picture(gradient: Tensor, deviations: float = 3.0) -> Tensor:
    """Gradients scaled for the eye, each image by its own deviation, into [0, 1]; grey is zero."""
    flat = gradient.flatten(1)
    spread = (deviations * flat.std(1)).clamp(min=1e-12).view(-1, *[1] * (gradient.dim() - 1))
    return (gradient / (2 * spread) + 0.5).clamp(0, 1)
