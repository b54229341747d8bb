"""The corruptions by name, and the published constants of each (`constants.yaml`)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files

import yaml

Row = tuple[float, ...]
Table = Mapping[str, tuple[Row, ...]]

SIZES = (32, 224)
"""Image sizes of the two tables of constants: CIFAR-10-C's and ImageNet-C's."""

CORRUPTIONS: tuple[str, ...] = (
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "defocus_blur",
    "glass_blur",
    "motion_blur",
    "zoom_blur",
    "snow",
    "frost",
    "fog",
    "brightness",
    "contrast",
    "elastic_transform",
    "pixelate",
    "jpeg_compression",
)
"""The fifteen corruptions of a mean corruption error, in the published order."""

EXTRA_CORRUPTIONS: tuple[str, ...] = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
"""Four more for validation, never part of a mean corruption error."""


@cache
def constants(size: int) -> Table:
    """Return, by corruption, the arguments of its function at severities 1 to 5.

    Args:
        size: One of `SIZES`.
    """
    text = (files("trimtab.data.corruptions") / "constants.yaml").read_text()
    return {name: tuple(map(tuple, rows)) for name, rows in yaml.safe_load(text)[size].items()}


def table_for(height: int, width: int) -> int:
    """Return the table of the nearer size on a log scale: 32 up to a short side of 84 pixels, else 224.

    >>> table_for(28, 28), table_for(64, 64), table_for(96, 128)
    (32, 32, 224)
    """
    return 32 if min(height, width) ** 2 < 32 * 224 else 224
