"""Statistics estimated once on given images, then fixed: adaptive batch norm that a certificate can trust.

Idea      as `per_batch`, on one batch; the result becomes the running statistics
Paper     Nandy et al., section 3, "l2 certification": adapt on noisy images, then freeze
Norm      one pass with source "blend" under `observe`, then `adopt`
Cost      one forward pass over the images
Careful   the images must be out of the attacker's reach. The paper takes noisy *test* batches; training
          images with the same noise are the sound choice.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from trimtab import draws, norm
from trimtab.adapt.per_batch import estimator_named, steered_copy
from trimtab.types import BadInput, number


def frozen(
    model: nn.Module,
    images: Tensor,
    rho: float | str = 1.0,
    blend_of: str = "std",
    provenance: str = "",
    estimator: str = "mean",
) -> nn.Module:
    """A copy of `model` whose running statistics were re-estimated on `images` and stay so.

    The images are one batch: every layer's estimate rests on layers that are adapted already. The result
    is an ordinary model, to be saved, loaded and released like any other; where its statistics come from
    is in `.provenance`, which is saved, too (give `provenance` to say what the images were).
    """
    _check(images)
    rho = number(rho)
    copied = steered_copy(model)
    if rho == 1:
        norm.start_statistics(copied)
    by = estimator_named(estimator)
    steering = norm.use(copied, source="blend", rho=rho, blend_of=blend_of, update=False, estimator=by)
    with torch.no_grad(), steering, norm.observe(copied) as seen:
        copied(norm.images_for(copied, images))
    if rho == 1 and any(batch.n == 1 for batch in seen.values()):
        raise BadInput("one value per channel has no deviation: give more images, or a rho below 1")
    if rho > 0:
        norm.adopt(copied, seen, rho, blend_of)
    what = provenance or "images"
    copied.provenance = f"frozen on {len(images)} {what} (rho={rho:g})"  # type: ignore[assignment]
    return copied


def frozen_under_noise(
    model: nn.Module,
    images: Tensor,
    sigma: float | str,
    seed: int = 0,
    ids: Tensor | Sequence[int] | None = None,
    rho: float | str = 1.0,
    blend_of: str = "std",
    what: str = "images",
) -> nn.Module:
    """`frozen` on images with Gaussian noise as certification draws it: in pixels, not clipped."""
    _check(images)
    sigma = number(sigma)
    noise = draws.normal(images, seed, draws.ids_of(images, ids), draws.purpose("adaptation noise"))
    return frozen(model, images + sigma * noise, rho, blend_of, f"noisy {what} (sigma {sigma:g})")


def _check(images: Tensor) -> None:
    if len(images) == 0 or not images.is_floating_point():
        found = "none" if len(images) == 0 else str(images.dtype)
        raise BadInput(f"adapting needs at least one image, of floating-point pixels, found {found}")
    if not bool(images.isfinite().all()):
        raise BadInput("statistics cannot be estimated on images with NaN or infinity")
