"""Shared by several corruptions: random numbers, Gaussian smoothing, zoom, motion blur, resampling.

Inside this package images are levels 0..255 in float32, (N, C, H, W). The result for an image is
bit-identical in any batch, which rules out some ways of computing it (sums split by the batch, batched FFTs).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from trimtab import rng

GRAY = (0.299, 0.587, 0.114)
"""The weights of red, green and blue in a gray value (ITU-R 601)."""


@dataclass(frozen=True)
class ImageRNG:
    """Random numbers for one corruption at one severity, with a separate stream for every image."""

    seed: int
    ids: Sequence[int]
    stream: int
    device: torch.device

    def uniform(self, *shape: int, draw: int = 0) -> Tensor:
        """Return uniform numbers in [0, 1), (N, *shape)."""
        return rng.uniform(self._like(shape), self.seed, self.ids, rng.key(self.stream, draw))

    def normal(self, *shape: int, draw: int = 0) -> Tensor:
        """Return standard normal numbers, (N, *shape)."""
        return rng.normal(self._like(shape), self.seed, self.ids, rng.key(self.stream, draw))

    def _like(self, shape: tuple[int, ...]) -> Tensor:
        return torch.empty(len(self.ids), *shape, device=self.device)


def gaussian(x: Tensor, sigma: float, truncate: float = 4.0, border: str = "nearest") -> Tensor:
    """Smooth the last two dimensions as SciPy's `gaussian_filter` with the same border rule does.

    A one-dimensional filter with its border rule is a banded matrix, so smoothing is two matrix products,
    computed in blocks to skip what is outside the band.
    """
    height, width = x.shape[-2:]
    radius = int(truncate * sigma + 0.5)
    rows = _gaussian_matrix(height, sigma, radius, border).to(x)
    columns = _gaussian_matrix(width, sigma, radius, border).to(x)
    half, out = torch.empty_like(x), torch.empty_like(x)
    for to, read in _blocks(height, radius):
        half[..., to, :] = rows[to, read] @ x[..., read, :]
    for to, read in _blocks(width, radius):
        out[..., to] = half[..., read] @ columns[to, read].T
    return out


def _blocks(size: int, radius: int, block: int = 64) -> Iterator[tuple[slice, slice]]:
    """Yield blocks of outputs, each with the inputs within `radius` of it."""
    for start in range(0, size, block):
        yield slice(start, start + block), slice(max(0, start - radius), start + block + radius)


@cache
def _gaussian_matrix(size: int, sigma: float, radius: int, border: str) -> Tensor:
    offsets = np.arange(-radius, radius + 1)
    weights = np.exp(-0.5 * (offsets / sigma) ** 2)
    weights /= weights.sum()
    read = np.arange(size)[:, None] + offsets  # (size, 2 radius + 1)
    if border == "nearest":
        read = read.clip(0, size - 1)
    else:  # reflect about the outer edge of the first and last pixel: c b a | a b c | c b a
        read = read % (2 * size)
        read = np.minimum(read, 2 * size - 1 - read)
    matrix = np.zeros((size, size))
    np.add.at(matrix, (np.arange(size)[:, None], read), weights)
    return torch.from_numpy(matrix)


def zoomed(x: Tensor, factor: float) -> Tensor:
    """Enlarge the middle of the image by `factor` (bilinear, corners aligned)."""
    height, width = x.shape[-2:]
    tall, wide = math.ceil(height / factor), math.ceil(width / factor)
    top, left = (height - tall) // 2, (width - wide) // 2
    size = round(tall * factor), round(wide * factor)  # at least the image's own
    large = F.interpolate(
        x[..., top : top + tall, left : left + wide], size=size, mode="bilinear", align_corners=True
    )
    top, left = (size[0] - height) // 2, (size[1] - width) // 2
    return large[..., top : top + height, left : left + width]


def motion(x: Tensor, radius: float, sigma: float, angles: Tensor) -> Tensor:
    """Blur as ImageMagick's motion blur: a one-sided Gaussian along each image's angle (N,), in degrees.

    The trail is 2 radius + 1 whole-pixel shifts, edge pixels repeated. Shifts that fall on the same pixel
    are merged; a shift beyond the image ends the trail.
    """
    height, width = x.shape[-2:]
    steps = np.arange(2 * int(radius) + 1)
    weights = np.exp(-(steps**2) / (2 * sigma**2))
    weights /= weights.sum()
    direction = np.deg2rad(angles.double().cpu().numpy())[:, None]  # (N, 1)
    down = np.ceil(steps * np.sin(direction) - 0.5).astype(int)  # (N, steps)
    right = np.ceil(steps * np.cos(direction) - 0.5).astype(int)
    top, left = max(0, -down.min()), max(0, -right.min())
    wide = F.pad(x, (left, max(0, right.max()), top, max(0, down.max())), mode="replicate")
    out = torch.zeros_like(x)
    for blurred, source, shifts in zip(out, wide, zip(down, right, strict=True), strict=True):
        trail: dict[tuple[int, int], float] = {}
        for dy, dx, weight in zip(*shifts, weights, strict=True):
            if abs(dy) >= height or abs(dx) >= width:
                break
            trail[dy, dx] = trail.get((dy, dx), 0.0) + float(weight)
        for (dy, dx), weight in trail.items():
            y0, x0 = top + dy, left + dx
            blurred.add_(source[:, y0 : y0 + height, x0 : x0 + width], alpha=weight)
    return out


def sample(x: Tensor, ys: Tensor, xs: Tensor, mirror_centers: bool = False) -> Tensor:
    """Read the images at pixel positions (N, H, W), bilinear, mirrored at the border.

    The mirror lies on the outer edge of the border pixels (SciPy's `reflect`) or, with `mirror_centers`, on
    their centers (OpenCV's `BORDER_REFLECT_101`).
    """
    height, width = x.shape[-2:]
    edge = 0 if mirror_centers else 1  # grid_sample's coordinates run over size - 1 or size pixels
    grid = torch.stack(
        ((2 * xs + edge) / (width - 1 + edge) - 1, (2 * ys + edge) / (height - 1 + edge) - 1), dim=-1
    )
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="reflection", align_corners=mirror_centers)
