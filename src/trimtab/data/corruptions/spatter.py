"""Spatter: drops of water or splashes of mud on the lens.

Random noise is smoothed; where it is above a threshold there is liquid. Mud (severities 4 and 5) covers the
image with brown. Water (1 to 3) is lit from one side: the distance from the drops' edges (Canny), equalized
and embossed, times the thickness of the liquid, is added in pale turquoise. The steps are those of the
published code, which calls OpenCV, except that distances are Euclidean: OpenCV approximates them within 2 %.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from trimtab.data.corruptions.filters import GRAY, ImageRNG, gaussian
from trimtab.norm.moments import widest

WATER = (175.0, 238.0, 238.0)
MUD = (63.0, 42.0, 20.0)
FAR = 20
"""Largest distance from an edge, in pixels."""


def spatter(
    x: Tensor,
    rng: ImageRNG,
    mean: float,
    std: float,
    smooth: float,
    threshold: float,
    amount: float,
    mud: float,
) -> Tensor:
    """Add drops of water, or splashes of mud, where smoothed noise is above a threshold."""
    liquid = gaussian(rng.normal(*x.shape[-2:]).mul_(std).add_(mean), smooth)  # (N, H, W)
    if mud:
        cover = gaussian((liquid > threshold).float(), amount)
        cover = torch.where(cover < 0.8, 0.0, cover)[:, None]
        return x * (1 - cover) + _color(MUD, x) * cover
    liquid = torch.where(liquid < threshold, 0.0, liquid * 255).clamp_(0, 255).floor_()
    layer = liquid * emboss(equalize(distance(edges(liquid))))
    strongest = layer.flatten(1).amax(1).clamp(min=1)[:, None, None]
    return x + _color(WATER, x) * (layer / strongest * amount)[:, None]


def _color(color: tuple[float, float, float], x: Tensor) -> Tensor:
    gray = sum(c * w for c, w in zip(color, GRAY, strict=True))
    return torch.tensor(color if x.shape[1] == 3 else [gray], device=x.device).view(1, -1, 1, 1)


def edges(levels: Tensor, low: int = 50, high: int = 150) -> Tensor:
    """Canny edges of (N, H, W): ridges of the gradient above `low` that are connected to one above `high`."""
    p = F.pad(levels[:, None], (1, 1, 1, 1), mode="replicate")[:, 0]
    smooth_y = p[:, :-2] + 2 * p[:, 1:-1] + p[:, 2:]  # Sobel's filter, (N, H, W + 2)
    gx = smooth_y[..., 2:] - smooth_y[..., :-2]
    smooth_x = p[..., :-2] + 2 * p[..., 1:-1] + p[..., 2:]
    gy = smooth_x[:, 2:] - smooth_x[:, :-2]
    steep = gx.abs() + gy.abs()
    m = F.pad(steep, (1, 1, 1, 1))

    def at(dy: int, dx: int) -> Tensor:
        return m[:, 1 + dy : m.shape[1] - 1 + dy, 1 + dx : m.shape[2] - 1 + dx]

    tangent = 2**0.5 - 1  # tan(22.5 degrees): gradients are rounded to one of four directions
    flat, upright = gy.abs() < tangent * gx.abs(), gy.abs() > (tangent + 2) * gx.abs()
    rising = (gx < 0) != (gy < 0)
    ridge = torch.where(
        flat,
        (steep > at(0, -1)) & (steep >= at(0, 1)),
        torch.where(
            upright,
            (steep > at(-1, 0)) & (steep >= at(1, 0)),
            torch.where(
                rising,
                (steep > at(-1, 1)) & (steep > at(1, -1)),
                (steep > at(-1, -1)) & (steep > at(1, 1)),
            ),
        ),
    )
    candidate = ridge & (steep > low)
    edge = candidate & (steep > high)
    while True:
        grown = _dilate(edge) & candidate
        if torch.equal(grown, edge):
            return edge
        edge = grown


def _dilate(mask: Tensor) -> Tensor:
    """Set every pixel that is set or has one of its eight neighbors set."""
    for dim in (1, 2):
        wider = mask.clone()
        wider.narrow(dim, 1, mask.shape[dim] - 1).logical_or_(mask.narrow(dim, 0, mask.shape[dim] - 1))
        wider.narrow(dim, 0, mask.shape[dim] - 1).logical_or_(mask.narrow(dim, 1, mask.shape[dim] - 1))
        mask = wider
    return mask


def distance(edge: Tensor) -> Tensor:
    """Return the Euclidean distance from the nearest edge pixel, at most FAR, (N, H, W).

    Squared distances separate by axis, and k^2 is the sum of the first k odd numbers: along each axis, round
    k takes the minimum of a pixel's value and its neighbors' values plus 2k - 1.
    """
    squared = torch.where(edge, 0, FAR**2).to(torch.int16)
    for dim in (1, 2):
        size = squared.shape[dim]
        for k in range(1, FAR + 1):
            further = squared + (2 * k - 1)
            for here, there in ((1, 0), (0, 1)):
                target = squared.narrow(dim, here, size - 1)
                torch.minimum(target, further.narrow(dim, there, size - 1), out=target)
    return squared.float().sqrt_()


def equalize(distances: Tensor) -> Tensor:
    """Average distances over 3 x 3 pixels, round down, and equalize each image's histogram to 0..255."""
    level = _box(distances).floor_().long().flatten(1)  # (N, H W), 0..FAR
    counts = torch.zeros(len(level), FAR + 1, dtype=torch.long, device=level.device)
    counts.scatter_add_(1, level, torch.ones_like(level))
    lowest = counts.gather(1, level.amin(1, keepdim=True))
    above = (counts.cumsum(1) - lowest).clamp(min=0).to(widest(level.device))
    ranks = above * 255 / (level.shape[1] - lowest).clamp(min=1)
    flat = lowest == level.shape[1]  # an image of a single value is not changed
    ranks = torch.where(flat, torch.arange(FAR + 1, device=level.device), ranks.round()).float()
    return ranks.gather(1, level).view_as(distances)


def emboss(levels: Tensor) -> Tensor:
    """Emboss, with light from the lower right, and average over 3 x 3 pixels; integers in 0..255."""
    p = F.pad(levels[:, None], (1, 1, 1, 1), mode="reflect")[:, 0]
    height, width = levels.shape[1:]
    lit = torch.zeros_like(levels)
    for dy, row in enumerate(((-2, -1, 0), (-1, 1, 1), (0, 1, 2))):
        for dx, weight in enumerate(row):
            if weight:
                lit.add_(p[:, dy : dy + height, dx : dx + width], alpha=weight)
    return _box(lit.clamp_(0, 255)).round_()


def _box(x: Tensor) -> Tensor:
    """Means over 3 x 3 pixels, the border mirrored about the border pixels."""
    p = F.pad(x[:, None], (1, 1, 1, 1), mode="reflect")[:, 0]
    rows = p[:, :-2] + p[:, 1:-1] + p[:, 2:]
    return (rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]).div_(9)
