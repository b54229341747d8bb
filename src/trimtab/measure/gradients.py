"""Loss gradients with respect to the image, and how to display them.

The gradients of adversarially trained networks align with the object. Under noise the alignment is lost;
adapted statistics restore it (Nandy et al., figures 2 and 4).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trimtab.attacks.base import refuse_stream
from trimtab.measure.ligs import input_gradient
from trimtab.runtime import check_images, check_labels, guard, unwrap
from trimtab.types import renamed_arguments


def loss_gradients(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the gradient of each image's cross-entropy; see `adapt.per_batch` for an adapted model.

    Pixels may lie outside of [0, 1], as unclipped noise leaves them.
    """
    check_images(x, y, bounded=False)
    refuse_stream(model)
    if len(x) == 0:
        return torch.zeros_like(x)
    model = unwrap(model)
    with guard(model):
        check_labels(model, x, y)
        return input_gradient(model, x, y)


@renamed_arguments(deviations="stds")
def as_picture(gradient: Tensor, stds: float = 3.0) -> Tensor:
    """Scale gradients into [0, 1] for display, each image by its own std; gray is zero.

    Args:
        gradient: Gradients (N, C, H, W).
        stds: How many stds map to black and white.
    """
    flat = gradient.flatten(1)
    limit = (stds * flat.std(1)).clamp(min=1e-12).view(-1, *[1] * (gradient.dim() - 1))
    return (gradient / (2 * limit) + 0.5).clamp(0, 1)
