"""Blurs: Gaussian, defocus, glass, motion, zoom."""

from __future__ import annotations

from functools import cache

import numpy as np
import scipy.fft
import torch
import torch.nn.functional as F
from torch import Tensor

from trimtab.data.corruptions.filters import ImageRNG, gaussian, motion, zoomed
from trimtab.norm.moments import widest


def gaussian_blur(x: Tensor, rng: ImageRNG, sigma: float) -> Tensor:
    """Gaussian smoothing; `sigma` in pixels."""
    return gaussian(x, sigma)


def motion_blur(x: Tensor, rng: ImageRNG, radius: float, sigma: float) -> Tensor:
    """A trail along a random direction within 45 degrees of the horizontal."""
    return motion(x, radius, sigma, rng.uniform().mul_(90).sub_(45))


def zoom_blur(x: Tensor, rng: ImageRNG, stop: float, step: float) -> Tensor:
    """The mean of the image and its enlargements by 1, 1 + step, ... below `stop`."""
    factors = np.arange(1, stop, step)
    total = 2 * x  # the image itself, and its enlargement by 1
    for factor in factors[1:]:
        total += zoomed(x, float(factor))
    return total / (len(factors) + 1)


def defocus_blur(x: Tensor, rng: ImageRNG, radius: float, softness: float) -> Tensor:
    """The mean over a disc whose rim is softened; the border is mirrored about the border pixels."""
    height, width = x.shape[-2:]
    disc = _disc(radius, softness)
    margin = disc.shape[0] // 2
    size = _fft_size(height + 2 * margin), _fft_size(width + 2 * margin)
    spectrum = torch.fft.rfft2(disc, s=size).to(x.device)
    wide = F.pad(x, (margin,) * 4, mode="reflect")
    out = torch.empty_like(x)
    for image, source in zip(out, wide, strict=True):  # one by one: an FFT rounds by the size of its batch
        blurred = torch.fft.irfft2(torch.fft.rfft2(source, s=size) * spectrum, s=size)
        image.copy_(blurred[:, 2 * margin : 2 * margin + height, 2 * margin : 2 * margin + width])
    return out


@cache
def _disc(radius: float, softness: float) -> Tensor:
    """The published kernel: a disc on whole pixels, smoothed by a Gaussian of 3 or 5 taps."""
    extent = 8 if radius <= 8 else int(radius)
    offsets = np.arange(-extent, extent + 1)
    disc = (offsets[:, None] ** 2 + offsets**2 <= radius**2).astype(float)
    disc /= disc.sum()
    taps = np.arange(-1, 2) if radius <= 8 else np.arange(-2, 3)
    weights = np.exp(-0.5 * (taps / softness) ** 2)
    weights /= weights.sum()
    for axis in (0, 1):
        wide = np.pad(disc, [(len(taps) // 2,) * 2 if axis == a else (0, 0) for a in (0, 1)], mode="reflect")
        disc = sum(w * wide.take(np.arange(len(disc)) + i, axis) for i, w in enumerate(weights))
    return torch.from_numpy(disc).float()


def _fft_size(least: int) -> int:
    """The next length without large prime factors."""
    return scipy.fft.next_fast_len(least, real=True)


def glass_blur(x: Tensor, rng: ImageRNG, sigma: float, reach: float, rounds: float) -> Tensor:
    """Smooth, move every pixel by up to `reach` pixels `rounds` times, smooth again."""
    # In double precision: with sigma 0.25 values are so near to whole levels that in single precision the
    # CPU decides what rounding down returns.
    x = gaussian(x.to(widest(x.device)), sigma).add_(1e-3).floor_()
    reach, side = int(reach), 2 * int(reach)
    for draw in range(int(rounds)):
        cell = rng.uniform(*x.shape[-2:], draw=draw).mul_(side * side).floor_().long()
        x = scatter_pixels(x, cell // side - reach, cell % side - reach, reach)
    return gaussian(x, sigma)


def scatter_pixels(x: Tensor, dy: Tensor, dx: Tensor, reach: int) -> Tensor:
    """Copy to every inner pixel (h, w) the pixel (h + dy, w + dx), in order from the last to the first.

    The published code means to swap the two pixels; on a color image NumPy's views turn the swap into this
    copy, which is what the published sets contain. A copy of a later pixel gets that one's new value, so
    sources form chains; all chains are followed at once, by doubling. Offsets (N, H, W) lie in
    [-reach, reach).
    """
    height, width = x.shape[-2:]
    here = torch.arange(height * width, device=x.device).view(height, width)
    source = here.expand_as(dy).clone()
    inner = (..., slice(reach + 1, height - reach + 1), slice(reach + 1, width - reach + 1))
    source[inner] += (dy * width + dx)[inner]
    pixels = height * width
    source = torch.where(source > here, source + pixels, source).flatten(1)  # from `pixels` on: unfinished
    while (unfinished := source >= pixels).any():
        source = torch.where(unfinished, source.gather(1, source % pixels), source)
    flat = x.flatten(2)
    return flat.gather(2, source[:, None].expand_as(flat)).view_as(x)
