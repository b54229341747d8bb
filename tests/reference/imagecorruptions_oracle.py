"""The package `imagecorruptions`, made to run with today's NumPy, SciPy and scikit-image.

As installed it needs `pkg_resources` (gone from setuptools), `scipy.ndimage.interpolation`, `np.float_` and
the `multichannel` argument of scikit-image's Gaussian filter (all removed). They are put back around the
import, in that package's own namespace only; nothing of its arithmetic is changed.
"""

from __future__ import annotations

import sys
import types
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np


class _OldNumPy:
    """NumPy as that package sees it: with the name `float_`."""

    float_ = np.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


@cache
def oracle() -> types.ModuleType:
    """`imagecorruptions.corruptions`: functions of (PIL image, severity) that return values in 0..255."""
    import importlib.util

    import scipy.ndimage
    import skimage.filters

    folder = Path(next(iter(importlib.util.find_spec("imagecorruptions").submodule_search_locations)))  # type: ignore[union-attr, arg-type]
    lent = {
        "pkg_resources": types.ModuleType("pkg_resources"),
        "scipy.ndimage.interpolation": types.ModuleType("scipy.ndimage.interpolation"),
    }
    lent["pkg_resources"].resource_filename = lambda _, name: str(folder / name)  # type: ignore[attr-defined]
    lent["scipy.ndimage.interpolation"].map_coordinates = scipy.ndimage.map_coordinates  # type: ignore[attr-defined]
    before = {name: sys.modules.get(name) for name in lent}
    sys.modules.update(lent)
    try:
        import imagecorruptions.corruptions as module
    finally:
        for name, old in before.items():
            if old is None:
                del sys.modules[name]
            else:
                sys.modules[name] = old

    def gaussian(image: np.ndarray, sigma: Any, multichannel: bool = False, **rest: Any) -> np.ndarray:
        return skimage.filters.gaussian(image, sigma, channel_axis=-1 if multichannel else None, **rest)

    module.gaussian = gaussian
    module.np = _OldNumPy()
    return module


FROST_FOLDER = Path(sys.prefix)


def corrupted(image: np.ndarray, name: str, severity: int) -> np.ndarray:
    """One uint8 image (H, W, 3) as the package corrupts it."""
    from PIL import Image

    return np.uint8(getattr(oracle(), name)(Image.fromarray(image), severity))
