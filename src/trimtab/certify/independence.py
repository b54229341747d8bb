"""Refuse models whose output for an image depends on other images: no certificate holds for them.

Randomized smoothing requires the same base classifier f for every sample. If batch statistics enter the
output (batch norm on batch statistics, per-batch or streaming adaptation), f depends on the other images of
the batch: the samples are not independent and the theorem does not apply.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trimtab import rng
from trimtab.runtime import declares_coupling, require_logits
from trimtab.types import BadInput

REMEDY = "fix its statistics first, as adapt.frozen(model, images) does"
DEPENDS = (
    "the model's output for an image depends on the other images of its batch, which voids any certificate; "
    + REMEDY
)
ROUNDING = 1e-5
"""Allowed difference between batches of the same shape, relative to the largest logit."""
ROUNDING_OF_SIZES = 1e-3
"""The same between batches of different sizes, for which backends may use different kernels."""


@torch.no_grad()
def require_independent(model: nn.Module, images: Tensor) -> int:
    """Return the model's number of classes; refuse it if its output depends on the batch or earlier calls.

    A model may declare so itself (`couples_batch`). Otherwise the same images are run twice in one batch,
    then with other images, then alone.
    """
    if declares_coupling(model):
        raise BadInput(DEPENDS)
    noise = torch.rand(images.shape, generator=rng.seeded(1), device="cpu").to(images)
    with_black, with_noise = (torch.cat([images, others]) for others in (torch.zeros_like(images), noise))
    first = _logits(model, with_black)
    again, changed = _logits(model, with_black), _logits(model, with_noise)
    alone = _logits(model, images)

    scale = float(first.abs().max().clamp(min=1e-6))
    reference = first[: len(images)]
    if _distance(again, first) > ROUNDING * scale:
        raise BadInput(
            "the model returns different logits for the same batch from call to call; turn off randomness in "
            f"eval mode (dropout), or {REMEDY}"
        )
    coarse = max(ROUNDING_OF_SIZES, 16 * torch.finfo(first.dtype).eps)
    by_others = _distance(changed[: len(images)], reference)
    by_size = _distance(alone, reference)
    if max(by_others / ROUNDING, by_size / coarse) > scale:
        raise BadInput(DEPENDS)
    return first.shape[1]


def _distance(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())


def _logits(model: nn.Module, x: Tensor) -> Tensor:
    logits = require_logits(model(x), ", with at least two classes")
    if logits.shape[1] < 2:
        raise BadInput("the model has one output; let it return two logits, such as torch.cat([-z, z], 1)")
    if not bool(logits.isfinite().all()):
        raise BadInput("the model returns NaN or infinity for noisy images")
    return logits
