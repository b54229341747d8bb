"""The package `imagecorruptions`, made to run with today's NumPy, SciPy and scikit-image, as an oracle.

As installed it needs `pkg_resources` (gone from setuptools), `scipy.ndimage.interpolation`, `np.float_` and
the `multichannel` argument of scikit-image's Gaussian filter, all removed since. They are put back around its
import and in its own namespace; nothing of its arithmetic changes.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import scipy.ndimage
import skimage.filters
from PIL import Image


class _OldNumPy:
    """NumPy as that package sees it: with the name `float_`, and with `random` open to replacement."""

    float_ = np.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


@cache
def folder() -> Path:
    spec = importlib.util.find_spec("imagecorruptions")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0])


@cache
def oracle() -> Any:
    """`imagecorruptions.corruptions`: functions of (PIL image, severity) with values in 0..255."""
    lent = {
        "pkg_resources": types.SimpleNamespace(resource_filename=lambda _, name: str(folder() / name)),
        "scipy.ndimage.interpolation": types.SimpleNamespace(map_coordinates=scipy.ndimage.map_coordinates),
    }
    before = {name: sys.modules.pop(name, None) for name in lent}
    sys.modules.update(lent)  # type: ignore[arg-type]
    try:
        import imagecorruptions.corruptions as module
    finally:
        for name, old in before.items():
            del sys.modules[name]
            if old is not None:
                sys.modules[name] = old

    def gaussian(image: np.ndarray, sigma: Any, multichannel: bool = False, **rest: Any) -> np.ndarray:
        return skimage.filters.gaussian(image, sigma, channel_axis=-1 if multichannel else None, **rest)

    module.gaussian = gaussian
    module.np = _OldNumPy()
    return module


def corrupted(image: np.ndarray, name: str, severity: int) -> np.ndarray:
    """One uint8 image (H, W, 3) as the package corrupts it."""
    return np.uint8(getattr(oracle(), name)(Image.fromarray(image), severity))


@contextmanager
def chance(**functions: Callable[..., Any]) -> Iterator[None]:
    """The package's `np.random.<name>` replaced by the given functions."""
    oracle().np.random = types.SimpleNamespace(**functions)
    try:
        yield
    finally:
        del oracle().np.random


def constants(name: str) -> list[tuple[float, ...]]:
    """The five rows of constants that stand in the source of one of the package's corruptions."""
    for node in ast.walk(ast.parse(inspect.getsource(getattr(oracle(), name)))):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript):
            rows = node.value.value
            if isinstance(rows, ast.List) and len(rows.elts) == 5:
                return [_row(element) for element in rows.elts]
    raise LookupError(name)


def _row(element: ast.expr) -> tuple[float, ...]:
    """`0.4`, `(3, 0.1)`, `250 * 0.05`, or the stop and step of `np.arange(1, 1.11, 0.01)`."""
    if isinstance(element, ast.Call):
        return tuple(ast.literal_eval(argument) for argument in element.args[1:])
    value = eval(compile(ast.Expression(element), "constants", "eval"), {})
    return value if isinstance(value, tuple) else (value,)
