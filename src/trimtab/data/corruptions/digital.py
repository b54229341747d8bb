"""Digital corruptions: brightness, contrast, saturation, elastic transform, pixelation, JPEG."""

from __future__ import annotations

import io
from functools import cache

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from trimtab.data.corruptions.filters import ImageRNG, gaussian, sample


def contrast(x: Tensor, rng: ImageRNG, factor: float) -> Tensor:
    """Move each channel towards its mean."""
    # Levels are whole numbers, so the sum in double precision is exact in every order.
    mean = x.sum(dim=(2, 3), keepdim=True, dtype=torch.float64) / (x.shape[2] * x.shape[3])
    return (x * factor).add_((mean * (1 - factor)).float())


def brightness(x: Tensor, rng: ImageRNG, amount: float) -> Tensor:
    """Raise the value of HSV; hue and saturation stay: channels are scaled alike, black turns gray."""
    value = x.amax(dim=1, keepdim=True)
    raised = (value + 255 * amount).clamp_(max=255)
    return torch.where(value > 0, x * (raised / value), raised)


def saturate(x: Tensor, rng: ImageRNG, factor: float, offset: float) -> Tensor:
    """Scale and shift the saturation of HSV; hue and value stay. A gray image is returned as it is.

    The distances of the channels from their maximum are in proportion to the saturation; a gray pixel has hue
    0 by convention and turns red when the saturation is shifted.
    """
    if x.shape[1] == 1:
        return x
    value = x.amax(dim=1, keepdim=True)
    below = value - x
    saturation = below.amax(dim=1, keepdim=True) / value.clamp(min=1)
    target = (saturation * factor + offset).clamp_(max=1)
    red = (value * offset) * torch.tensor([0.0, 1.0, 1.0], device=x.device).view(1, 3, 1, 1)
    return value - torch.where(saturation > 0, below * (target / saturation), red)


def elastic_transform(x: Tensor, rng: ImageRNG, strength: float, smoothness: float, affine: float) -> Tensor:
    """Apply a random affine map and a smooth random displacement; lengths are fractions of the short side."""
    height, width = x.shape[-2:]
    side = min(height, width)
    ys, xs = torch.meshgrid(
        torch.arange(height, device=x.device), torch.arange(width, device=x.device), indexing="ij"
    )
    if affine:
        shifts = rng.uniform(3, 2).mul_(2 * affine * side).sub_(affine * side)
        x = affine_map(x, shifts, ys, xs)
    if strength:
        fields = rng.uniform(2, height, width, draw=1).mul_(2).sub_(1)
        fields = gaussian(fields, smoothness * side, truncate=3.0, border="reflect").mul_(strength * side)
        x = sample(x, ys + fields[:, 1], xs + fields[:, 0])
    return x


def affine_map(x: Tensor, shifts: Tensor, ys: Tensor, xs: Tensor) -> Tensor:
    """Apply the affine map that moves three corners of a central square by `shifts`, (N, 3, 2) in (x, y)."""
    height, width = x.shape[-2:]
    reach = min(height, width) // 3
    corners = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]]) * reach
    corners = (corners + torch.tensor([width // 2, height // 2])).double()
    ones = torch.ones(len(x), 3, 1, dtype=torch.float64)
    moved = torch.cat((corners + shifts.cpu().double(), ones), dim=2)  # where the corners go, (N, 3, 3)
    back = torch.linalg.solve(moved, corners.expand(len(x), 3, 2)).float().to(x.device)  # (N, 3, 2)
    along_x, along_y, constant = back[..., None, None].unbind(1)  # (N, 2, 1, 1) each
    read = along_x * xs + along_y * ys + constant  # (N, 2, H, W)
    return sample(x, read[:, 1], read[:, 0], mirror_centers=True)


def pixelate(x: Tensor, rng: ImageRNG, factor: float) -> Tensor:
    """Shrink by box averages, as Pillow does, and enlarge by nearest neighbor."""
    height, width = x.shape[2:]
    x = _box_means(x, int(height * factor)).transpose(2, 3).contiguous()  # rows are far faster to select
    x = _box_means(x, int(width * factor)).to(torch.uint8)
    return _repeated(_repeated(x, width).transpose(2, 3).contiguous(), height)


def _repeated(x: Tensor, rows: int) -> Tensor:
    """Enlarge to this number of rows by nearest neighbor."""
    centers = (torch.arange(rows, device=x.device) + 0.5) * (x.shape[2] / rows)
    return x.index_select(2, centers.long())


def _box_means(x: Tensor, rows: int) -> Tensor:
    """Shrink to this number of rows by means over boxes of rows, rounded to whole levels."""
    members, weights = _boxes(x.shape[2], rows)
    total = x.new_full((*x.shape[:2], rows, x.shape[3]), 0.5)
    for member, weight in zip(members.to(x.device), weights.to(x.device), strict=True):
        total.addcmul_(x.index_select(2, member), weight[:, None])
    return total.floor_()


@cache
def _boxes(long: int, short: int) -> tuple[Tensor, Tensor]:
    """Return each box's pixels (whose center is inside) and their weights, both (largest box, short)."""
    reach = long / short / 2
    away = (np.arange(long) + 0.5) - (np.arange(short)[:, None] + 0.5) * (long / short)  # (short, long)
    member = (away > -reach) & (away <= reach)
    first, count = member.argmax(1), member.sum(1)
    place = np.arange(count.max())[:, None]
    weights = np.where(place < count, 1 / count, 0.0)
    return torch.from_numpy(np.minimum(first + place, long - 1)), torch.from_numpy(weights).float()


def jpeg_compression(x: Tensor, rng: ImageRNG, quality: float) -> Tensor:
    """Encode and decode with Pillow, one image at a time: threads would only wait for each other's GIL."""
    images = torch.stack(x.to("cpu", torch.uint8).unbind(1), dim=-1).numpy()  # (N, H, W, C)
    coded = np.empty_like(images)
    for image, target in zip(images, coded, strict=True):
        _through_jpeg(image, target, int(quality))
    return torch.from_numpy(coded).permute(0, 3, 1, 2).to(x.device)


def _through_jpeg(image: np.ndarray, coded: np.ndarray, quality: int) -> None:
    height, width, channels = image.shape
    mode = "RGB" if channels == 3 else "L"
    file = io.BytesIO()
    Image.frombuffer(mode, (width, height), image, "raw", mode, 0, 1).save(file, "JPEG", quality=quality)
    pixels = Image.open(file, formats=["JPEG"]).tobytes()
    coded[...] = np.frombuffer(pixels, np.uint8).reshape(image.shape)
