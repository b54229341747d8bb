"""Images as PNG: single ones, strips of clean image, change and result, and labeled grids."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from trimtab.types import BadInput

SIDE, LARGEST = 96, 128
"""Small images are enlarged to about the first height in pixels, large ones are reduced to the second."""
_INK, _PAPER, _GAP = (60, 64, 72), (255, 255, 255), 6


@dataclass(frozen=True)
class Picture:
    """One image with its caption."""

    png: bytes
    caption: str
    alt: str
    """A description for screen readers."""


@dataclass(frozen=True)
class Gallery:
    """Pictures under one heading."""

    title: str
    about: str
    """How to read the pictures, in a sentence."""
    pictures: tuple[Picture, ...]


def png(image: Tensor, scale: int | None = None) -> bytes:
    """Return one image (C, H, W) with pixels in [0, 1] as PNG, enlarged without smoothing."""
    return _write(_picture(image, scale))


def gradient(image: Tensor) -> Tensor:
    """Map a signed image (..., C, H, W) to [0, 1]: gray is 0, the largest absolute value black or white."""
    largest = image.abs().amax(dim=(-3, -2, -1), keepdim=True).clamp_min(1e-12)
    return 0.5 + image / (2 * largest)


def examples(
    title: str,
    clean: Tensor,
    changed: Tensor,
    labels: Sequence[int],
    before: Sequence[int],
    after: Sequence[int],
    classes: Sequence[str],
    adapted: Sequence[int] | None = None,
) -> Gallery:
    """Return strips of image, change and result (each N, C, H, W), with the predicted classes.

    Args:
        title: the heading.
        clean: images.
        changed: what was made of them.
        labels: their labels.
        before: predictions of the images.
        after: predictions of the changed images.
        classes: names of the classes.
        adapted: predictions of the changed images with the statistics of their batch, if there are any.
    """
    if not len(clean) == len(changed) == len(labels) == len(before) == len(after):
        raise BadInput("examples need as many changed images, labels and predictions as clean images")
    known = dict(enumerate(classes))
    strips = []
    third = [None] * len(clean) if adapted is None else adapted
    for x, z, *predicted, mended in zip(clean, changed, labels, before, after, third, strict=True):
        gap = torch.ones_like(x[..., :2])
        panels = torch.cat([x, gap, gradient(z - x), gap, z], dim=-1)
        label, was, now = (known.get(index, f"class {index}") for index in predicted)
        caption = f"{was} → {now}" + (f" (a {label})" if was != label else "")
        if mended is not None:
            again = known.get(mended, f"class {mended}")
            caption += f"; adapted: {again} {'✓' if again == label else '✗'}"
        description = f"{label}, the change to it, and the result: predicted {was}, then {now}"
        strips.append(Picture(png(panels), caption, description))
    about = "Each strip: the image, the change (gray is none, scaled to be visible), and the result. "
    about += "Below: the predicted class before → after."
    if adapted is not None:
        about += " Adapted: predicted with the statistics of the changed batch."
    return Gallery(title, about, tuple(strips))


def grid(
    rows: Sequence[Tensor], row_names: Sequence[str], column_names: Sequence[str], scale: int | None = None
) -> bytes:
    """Return images in named rows (each N, C, H, W) under named columns as PNG."""
    if len(rows) != len(row_names) or any(len(row) != len(column_names) for row in rows):
        raise BadInput(
            f"a grid needs a name per row and per column, found {len(row_names)} and {len(column_names)} for "
            f"rows of {[len(row) for row in rows]}"
        )
    cells = [[_picture(image, scale) for image in row] for row in rows]
    width, height = (max(size) for size in zip(*(c.size for line in cells for c in line), strict=True))
    font = ImageFont.load_default(12)
    margin = int(max(font.getlength(name) for name in row_names)) + 2 * _GAP
    head = 24
    size = (margin + len(column_names) * (width + _GAP), head + len(rows) * (height + _GAP))
    whole = Image.new("RGB", size, _PAPER)
    draw = ImageDraw.Draw(whole)
    for j, name in enumerate(column_names):
        draw.text((margin + j * (width + _GAP) + width / 2, head / 2), name, _INK, font, anchor="mm")
    for i, (name, line) in enumerate(zip(row_names, cells, strict=True)):
        top = head + i * (height + _GAP)
        draw.text((margin - _GAP, top + height / 2), name, _INK, font, anchor="rm")
        for j, cell in enumerate(line):
            whole.paste(cell, (margin + j * (width + _GAP), top))
    return _write(whole)


def _picture(image: Tensor, scale: int | None) -> Image.Image:
    if image.dim() != 3 or image.shape[0] not in (1, 3):
        raise BadInput(
            f"a picture is one image of 1 or 3 channels (C, H, W), found shape {tuple(image.shape)}"
        )
    pixels = (image.detach().cpu().float().clamp(0, 1) * 255).round().byte()
    drawn = Image.fromarray(pixels.expand(3, -1, -1).permute(1, 2, 0).contiguous().numpy())
    if scale is None and drawn.height > LARGEST:
        return drawn.resize((round(drawn.width * LARGEST / drawn.height), LARGEST), Image.Resampling.LANCZOS)
    factor = scale or max(1, round(SIDE / drawn.height))
    return drawn.resize((drawn.width * factor, drawn.height * factor), Image.Resampling.NEAREST)


def _write(picture: Image.Image) -> bytes:
    out = io.BytesIO()
    picture.save(out, "PNG", optimize=True)
    return out.getvalue()
