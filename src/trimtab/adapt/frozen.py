"""Statistics estimated once on given images, then fixed: adaptive batch norm that can be certified.

Idea      mu = rho mu_images + (1 - rho) mu_train,  s = rho s_images + (1 - rho) s_train, once; the result
          becomes the running statistics
Paper     Nandy et al., section 3, "l2 certification": adapt on noisy images, then freeze
Noise     N(0, sigma^2 I) in pixels, not clipped to [0, 1], as certification and noise conditions have it
Norm      one pass with source "blend" under `observe`, then `set_statistics`
Cost      one forward pass over the images
Careful   the images must be out of the attacker's reach. The paper takes noisy *test* batches; training
          images with the same noise are the sound choice.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from trimtab import norm, rng
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
    """Return a copy of `model` whose running statistics are re-estimated on `images` and then fixed.

    The images are one batch: every layer is estimated on the output of layers that are adapted already. The
    result is an ordinary model, to be saved, loaded and released like any other; its `.provenance`, which is
    saved with it, records where its statistics come from.

    Args:
        model: A model with batch norm; it is not modified.
        images: The images (N, C, H, W) to estimate on.
        rho: Weight of the estimate; the running statistics have weight 1 - rho.
        blend_of: What is blended: "std" (the paper) or "var".
        provenance: What the images are; recorded in `.provenance`.
        estimator: "mean", or "median" (median and MAD).
    """
    _check(images)
    rho = number(rho)
    copied = steered_copy(model)
    if rho == 1:
        norm.track_statistics(copied)
    moments = estimator_named(estimator)
    steering = norm.use(copied, source="blend", rho=rho, blend_of=blend_of, update=False, estimator=moments)
    with torch.no_grad(), steering, norm.observe(copied) as seen:
        copied(norm.images_for(copied, images))
    if rho == 1 and any(batch.n == 1 for batch in seen.values()):
        raise BadInput("one value per channel has no std: give more images, or a rho below 1")
    if rho > 0:
        norm.set_statistics(copied, seen, rho, blend_of)
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
    *,
    clip: bool = False,
) -> nn.Module:
    """Return `frozen(model, images + noise)` with the Gaussian noise of certification.

    Args:
        model: A model with batch norm; it is not modified.
        images: The images (N, C, H, W) that the noise is added to.
        sigma: Std of the noise, in pixels.
        seed: Seed of the noise.
        ids: The images' indices in their set.
        rho: As in `frozen`.
        blend_of: As in `frozen`.
        what: What the images are; recorded in `.provenance`.
        clip: Whether noisy pixels are clipped to [0, 1]; certificates and the paper do not clip.
    """
    _check(images)
    sigma = number(sigma)
    noise = rng.normal(images, seed, rng.ids_of(images, ids), rng.purpose("adaptation noise"))
    noisy = images + sigma * noise
    clipped = "clipped to [0, 1]" if clip else "unclipped"
    provenance = f"noisy {what} (sigma {sigma:g}, {clipped})"
    return frozen(model, noisy.clamp(0, 1) if clip else noisy, rho, blend_of, provenance)


def _check(images: Tensor) -> None:
    if len(images) == 0 or not images.is_floating_point():
        given = "none" if len(images) == 0 else str(images.dtype)
        raise BadInput(f"adapting needs at least one image, of floating-point pixels, found {given}")
    if not bool(images.isfinite().all()):
        raise BadInput("statistics cannot be estimated on images with NaN or infinity")
