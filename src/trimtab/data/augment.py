"""Augmentation of whole batches, with random numbers of its own for each image.

Every choice is a function of (seed, image, epoch): it does not depend on the batch, on the process or on
where an epoch was resumed. `augment` is a list of names, applied in order; `name:value` sets the strength.

    flip                      mirror left and right, with probability 1/2
    crop:4                    shift by up to N pixels in both directions, padded with black
    random-resized-crop:0.08  crop at least this fraction of the area, aspect 3/4 to 4/3, and resize it to the
                              full size (Szegedy et al. 2015; a side that is too long is shortened, where
                              torchvision tries again). Listed first, it crops image files before they are
                              resized
    jitter:0.25               multiply brightness, contrast and saturation, each by 1 - 0.25 to 1 + 0.25
    rotate:2                  rotate by up to N degrees in both directions, padded with black
    augmix:3                  AugMix of this severity, see augmix.py
    mixup:1                   convex combinations of two images and their labels (Zhang et al. 2018)
    cutmix:1                  a box of one image in another (Yun et al. 2019)

mixup and cutmix come last and give soft labels; their value is the a of Beta(a, a). As in their papers one
weight (and one box) is drawn per batch; an image's partner is its neighbor in the shuffled batch. With both,
each batch gets one of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from trimtab.data.augmix import augmix, resample
from trimtab.data.sets import as_float
from trimtab.types import BadInput, number

Draw: TypeAlias = Callable[[int], Tensor]
"""Returns uniform random numbers in [0, 1), (N,): one per image, others for each integer."""


def flip(pixels: Tensor, _: float, draw: Draw) -> Tensor:
    """Mirror left and right with probability 1/2, (N, H, W, C)."""
    both = torch.cat([pixels, pixels.flip(2)])  # to choose by copying rows, much cheaper than torch.where
    return both.index_select(0, torch.arange(len(pixels)) + len(pixels) * (draw(0) < 0.5))


def crop(pixels: Tensor, max_shift: float, draw: Draw) -> Tensor:
    """Shift by -max_shift..max_shift pixels in both directions, (N, H, W, C)."""
    n, height, width, channels = pixels.shape
    pad = int(max_shift)
    padded = F.pad(pixels, (0, 0, pad, pad, pad, pad))
    top, left = ((draw(k) * (2 * pad + 1)).long() for k in (0, 1))
    # A row of the result is contiguous in the padded images: copy rows, not pixels.
    rows = torch.arange(n)[:, None] * (height + 2 * pad) + top[:, None] + torch.arange(height)  # (N, H)
    starts = (rows * (width + 2 * pad) + left[:, None]) * channels
    windows = padded.reshape(-1).unfold(0, width * channels, 1)  # overlapping views, no copy
    return windows.index_select(0, starts.view(-1)).view(pixels.shape)


RESIZED_CROP = "random-resized-crop"


def boxes(min_area: float, draw: Draw, shapes: Tensor | float = 1.0) -> Tensor:
    """Draw a crop of each image: left, top, width, height as fractions of its sides, (N, 4).

    Args:
        min_area: Smallest fraction of the area.
        draw: The random numbers.
        shapes: Width / height of the images.
    """
    area = min_area + (1 - min_area) * draw(0)
    aspect = (math.log(3 / 4) + 2 * math.log(4 / 3) * draw(1)).exp()
    w, h = (area * aspect / shapes).sqrt().clamp(max=1), (area / aspect * shapes).sqrt().clamp(max=1)
    return torch.stack([(1 - w) * draw(2), (1 - h) * draw(3), w, h], dim=1)


def random_resized_crop(pixels: Tensor, min_area: float, draw: Draw) -> Tensor:
    """Resize a random crop of each image to the full size, bilinear, (N, H, W, C)."""
    _, height, width, _ = pixels.shape
    left, top, w, h = boxes(min_area, draw, width / height).unbind(1)
    x, y = 2 * left - (1 - w), 2 * top - (1 - h)  # the center of the box, where the image is [-1, 1]^2
    zero = torch.zeros_like(x)
    maps = torch.stack([w, zero, x, zero, h, y], dim=1)
    return resample(as_float(pixels), maps, padding="border").permute(0, 2, 3, 1)


def jitter(pixels: Tensor, strength: float, draw: Draw) -> Tensor:
    """Scale brightness, contrast and saturation, in this order, as Pillow does, (N, H, W, C)."""
    x = as_float(pixels)  # (N, C, H, W)
    brightness, contrast, saturation = (
        (1 + strength * (2 * draw(k) - 1)).to(x.dtype).view(-1, 1, 1, 1) for k in range(3)
    )
    x = (brightness * x).clamp(0, 1)
    mean = _gray(x).mean((1, 2, 3), keepdim=True)
    x = (mean + contrast * (x - mean)).clamp(0, 1)
    gray = _gray(x)
    return (gray + saturation * (x - gray)).clamp(0, 1).permute(0, 2, 3, 1)


def _gray(x: Tensor) -> Tensor:
    """Return the luma (ITU-R 601) of RGB images, else the mean over channels, (N, 1, H, W)."""
    if x.shape[1] != 3:
        return x.mean(1, keepdim=True)
    return (x * x.new_tensor([0.299, 0.587, 0.114]).view(-1, 1, 1)).sum(1, keepdim=True)


def rotate(pixels: Tensor, max_angle: float, draw: Draw) -> Tensor:
    """Rotate by -max_angle..max_angle degrees, bilinear, (N, H, W, C)."""
    _, height, width, _ = pixels.shape
    angle = math.radians(max_angle) * (2 * draw(0) - 1)
    zero, cos, sin = torch.zeros_like(angle), angle.cos(), angle.sin()
    maps = torch.stack([cos, -sin * height / width, zero, sin * width / height, cos, zero], dim=1)
    return resample(as_float(pixels), maps, padding="zeros").permute(0, 2, 3, 1)


def _augmix(pixels: Tensor, severity: float, draw: Draw) -> Tensor:
    return augmix(as_float(pixels), severity, draw).permute(0, 2, 3, 1)


def mixup(x: Tensor, other: Tensor, weight: float, _: np.random.Generator) -> tuple[Tensor, float]:
    """Return the weighted means of image pairs, (N, C, H, W), and the weight of the first images."""
    return x.lerp(other, 1 - weight), weight


def cutmix(x: Tensor, other: Tensor, weight: float, generator: np.random.Generator) -> tuple[Tensor, float]:
    """Paste a box of the other images into the first; return them and the weight of the first images.

    The box has a fraction 1 - weight of the area, less what lies outside the image.
    """
    *_, height, width = x.shape

    def interval(side: int) -> tuple[int, int]:
        middle, half = generator.uniform(0, side), side * math.sqrt(1 - weight) / 2
        return max(round(middle - half), 0), min(round(middle + half), side)

    (top, bottom), (left, right) = interval(height), interval(width)
    mixed = x.clone()
    mixed[..., top:bottom, left:right] = other[..., top:bottom, left:right]
    return mixed, 1 - (bottom - top) * (right - left) / (height * width)


SINGLE: dict[str, tuple[Callable[[Tensor, float, Draw], Tensor], float]] = {
    "flip": (flip, 1.0),
    "crop": (crop, 4.0),
    RESIZED_CROP: (random_resized_crop, 0.08),
    "jitter": (jitter, 0.25),
    "rotate": (rotate, 2.0),
    "augmix": (_augmix, 3.0),
}
"""Augmentations of single images, with their default strengths."""
PAIRS: dict[str, tuple[Callable[..., tuple[Tensor, float]], float]] = {
    "mixup": (mixup, 1.0),
    "cutmix": (cutmix, 1.0),
}
"""Augmentations that mix pairs of images, with their default strengths."""
AUGMENT = (*SINGLE, *PAIRS)
"""All names that `augment` takes."""


def parse_augment(names: Sequence[str]) -> tuple[list[tuple[str, float]], list[tuple[str, float]]]:
    """Return names and strengths of the augmentations of single images, and of those of pairs, in order."""
    singles: list[tuple[str, float]] = []
    pairs: list[tuple[str, float]] = []
    for entry in names:
        name, colon, value = entry.partition(":")
        if name not in AUGMENT:
            raise BadInput(f"no augmentation is called {name!r}; there are {', '.join(AUGMENT)}")
        _, default = PAIRS[name] if name in PAIRS else SINGLE[name]
        strength = number(value) if colon else default
        if name == "flip" and colon:
            raise BadInput(f"flip has no strength, found {entry!r}; write flip")
        if name == "crop" and (strength < 1 or strength % 1):
            raise BadInput(f"crop shifts by whole pixels, 1 or more, found {entry!r}")
        if strength <= 0 or (name in (RESIZED_CROP, "jitter") and strength > 1):
            raise BadInput(f"{entry!r} is out of range; the usual strength is {name}:{default:g}")
        (pairs if name in PAIRS else singles).append((name, strength))
    return singles, pairs
