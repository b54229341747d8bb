"""Picture files: opened, decoded, resized and cropped as an `InputSpec` says.

The arithmetic is that of torchvision's `Resize` and `CenterCrop` on PIL images, and of timm's evaluation
transform where the two differ, so that a network sees the pixels that it was trained and published with.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from trimtab.data.files import FORMATS
from trimtab.io import reading
from trimtab.types import BadInput, InputSpec

LONGEST = 65_536
"""Pixels of the longer side after resizing; beyond lies what is no picture."""
MODES = {"L": 1, "RGB": 3}
"""What pixels may be, and their channels."""
DEEP = ("I", "F")
"""How modes begin whose levels go beyond 255, where Pillow's conversion clips them."""

Form = tuple[tuple[int, int], str]
"""(width, height) and mode of a picture."""


def form(path: Path) -> Form:
    """Read the size and mode of a picture from its header."""
    with _open(path) as image:
        return image.size, image.mode


def decode(path: Path, channels: int) -> Image.Image:
    """Decode a whole picture to gray (1 channel) or RGB (3)."""
    with _open(path) as image, reading(path):
        return image.convert("L" if channels == 1 else "RGB")


def prepare(image: Image.Image, spec: InputSpec, path: Path) -> np.ndarray:
    """Resize and crop a picture to the pixels that `spec` describes, uint8 (H, W, C)."""
    height, width = spec.size
    if (target := spec.resized) is not None:
        sides = _resized_sides(image.size, (target[1], target[0]), spec.crop_mode)
        if max(sides) > LONGEST:
            raise BadInput(f"{path} is too narrow to be resized: it would become {sides[0]}x{sides[1]}")
        image = image.resize(sides, Image.Resampling[spec.interpolation.upper()])
    elif image.size != (width, height):
        raise BadInput(f"{path} is {image.width}x{image.height}, expected {width}x{height}")
    fill = (
        tuple(round(255 * mean) for mean in spec.mean) if spec.crop_mode == "border" else (0,) * spec.channels
    )
    return pixels(_center_crop(image, width, height, fill), spec)


def _resized_sides(sides: tuple[int, int], target: tuple[int, int], mode: str) -> tuple[int, int]:
    """Width and height to which a picture is resized before its center is cropped."""
    if mode == "squash":
        return target
    (width, height), (target_width, target_height) = sides, target
    if mode == "border":
        ratio = max(width / target_width, height / target_height)
    elif target_width == target_height:  # in whole numbers, as torchvision
        short = min(sides)
        return target_width * width // short, target_width * height // short
    else:
        ratio = min(width / target_width, height / target_height)
    return max(1, round(width / ratio)), max(1, round(height / ratio))


def _center_crop(image: Image.Image, width: int, height: int, fill: Sequence[int]) -> Image.Image:
    """The middle of a picture; where it is smaller than the crop, the rest is filled."""
    across, down = max(width - image.width, 0), max(height - image.height, 0)
    if across or down:
        border = (across // 2, down // 2, across - across // 2, down - down // 2)
        image = ImageOps.expand(image, border, fill[0] if len(fill) == 1 else tuple(fill))
    left, top = round((image.width - width) / 2), round((image.height - height) / 2)
    return image.crop((left, top, left + width, top + height))


def stretch(image: Image.Image, spec: InputSpec, box: Sequence[float]) -> np.ndarray:
    """Resize a part of a picture, uint8 (H, W, C); the box has fractions (left, top, width, height)."""
    left, top, across, down = (fraction * side for fraction, side in zip(box, 2 * image.size, strict=True))
    (height, width), how = spec.size, Image.Resampling[spec.interpolation.upper()]
    return pixels(image.resize((width, height), how, (left, top, left + across, top + down)), spec)


def pixels(image: Image.Image, spec: InputSpec) -> np.ndarray:
    """A picture of the right size as an array (H, W, C), also if it has one channel."""
    return np.array(image).reshape(*spec.size, spec.channels)


def _open(path: Path) -> Image.Image:
    """A picture whose pixels are read when they are needed."""
    with reading(path, "a readable image"):
        try:
            image = Image.open(path, formats=FORMATS)
        except Image.DecompressionBombError:
            raise BadInput(f"{path} claims more pixels than any photograph has; remove it") from None
    if image.mode.startswith(DEEP):
        image.close()
        raise BadInput(f"{path} has {image.mode} pixels, of more than 8 bits; convert it to 8 bits first")
    return image
