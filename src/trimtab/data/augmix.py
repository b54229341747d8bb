"""AugMix: several short chains of simple operations, mixed with each other and with the image.

Hendrycks et al. (2020), algorithm 1 (without its consistency loss, which is an objective's business):

    x' = m x + (1 - m) sum_i w_i chain_i(x),   w ~ Dirichlet(1, 1, 1),   m ~ uniform

Each of the three chains is one to three operations out of nine: autocontrast, equalise, posterise,
solarise, rotate, shear in x or y, shift in x or y. An operation's level is uniform in 0.1..severity (3), of
10. Those that are also corruptions (brightness, contrast, ...) are left out, as in the paper.

A batch is worked on at once: in each step the images that drew the same operation are gathered, changed and
put back. Images are whole levels of 255 between the operations, as they are in Pillow, on which the tests
rely. Different from the public code: angles and shifts are not rounded to whole numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

CHAINS, DEPTH = 3, 3


def augmix(x: Tensor, severity: float, draw: Callable[[int], Tensor]) -> Tensor:
    """(N, C, H, W) in [0, 1]; `draw(k)` gives a uniform number per image, new ones for each k."""
    numbers = iter(range(10_000))
    levels = (x * 255).round()
    mixed = torch.zeros_like(levels)
    weights = -torch.log(torch.stack([1 - draw(next(numbers)) for _ in range(CHAINS)]))  # exponential
    weights = (weights / weights.sum(0)).float()  # normalised: Dirichlet(1, 1, 1)
    for weight in weights:
        chain = levels
        depth = 1 + (DEPTH * draw(next(numbers))).long()
        for step in range(DEPTH):
            choice, level, sign = (draw(next(numbers)) for _ in range(3))
            level = (0.1 + (severity - 0.1) * level) / 10
            signed = torch.where(sign < 0.5, -level, level).float()
            chain = _operate(chain, torch.where(step < depth, (9 * choice).long(), -1), level.float(), signed)
        mixed += weight[:, None, None, None] * chain
    m = draw(next(numbers)).float()[:, None, None, None]
    return (m * levels + (1 - m) * mixed) / 255


def _operate(levels: Tensor, choice: Tensor, level: Tensor, signed: Tensor) -> Tensor:
    """The operation that each image drew (-1: none), at levels in 0..1."""
    out = levels.clone()
    for number, operation in enumerate(OPERATIONS):
        mine = (choice == number).nonzero()[:, 0]
        if len(mine):
            strength = (level if operation in UNSIGNED else signed)[mine]
            out[mine] = operation(levels[mine], strength)
    return out


def autocontrast(levels: Tensor, _: Tensor) -> Tensor:
    """Stretch each channel to 0..255."""
    low, high = levels.amin((2, 3), keepdim=True), levels.amax((2, 3), keepdim=True)
    stretched = (levels - low) * (255 / (high - low).clamp(min=1))
    return torch.where(high > low, (stretched + 1e-3).floor(), levels)


def equalise(levels: Tensor, _: Tensor) -> Tensor:
    """Give each channel a flat histogram."""
    flat = levels.flatten(2).long()  # (N, C, H W)
    seen = torch.zeros(*flat.shape[:2], 256, dtype=torch.long).scatter_add_(2, flat, torch.ones_like(flat))
    brightest = flat.amax(2, keepdim=True)
    step = (flat.shape[2] - seen.gather(2, brightest)) // 255
    below = seen.cumsum(2) - seen
    table = ((step // 2 + below) // step.clamp(min=1)).clamp(max=255)
    table = torch.where(step > 0, table, torch.arange(256))
    return table.gather(2, flat).view(levels.shape).to(levels.dtype)


def posterise(levels: Tensor, level: Tensor) -> Tensor:
    """Keep the upper bits: four, or fewer at higher levels."""
    cell = 2.0 ** (4 + (4 * level).floor())[:, None, None, None]
    return (levels / cell).floor() * cell


def solarise(levels: Tensor, level: Tensor) -> Tensor:
    """Invert what is brighter than a threshold."""
    threshold = 256 - (256 * level).floor()
    return torch.where(levels < threshold[:, None, None, None], levels, 255 - levels)


def affine(kind: str, levels: Tensor, level: Tensor) -> Tensor:
    """Rotate by up to 30 degrees, shear by up to 0.3 or shift by up to a third; black comes in."""
    n, _, height, width = levels.shape
    one, zero = torch.ones(n), torch.zeros(n)
    angle = level * math.pi / 6
    # where each pixel comes from, in coordinates of -1..1
    rows = {
        "rotate": (
            angle.cos(),
            angle.sin() * height / width,
            zero,
            -angle.sin() * width / height,
            angle.cos(),
            zero,
        ),
        # a shear leaves the upper left corner where it is, as Pillow's does
        "shear_x": (one, 0.3 * level * height / width, 0.3 * level * height / width, zero, one, zero),
        "shear_y": (one, zero, zero, 0.3 * level * width / height, one, 0.3 * level * width / height),
        "shift_x": (one, zero, 2 / 3 * level, zero, one, zero),
        "shift_y": (one, zero, zero, zero, one, 2 / 3 * level),
    }
    theta = torch.stack(rows[kind], dim=1).view(n, 2, 3)
    grid = F.affine_grid(theta, list(levels.shape), align_corners=False)
    return F.grid_sample(levels, grid, align_corners=False).round()


UNSIGNED = (autocontrast, equalise, posterise, solarise)
OPERATIONS: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    *UNSIGNED,
    *(partial(affine, kind) for kind in ("rotate", "shear_x", "shear_y", "shift_x", "shift_y")),
)
