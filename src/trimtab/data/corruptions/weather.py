"""Weather: snow, frost, fog."""

from __future__ import annotations

import torch
from torch import Tensor

from trimtab.data.corruptions.filters import GRAY, ImageRNG, motion, zoomed
from trimtab.data.corruptions.ice import pictures


def snow(
    x: Tensor,
    rng: ImageRNG,
    mean: float,
    spread: float,
    zoom: float,
    threshold: float,
    radius: float,
    sigma: float,
    keep: float,
) -> Tensor:
    """Flakes fall over a whitened image: enlarged noise above a threshold, blurred downwards, seen twice."""
    flakes = rng.normal(1, *x.shape[-2:]).mul_(spread).add_(mean)
    flakes = zoomed(flakes, zoom)
    flakes = torch.where(flakes < threshold, 0.0, flakes.clamp(0, 1)).mul_(255)
    flakes = motion(flakes, radius, sigma, rng.uniform(draw=1).mul_(90).sub_(135)).round_()
    white = gray(x).mul_(1.5).add_(127.5)
    return (torch.maximum(x, white) - x).mul_(1 - keep).add_(x).add_(flakes).add_(flakes.flip(-2, -1))


def frost(
    x: Tensor, rng: ImageRNG, keep: float, cover: float, scale: float, textures: str | None = None
) -> Tensor:
    """A random piece of a picture of ice, laid over the image."""
    height, width = x.shape[-2:]
    ice = pictures(textures, height, width, scale)
    pieces = []
    for which, down, right in rng.uniform(3).tolist():
        picture = ice[int(which * len(ice))]
        top = int(down * (picture.shape[1] - height))
        left = int(right * (picture.shape[2] - width))
        pieces.append(picture[:, top : top + height, left : left + width])
    layer = torch.stack(pieces).to(x.device)
    return (layer if x.shape[1] == 3 else gray(layer)).mul_(cover).add_(x, alpha=keep)


def fog(x: Tensor, rng: ImageRNG, thickness: float, decay: float) -> Tensor:
    """Plasma clouds are added, and the range brought back to the image's own."""
    height, width = x.shape[-2:]
    side = 1 << (max(height, width) - 1).bit_length()
    clouds = plasma(rng.uniform(side, side).mul_(2).sub_(1), decay)[:, None, :height, :width]
    brightest = x.amax(dim=(1, 2, 3), keepdim=True)
    return (x + clouds * (255 * thickness)) * (brightest / (brightest + 255 * thickness))


def plasma(noise: Tensor, decay: float) -> Tensor:
    """A height map on a torus in [0, 1] by the diamond-square algorithm, from noise (N, S, S) in [-1, 1].

    Each point is set once, to the mean of four neighbors and its own noise times a roughness that falls by
    decay^2 with each halving of the step (the published code multiplies its roughness in twice).
    """
    side = noise.shape[-1]
    height = noise.clone()
    height[:, 0, 0] = 0
    step, rough = side, 100.0**2
    while step >= 2:
        half = step // 2
        corner, center = height[:, ::step, ::step], height[:, half::step, half::step]
        pair = corner + corner.roll(-1, 1)
        center.mul_(rough).add_(pair + pair.roll(-1, 2), alpha=0.25)
        across, along = height[:, ::step, half::step], height[:, half::step, ::step]
        across.mul_(rough).add_(center + center.roll(1, 1) + corner + corner.roll(-1, 2), alpha=0.25)
        along.mul_(rough).add_(center + center.roll(1, 2) + corner + corner.roll(-1, 1), alpha=0.25)
        step, rough = half, rough / decay**2
    flat = height.flatten(1)
    low = flat.amin(1)[:, None, None]
    return (height - low) / (flat.amax(1)[:, None, None] - low)


def gray(x: Tensor) -> Tensor:
    """Gray values (N, 1, H, W)."""
    if x.shape[1] == 1:
        return x.clone()
    red, green, blue = x.split(1, dim=1)
    return (red * GRAY[0]).add_(green, alpha=GRAY[1]).add_(blue, alpha=GRAY[2])
