"""Certificates are about one fixed function of one image. Models that are none are refused here.

Randomised smoothing needs the base classifier f to be the same at every draw. If the statistics of a
batch enter the output (batch norm on batch statistics, per-batch or streaming adaptation), f changes with
its neighbours, of which the attacked image is one: the draws are not independent and the theorem is void.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trimtab import draws
from trimtab.attacks.guard import says_coupled
from trimtab.types import BadInput

REMEDY = "fix its statistics first, as adapt.frozen(model, images) does"
DEPENDS = (
    "the model's output for an image depends on the other images of its batch, which voids any certificate; "
    + REMEDY
)
ROUNDING = 1e-5
"""Of the largest logit: what may change between batches of the same shape."""
ROUNDING_OF_SIZES = 1e-3
"""The same between batches of different sizes, for which backends may take different kernels."""


@torch.no_grad()
def require_independent(model: nn.Module, images: Tensor) -> int:
    """Refuse a model whose output for an image depends on the batch or on earlier calls; else its classes.

    A model may say so itself. Else the same images are run twice, then beside others, then by themselves.
    """
    if says_coupled(model):
        raise BadInput(DEPENDS)
    noise = torch.rand(images.shape, generator=draws.seeded(1), device="cpu").to(images)
    beside_dark, beside_noise = (torch.cat([images, others]) for others in (torch.zeros_like(images), noise))
    first = _logits(model, beside_dark)
    again, moved, alone = _logits(model, beside_dark), _logits(model, beside_noise), _logits(model, images)

    scale = float(first.abs().max().clamp(min=1e-6))
    own = first[: len(images)]
    if _distance(again, first) > ROUNDING * scale:
        raise BadInput(
            "the model answers the same batch differently from call to call; turn off what draws at random "
            f"in eval mode (drop-out), or {REMEDY}"
        )
    coarse = max(ROUNDING_OF_SIZES, 16 * torch.finfo(first.dtype).eps)
    if max(_distance(moved[: len(images)], own) / ROUNDING, _distance(alone, own) / coarse) > scale:
        raise BadInput(DEPENDS)
    return first.shape[1]


def _distance(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())


def _logits(model: nn.Module, x: Tensor) -> Tensor:
    logits = model(x)
    if not isinstance(logits, Tensor) or logits.dim() != 2 or logits.shape[1] < 2:
        raise BadInput("the model must return logits of shape (N, classes), with at least two classes")
    if not bool(logits.isfinite().all()):
        raise BadInput("the model returns NaN or infinity for noisy images")
    return logits
