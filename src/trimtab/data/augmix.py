"""AugMix: several short chains of simple operations, mixed with each other and with the image.

Hendrycks et al. (2020), algorithm 1, without the consistency loss (a training objective):

    x' = m x + (1 - m) sum_i w_i chain_i(x),   w ~ Dirichlet(1, 1, 1),   m ~ uniform

Each of the three chains is one to three operations out of nine: autocontrast, equalize, posterize,
solarize, rotate, shear in x or y, shift in x or y. An operation's level is uniform in [0.1, severity] on a
scale of 10; the default severity is 3. Operations that are also corruptions (brightness, contrast, ...) are
left out, as in the paper.

A batch is processed at once: in each step the images with the same operation are gathered, changed and put
back. Between the operations pixels are integers in 0..255, as in Pillow, with which the tests compare. Unlike
in the public code, angles and shifts are not rounded to integers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

CHAINS, DEPTH = 3, 3


def augmix(x: Tensor, severity: float, draw: Callable[[int], Tensor]) -> Tensor:
    """Mix images (N, C, H, W) in [0, 1]; `draw(k)` returns N uniform numbers, independent for each k."""
    draws = itertools.count()

    def uniform(*shape: int) -> Tensor:
        """Uniform numbers (*shape, N)."""
        return torch.stack([draw(next(draws)) for _ in range(math.prod(shape))]).view(*shape, -1).float()

    levels = (x * 255).round()
    chains = levels.repeat(CHAINS, 1, 1, 1)  # all chains of all images are one batch
    depth = 1 + DEPTH * uniform(CHAINS)
    for step in range(DEPTH):
        choice, level, sign = (uniform(CHAINS).flatten() for _ in range(3))
        level = (0.1 + (severity - 0.1) * level) / 10
        operation = torch.where(step < depth.flatten().floor(), (len(OPERATIONS) * choice).long(), -1)
        chains = operate(chains, operation, level, torch.where(sign < 0.5, -level, level))
    weights = -torch.log(1 - uniform(CHAINS))
    weights = weights / weights.sum(0)  # exponential numbers, normalized, are Dirichlet(1, 1, 1)
    mixed = torch.einsum("kn,kn...->n...", weights, chains.view(CHAINS, *x.shape))
    return torch.lerp(mixed, levels, uniform(1)[0][:, None, None, None]) / 255


def operate(levels: Tensor, operation: Tensor, level: Tensor, signed: Tensor) -> Tensor:
    """Apply to each image the operation of its index (-1: none).

    Args:
        levels: Images (N, C, H, W) in 0..255.
        operation: Indices in `OPERATIONS` (N,).
        level: Levels in 0..1 (N,).
        signed: The same with random signs, for operations that have a direction.
    """
    out = levels.clone()
    for index, function in enumerate(POINTWISE):
        rows = (operation == index).nonzero()[:, 0]
        if len(rows):
            out.index_copy_(0, rows, function(levels.index_select(0, rows), level[rows]))
    rows = (operation >= len(POINTWISE)).nonzero()[:, 0]
    if len(rows):
        kind = operation[rows] - len(POINTWISE)
        out.index_copy_(0, rows, move(levels.index_select(0, rows), kind, signed[rows]))
    return out


def autocontrast(levels: Tensor, _: Tensor) -> Tensor:
    """Stretch each channel to 0..255."""
    low, high = levels.amin((2, 3), keepdim=True), levels.amax((2, 3), keepdim=True)
    # In float64, dividing tensors (255 / tensor multiplies by a reciprocal), to round as Pillow does.
    scale = torch.full_like(low, 255, dtype=torch.float64) / (high - low).clamp(min=1)
    stretched = (levels * scale - low * scale).floor().clamp(0, 255)
    return torch.where(high > low, stretched.to(levels.dtype), levels)


def equalize(levels: Tensor, _: Tensor) -> Tensor:
    """Give each channel a flat histogram."""
    flat = levels.flatten(2).long()  # (N, C, H W)
    counts = torch.zeros(*flat.shape[:2], 256, dtype=torch.long).scatter_add_(2, flat, torch.ones_like(flat))
    brightest = flat.amax(2, keepdim=True)
    step = (flat.shape[2] - counts.gather(2, brightest)) // 255
    below = counts.cumsum(2) - counts
    table = ((step // 2 + below) // step.clamp(min=1)).clamp(max=255)
    table = torch.where(step > 0, table, torch.arange(256))
    return table.gather(2, flat).view(levels.shape).to(levels.dtype)


def posterize(levels: Tensor, level: Tensor) -> Tensor:
    """Keep the upper bits: four, or fewer at higher levels."""
    cell = 2.0 ** (4 + (4 * level).floor())[:, None, None, None]
    return (levels / cell).floor() * cell


def solarize(levels: Tensor, level: Tensor) -> Tensor:
    """Invert the pixels above a threshold."""
    threshold = 256 - (256 * level).floor()
    return torch.where(levels < threshold[:, None, None, None], levels, 255 - levels)


def move(levels: Tensor, kind: Tensor, level: Tensor) -> Tensor:
    """Rotate by up to 30 degrees, shear by up to 0.3 or shift by up to a third of a side; fill with black."""
    n, _, height, width = levels.shape
    ones, zeros = torch.ones(n), torch.zeros(n)
    tall, wide = height / width, width / height
    cos, sin, shear, shift = (
        (level * math.pi / 6).cos(),
        (level * math.pi / 6).sin(),
        0.3 * level,
        2 / 3 * level,
    )
    # Where a pixel comes from, in coordinates of -1..1; a shear leaves the upper left corner in its place.
    kinds = (
        (cos, -sin * tall, zeros, sin * wide, cos, zeros),
        (ones, shear * tall, shear * tall, zeros, ones, zeros),
        (ones, zeros, zeros, shear * wide, ones, shear * wide),
        (ones, zeros, shift, zeros, ones, zeros),
        (ones, zeros, zeros, zeros, ones, shift),
    )
    maps = torch.stack([torch.stack(entries, dim=1) for entries in kinds])  # (5, n, 6)
    return resample(levels, maps[kind, torch.arange(n)], padding="zeros").round()


def resample(x: Tensor, maps: Tensor, padding: str) -> Tensor:
    """Sample the pixel (u, v) bilinearly at (a u + b v + c, d u + e v + f), in coordinates of -1..1."""
    *_, height, width = x.shape
    u, v = ((2 * torch.arange(side) + 1) / side - 1 for side in (width, height))
    a, b, c, d, e, f = maps.to(x.dtype)[:, :, None, None].unbind(1)
    grid = torch.stack([a * u + b * v[:, None] + c, d * u + e * v[:, None] + f], dim=-1)  # (N, H, W, 2)
    return F.grid_sample(x, grid, padding_mode=padding, align_corners=False)


POINTWISE: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (autocontrast, equalize, posterize, solarize)
OPERATIONS = (*POINTWISE, "rotate", "shear x", "shear y", "shift x", "shift y")
