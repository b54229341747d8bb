"""Augmentation of whole batches, each image by numbers of its own.

Every choice is a function of (seed, image, epoch): it does not depend on the batch, on the process or on
where an epoch was taken up again. `augment` is a list of names, applied in order; `name:value` sets the
strength.

    flip                      mirror left and right, every second time
    crop:4                    shift by up to N pixels in both directions; black comes in
    random-resized-crop:0.08  a part of at least this area, aspect 3/4 to 4/3, stretched to the whole (Szegedy
                              et al. 2015; a side that would not fit is shortened rather than drawn again); of
                              files, named first, of the whole picture
    jitter:0.25               brightness, contrast and saturation, each times 1 - 0.25 to 1 + 0.25
    rotate:2                  rotate by up to N degrees in both directions; black comes in
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
"""Uniform numbers in [0, 1), one per image, a new set for each integer."""


def flip(pixels: Tensor, _: float, draw: Draw) -> Tensor:
    """(N, H, W, C)."""
    both = torch.cat([pixels, pixels.flip(2)])  # then choosing is copying, much cheaper than torch.where
    return both.index_select(0, torch.arange(len(pixels)) + len(pixels) * (draw(0) < 0.5))


def crop(pixels: Tensor, most: float, draw: Draw) -> Tensor:
    """(N, H, W, C), shifted by -most..most pixels."""
    n, height, width, channels = pixels.shape
    pad = int(most)
    padded = F.pad(pixels, (0, 0, pad, pad, pad, pad))
    top, left = ((draw(k) * (2 * pad + 1)).long() for k in (0, 1))
    # A row of the result is one stretch of memory in the padded images: copy stretches, not pixels.
    rows = torch.arange(n)[:, None] * (height + 2 * pad) + top[:, None] + torch.arange(height)  # (N, H)
    starts = (rows * (width + 2 * pad) + left[:, None]) * channels
    stretches = padded.reshape(-1).unfold(0, width * channels, 1)  # overlapping views, no copy
    return stretches.index_select(0, starts.view(-1)).view(pixels.shape)


RESIZED_CROP = "random-resized-crop"


def boxes(least: float, draw: Draw, shapes: Tensor | float = 1.0) -> Tensor:
    """(N, 4): left, top, width, height of each image's part, as fractions of its sides; `shapes` is W / H."""
    area = least + (1 - least) * draw(0)
    aspect = (math.log(3 / 4) + 2 * math.log(4 / 3) * draw(1)).exp()
    across, down = (area * aspect / shapes).sqrt().clamp(max=1), (area / aspect * shapes).sqrt().clamp(max=1)
    return torch.stack([(1 - across) * draw(2), (1 - down) * draw(3), across, down], dim=1)


def random_resized_crop(pixels: Tensor, least: float, draw: Draw) -> Tensor:
    """(N, H, W, C), bilinear."""
    _, height, width, _ = pixels.shape
    left, top, across, down = boxes(least, draw, width / height).unbind(1)
    left, top = 2 * left - (1 - across), 2 * top - (1 - down)  # of its middle, from -1 to 1
    none = torch.zeros_like(left)
    maps = torch.stack([across, none, left, none, down, top], dim=1)
    return resample(as_float(pixels), maps, padding="border").permute(0, 2, 3, 1)


def jitter(pixels: Tensor, strength: float, draw: Draw) -> Tensor:
    """(N, H, W, C): Pillow's brightness, contrast and color, in this order, each by a factor of its own."""
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
    """(N, 1, H, W): the luma of ITU-R 601 of images in color, else the mean over channels."""
    if x.shape[1] != 3:
        return x.mean(1, keepdim=True)
    return (x * x.new_tensor([0.299, 0.587, 0.114]).view(-1, 1, 1)).sum(1, keepdim=True)


def rotate(pixels: Tensor, most: float, draw: Draw) -> Tensor:
    """(N, H, W, C), counterclockwise by -most..most degrees, bilinear."""
    _, height, width, _ = pixels.shape
    angle = math.radians(most) * (2 * draw(0) - 1)
    none, cos, sin = torch.zeros_like(angle), angle.cos(), angle.sin()
    maps = torch.stack([cos, -sin * height / width, none, sin * width / height, cos, none], dim=1)
    return resample(as_float(pixels), maps, padding="zeros").permute(0, 2, 3, 1)


def _augmix(pixels: Tensor, severity: float, draw: Draw) -> Tensor:
    return augmix(as_float(pixels), severity, draw).permute(0, 2, 3, 1)


def mixup(x: Tensor, other: Tensor, weight: float, _: np.random.Generator) -> tuple[Tensor, float]:
    """(N, C, H, W), and the weight of the first."""
    return x.lerp(other, 1 - weight), weight


def cutmix(x: Tensor, other: Tensor, weight: float, generator: np.random.Generator) -> tuple[Tensor, float]:
    """The box covers a fraction 1 - weight of the area; what of it lies outside the image is lost."""
    *_, height, width = x.shape

    def stretch(side: int) -> tuple[int, int]:
        middle, half = generator.uniform(0, side), side * math.sqrt(1 - weight) / 2
        return max(round(middle - half), 0), min(round(middle + half), side)

    (top, bottom), (left, right) = stretch(height), stretch(width)
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
"""What happens to each image, with its usual strength."""
PAIRS: dict[str, tuple[Callable[..., tuple[Tensor, float]], float]] = {
    "mixup": (mixup, 1.0),
    "cutmix": (cutmix, 1.0),
}
"""What mixes an image with another."""
AUGMENT = (*SINGLE, *PAIRS)
"""The names `augment` may hold."""


def parsed(names: Sequence[str]) -> tuple[list[tuple[str, float]], list[tuple[str, float]]]:
    """Names of single images' augmentations and of pairs', in order, with their strengths."""
    strengths: tuple[list[tuple[str, float]], list[tuple[str, float]]] = [], []
    for entry in names:
        name, colon, value = entry.partition(":")
        if name not in AUGMENT:
            raise BadInput(f"no augmentation is called {name!r}; there are {', '.join(AUGMENT)}")
        pairs = name in PAIRS
        usual = (PAIRS if pairs else SINGLE)[name][1]
        strength = number(value) if colon else usual
        if name == "flip" and colon:
            raise BadInput(f"flip has no strength, found {entry!r}; write flip")
        if name == "crop" and (strength < 1 or strength % 1):
            raise BadInput(f"crop shifts by whole pixels, 1 or more, found {entry!r}")
        if strength <= 0 or (name in (RESIZED_CROP, "jitter") and strength > 1):
            raise BadInput(f"{entry!r} is out of range; the usual strength is {name}:{usual:g}")
        strengths[pairs].append((name, strength))
    return strengths
