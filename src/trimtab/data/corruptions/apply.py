"""The one way in: images, the name of a corruption and a severity, to corrupted images."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from trimtab import draws
from trimtab.data.corruptions import blur, digital, noise, weather
from trimtab.data.corruptions.filters import Chance
from trimtab.data.corruptions.spatter import spatter
from trimtab.data.corruptions.tables import TABLES, table_for
from trimtab.types import BadInput

FUNCTIONS: Mapping[str, Callable[..., Tensor]] = {
    "gaussian_noise": noise.gaussian_noise,
    "shot_noise": noise.shot_noise,
    "impulse_noise": noise.impulse_noise,
    "defocus_blur": blur.defocus_blur,
    "glass_blur": blur.glass_blur,
    "motion_blur": blur.motion_blur,
    "zoom_blur": blur.zoom_blur,
    "snow": weather.snow,
    "frost": weather.frost,
    "fog": weather.fog,
    "brightness": digital.brightness,
    "contrast": digital.contrast,
    "elastic_transform": digital.elastic_transform,
    "pixelate": digital.pixelate,
    "jpeg_compression": digital.jpeg_compression,
    "speckle_noise": noise.speckle_noise,
    "gaussian_blur": blur.gaussian_blur,
    "spatter": spatter,
    "saturate": digital.saturate,
}

_AT_ONCE = 1 << 19  # values: what fits the processor's cache together with the intermediate results
_ALMOST = 1e-3  # of a level: what arithmetic may lose of a whole one before it is cut off


@torch.no_grad()
def corrupt(
    x: Tensor,
    name: str,
    severity: int = 1,
    seed: int = 0,
    ids: Tensor | Sequence[int] | None = None,
    frost_textures: str | Path | None = None,
    table: int | None = None,
) -> Tensor:
    """Images (N, C, H, W) in [0, 1] under one corruption, at severity 1 to 5: same shape, dtype and device.

    `ids` are the images' indices in their set (0..N-1 of this call if absent), `frost_textures` the folder of
    the official pictures of ice, `table` the constants to use: 32 or 224, by the images' size if absent.
    """
    _check(x, name, severity, table)
    listed = draws.ids_of(x, ids)
    height, width = x.shape[2:]
    constants = TABLES[table or table_for(height, width)][name][severity - 1]
    extra = {"textures": str(frost_textures)} if name == "frost" and frost_textures is not None else {}
    stream = draws.key(*name.encode(), severity)
    out = torch.empty_like(x)
    step = max(1, _AT_ONCE // (x.shape[1] * height * width))
    for start in range(0, len(x), step):
        part = slice(start, start + step)
        levels = _levels(x[part])
        chance = Chance(seed, listed[part], stream, x.device)
        levels = FUNCTIONS[name](levels, chance, *constants, **extra)
        levels = levels.add_(_ALMOST).floor_().clamp_(0, 255)
        torch.div(levels.to(x.dtype), 255, out=out[part])
    return out


def _check(x: Tensor, name: str, severity: int, table: int | None) -> None:
    if name not in FUNCTIONS:
        raise BadInput(f"there is no corruption {name!r}; choose one of {', '.join(FUNCTIONS)}")
    if severity not in (1, 2, 3, 4, 5):
        raise BadInput(f"severity must be 1, 2, 3, 4 or 5, found {severity!r}")
    if table is not None and table not in TABLES:
        raise BadInput(f"the table of constants must be 32 or 224, found {table!r}")
    if x.ndim != 4 or x.shape[1] not in (1, 3) or min(x.shape[2:]) < 28 or not x.is_floating_point():
        raise BadInput(
            "images to corrupt must be floating point (N, C, H, W), of 1 or 3 channels and at least 28 x 28 "
            f"pixels, found {x.dtype} {tuple(x.shape)}"
        )


def _levels(x: Tensor) -> Tensor:
    """Pixels in [0, 1] as whole levels 0..255, float32, contiguous."""
    levels = x.float().mul(255).round_().contiguous()
    low, high = (float(bound) for bound in levels.aminmax())
    if not (low >= 0 and high <= 255):  # also true of NaN
        raise BadInput(
            f"images to corrupt must lie in [0, 1], found {low / 255:g} to {high / 255:g}; "
            "divide 8-bit images by 255, and leave normalisation to the model"
        )
    return levels
