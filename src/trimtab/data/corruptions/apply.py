"""`corrupt`: apply a corruption, by name and severity, to a batch of images."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from trimtab import rng
from trimtab.data.corruptions import blur, digital, noise, spatter, weather
from trimtab.data.corruptions.filters import ImageRNG
from trimtab.data.corruptions.tables import CORRUPTIONS, EXTRA_CORRUPTIONS, SIZES, constants, table_for
from trimtab.types import BadInput

_MODULES = (noise, blur, weather, digital, spatter)
FUNCTIONS: Mapping[str, Callable[..., Tensor]] = {
    name: next(getattr(module, name) for module in _MODULES if hasattr(module, name))
    for name in CORRUPTIONS + EXTRA_CORRUPTIONS
}
"""The function of each corruption, which has its name."""

_ON_BYTES = {"jpeg_compression"}  # takes uint8 images as they are
MIN_SIDE = 28  # smallest side of images, in pixels
AT_ONCE = 1 << 19  # values per chunk, which fits the processor's cache together with intermediate results
_ALMOST = 1e-3  # added before rounding down to whole levels, so that 127.9999 becomes 128


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
    """Return corrupted images, of the same shape, dtype and device.

    Args:
        x: Images (N, C, H, W), in [0, 1] or uint8.
        name: The corruption, one of CORRUPTIONS or EXTRA_CORRUPTIONS.
        severity: 1 to 5.
        seed: Seed of the random numbers.
        ids: The images' indices in their set, on which their random numbers depend; 0..N-1 if None.
        frost_textures: Folder of the official photographs of ice; generated textures if None.
        table: The published constants, 32 or 224; those nearer to the images' size if None.
    """
    _check(x, name, severity, table)
    severity = int(severity)
    listed = rng.ids_of(x, ids)
    height, width = x.shape[2:]
    arguments = constants(table or table_for(height, width))[name][severity - 1]
    extra = {"textures": str(frost_textures)} if name == "frost" and frost_textures is not None else {}
    stream = rng.key(*name.encode(), severity)
    out = torch.empty_like(x)
    step = max(1, AT_ONCE // (x.shape[1] * height * width))
    for start in range(0, len(x), step):
        part = slice(start, start + step)
        levels = x[part] if name in _ON_BYTES and x.dtype == torch.uint8 else _levels(x[part])
        random = ImageRNG(seed, listed[part], stream, x.device)
        _store(FUNCTIONS[name](levels, random, *arguments, **extra), out[part])
    return out


def supports(channels: int, height: int, width: int) -> bool:
    """Return whether corruptions are defined for images of this shape."""
    return channels in (1, 3) and min(height, width) >= MIN_SIDE


def _check(x: Tensor, name: str, severity: int, table: int | None) -> None:
    if name not in FUNCTIONS:
        raise BadInput(f"there is no corruption {name!r}; choose one of {', '.join(FUNCTIONS)}")
    if severity not in (1, 2, 3, 4, 5):
        raise BadInput(f"severity must be 1, 2, 3, 4 or 5, found {severity!r}")
    if table is not None and table not in SIZES:
        raise BadInput(f"the table of constants must be 32 or 224, found {table!r}")
    if x.ndim != 4 or not supports(*x.shape[1:]):
        raise BadInput(
            "images to corrupt must be (N, C, H, W) of 1 or 3 channels and at least "
            f"{MIN_SIDE} x {MIN_SIDE} pixels, found {tuple(x.shape)}"
        )
    if not (x.is_floating_point() or x.dtype == torch.uint8):
        raise BadInput(f"images to corrupt must be floating point or uint8, found {x.dtype}")


def _levels(x: Tensor) -> Tensor:
    """Return pixels as whole levels 0..255, float32, contiguous."""
    if x.dtype == torch.uint8:
        return x.contiguous().float()
    levels = x.float().mul(255).round_().contiguous()
    low, high = (float(bound) for bound in levels.aminmax())
    if not (low >= 0 and high <= 255):  # also true of NaN
        raise BadInput(
            f"images to corrupt must lie in [0, 1], found {low / 255:g} to {high / 255:g}; "
            "divide 8-bit images by 255, and leave normalization to the model"
        )
    return levels


def _store(levels: Tensor, out: Tensor) -> None:
    """Round down to whole levels and write them to `out` as pixels; uint8 levels are whole already."""
    if levels.is_floating_point():
        levels = levels.add_(_ALMOST).floor_().clamp_(0, 255)
        if out.dtype == torch.uint8:
            levels = levels.to(torch.int16)  # several times quicker than from float to uint8 at once
    for pixels, values in zip(out.unbind(1), levels.unbind(1), strict=True):
        pixels.copy_(values)  # channel by channel: twice as quick into a channels-last batch
    if out.is_floating_point():
        out.div_(255)
