"""Pictures of ice for the frost corruption: procedural ones, of fern-shaped crystals, or the official ones.

The published sets overlay photographs whose license is not stated, so they are not in this package. By
default five procedural pictures stand in for them, with the brightness, tint and contrast of the five that
the published code uses: severities are alike, but accuracies on frost are not exactly comparable. Given the
folder of the official files (`frost1.png` ... `frost6.jpg`), those are used as published.
"""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from trimtab import rng
from trimtab.data.corruptions.filters import gaussian, sample
from trimtab.types import BadInput

SIDE = 512
"""Side of a procedural picture in pixels."""

# Mean red, green and blue, and the std, of each of the five pictures, in 0..255.
TONES = (
    (78, 149, 166, 18),
    (201, 205, 214, 22),
    (196, 203, 213, 24),
    (138, 153, 165, 29),
    (112, 123, 135, 43),
)


def pictures(folder: str | None, height: int, width: int, scale: float) -> list[Tensor]:
    """Pictures of ice (3, h, w) in 0..255, scaled by `scale`, or by more to cover the image with a margin."""
    return [
        _scaled(folder, i, max(scale, 1.1 * height / picture.shape[1], 1.1 * width / picture.shape[2]))
        for i, picture in enumerate(_originals(folder))
    ]


@cache
def _scaled(folder: str | None, index: int, factor: float) -> Tensor:
    picture = _originals(folder)[index][None]
    if factor < 1:
        picture = F.interpolate(picture, scale_factor=factor, mode="bilinear")
    else:
        size = [math.ceil(side * factor) for side in picture.shape[2:]]
        picture = F.interpolate(picture, size=size, mode="bicubic")
    return picture[0].round().clamp(0, 255)


def _originals(folder: str | None) -> tuple[Tensor, ...]:
    return _grown() if folder is None else photographs(folder)


@cache
def photographs(folder: str) -> tuple[Tensor, ...]:
    """The first five pictures of the folder: the published code never uses the sixth."""
    files = sorted(Path(folder).glob("frost[1-6].*"))[:5]
    if not files:
        raise BadInput(
            f"no frost textures in {folder!r}; give the folder that holds frost1.png ... frost6.jpg, or None"
        )
    try:
        pixels = [np.array(Image.open(file).convert("RGB")) for file in files]
    except OSError as problem:
        raise BadInput(f"a frost texture in {folder!r} is not a readable image: {problem}") from None
    return tuple(torch.from_numpy(picture).permute(2, 0, 1).float() for picture in pixels)


@cache
def _grown() -> tuple[Tensor, ...]:
    """One field of ice, rotated and tinted in five ways."""
    ice = _grow(np.random.default_rng(rng.key(*b"ice")))
    return tuple(
        torch.stack([ice.rot90(turn) * tone[3] + mean for mean in tone[:3]]).clamp(0, 255)
        for turn, tone in enumerate(TONES)
    )


def _grow(generator: np.random.Generator) -> Tensor:
    """Leaves of ice on a mottled background, slightly warped; mean 0 and std 1."""

    def smooth(sigma: float) -> Tensor:
        field = gaussian(
            torch.from_numpy(generator.normal(size=(SIDE, SIDE))).float(), sigma, border="reflect"
        )
        return field / field.std()

    ice = 0.4 * smooth(20.0).numpy()
    for length in np.geomspace(110, 10, 500):  # small leaves grow over large ones
        _add_leaf(ice, generator, length)
    ys, xs = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    warped = sample(
        torch.from_numpy(ice + generator.normal(scale=0.15, size=ice.shape)).float()[None, None],
        (ys + 3 * smooth(20.0) + 0.5 * smooth(2.0))[None],
        (xs + 3 * smooth(20.0) + 0.5 * smooth(2.0))[None],
    )[0, 0]
    return (warped - warped.mean()) / warped.std()


def _add_leaf(ice: np.ndarray, generator: np.random.Generator, length: float) -> None:
    """Add a crystal: barbs at 60 degrees on both sides of a tapering spine, of random brightness."""
    angle, light, pitch, breadth = generator.uniform((0, -0.8, 3.5, 0.06), (2 * math.pi, 1.2, 6, 0.26))
    reach = int(length) + 1
    ys, xs = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    along = xs * math.cos(angle) + ys * math.sin(angle)
    across = np.abs(ys * math.cos(angle) - xs * math.sin(angle))
    edge = breadth * (length - along)  # half the leaf's width at this position
    inside = ((edge - across) / 3).clip(0, 1) * ((along - across / 2) / 6).clip(0, 1)
    barbs = 0.5 + 0.5 * np.cos(2 * math.pi * (along - across / math.sqrt(3)) / pitch)
    leaf = light + 0.8 * barbs - 0.6 * across / edge.clip(1) + 1.2 * np.exp(-(across**2))
    here = np.ix_((generator.integers(SIDE) + ys[:, 0]) % SIDE, (generator.integers(SIDE) + xs[0]) % SIDE)
    ice[here] += 0.85 * inside * (leaf - ice[here])
