"""Is the input what the model expects? Check before a number is printed, not after.

A network whose images are normalized twice, never, or with a wrong mean still returns predictions. Three
things reveal it: pixels outside [0, 1]; a network that itself begins by normalizing; and, with labels, a
correction of the pixels that classifies significantly better (`corrections`). The last one needs some
accuracy: on an untrained network, or with a handful of images, it finds nothing.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from trimtab._mode import evaluation_mode
from trimtab.models.corrections import Constants, compare, corrections, is_certain, strongest
from trimtab.models.pixels import (
    Normalize,
    Pixels,
    channels_of,
    plain_spec,
    recorded_spec,
    spec_of,
    wrap,
)
from trimtab.runtime import call_in_parts, require_usable
from trimtab.types import InputSpec

_TOLERANCE = 0.01
"""How far pixels may leave [0, 1] (resizing overshoots a little)."""
_BYTES_FROM = 2.0
"""Pixels above this are in 0..255: float images in [0, 1] that overshoot stay far below."""
_DARKEST = 0.02
"""A batch without any pixel above this has been divided by 255 twice (which leaves 1/255 = 0.004)."""


class InputFaults(NamedTuple):
    """What is wrong with an input, one sentence each."""

    certain: list[str]
    possible: list[str]
    """What may also be a property of the images: they may differ from those the model was trained on."""


def check_input(model: nn.Module, x: Tensor, y: Tensor | None = None) -> list[str]:
    """Return what is wrong with giving `x` to `model`, one sentence each; an empty list if nothing is.

    The model is left as it was.

    Args:
        model: a classifier; one without an InputSpec is taken to expect pixels in [0, 1].
        x: clean images, (N, C, H, W).
        y: their labels, if known; they make hidden faults of the normalization visible.
    """
    faults = input_faults(model, x, y)
    return [*faults.certain, *faults.possible]


def input_faults(model: nn.Module, x: Tensor, y: Tensor | None = None) -> InputFaults:
    """Return what is wrong with giving `x` to `model`, with certain faults apart from possible ones.

    Args:
        model: a classifier; it is left as it was.
        x: clean images, (N, C, H, W).
        y: their labels, if known.
    """
    faults = range_faults(model, x)
    if faults or y is None:
        return InputFaults(faults, [])
    require_usable(model, x)
    pixels = _wrapped(model, x)
    with evaluation_mode(model), torch.no_grad():
        logits = call_in_parts(pixels, x)
        if faults := _output_faults(logits, x, y):
            return InputFaults(faults, [])
        known = known_constants(model)
        options = corrections(x.shape[1], known)
        evidence = strongest(*compare(partial(call_in_parts, pixels), x, y, options), y, options)
    if evidence is None:
        return InputFaults([], [])
    sentence = f"{evidence}: {evidence.correction.advice}"
    if is_certain(evidence, x, known):
        return InputFaults([sentence], [])
    return InputFaults([], [f"{sentence}; or the images are of a kind that is new to the model"])


def range_faults(model: nn.Module, x: Tensor) -> list[str]:
    """Return what pixels, shape and the model's modules alone reveal, without a forward pass of all images.

    Args:
        model: a classifier; it is left as it was.
        x: clean images, (N, C, H, W).
    """
    pixels = _wrapped(model, x)
    if not x.is_floating_point():
        return [f"pixels are {x.dtype}, the model takes floats in [0, 1]: divide by 255"]
    if x.dim() != 4 or x.shape[1] != pixels.spec.channels:
        return [f"images have shape {tuple(x.shape)}, the model takes (N, {pixels.spec.channels}, H, W)"]
    return [*_pixel_range_faults(x), *_double_normalization(pixels)]


def known_constants(model: nn.Module, images: InputSpec | None = None) -> dict[str, Constants]:
    """Return the means and stds that a model and its images record, by where they are recorded.

    Args:
        model: any classifier; one without a record adds nothing.
        images: the spec of the image set.
    """
    specs = {"the model's InputSpec": spec_of(model), "the images": images}
    return {name: (tuple(it.mean), tuple(it.std)) for name, it in specs.items() if it is not None}


def _wrapped(model: nn.Module, x: Tensor) -> Pixels:
    """The model in pixel space; with the images' channels where its own are only guessed, and it runs."""
    pixels = wrap(model)
    fits = x.dim() != 4 or x.shape[1] == pixels.spec.channels
    if not fits and x.is_floating_point() and _is_guessed(model) and _runs(model, x[:2]):
        return wrap(model, plain_spec(x.shape[1]))
    return pixels


def _is_guessed(model: nn.Module) -> bool:
    """Whether neither a record nor a first convolution for images gives the number of channels."""
    recorded = isinstance(model, Pixels) or recorded_spec(model) is not None
    return not recorded and channels_of(model) not in (1, 3, 4)


def _runs(model: nn.Module, x: Tensor) -> bool:
    try:
        with evaluation_mode(model), torch.no_grad():
            model(x)
    except Exception:  # whatever the user's code raises
        return False
    return True


def _pixel_range_faults(x: Tensor) -> list[str]:
    low, high = float(x.min()), float(x.max())
    if low >= 0 and high > _BYTES_FROM:
        return [f"pixels go up to {high:g} instead of 1: divide by 255"]
    if not (low >= -_TOLERANCE and high <= 1 + _TOLERANCE):  # NaN as well
        return [f"pixels lie in [{low:.2f}, {high:.2f}] instead of [0, 1]: leave normalizing to the model"]
    if 0 < high <= _DARKEST:
        return [f"no pixel is above {high:.4f}: the images seem to be divided by 255 twice"]
    return []


def _double_normalization(model: Pixels) -> list[str]:
    if set(model.spec.mean) == {0.0} and set(model.spec.std) == {1.0}:
        return []
    leaves = (m for m in model.net.modules() if _normalizes(m) or next(m.children(), None) is None)
    first = next(leaves, None)
    if first is None or not _normalizes(first):
        return []
    name = type(first).__name__
    return [f"the network begins with {name}, a second normalization: wrap it with mean 0 and std 1"]


def _normalizes(module: nn.Module) -> bool:
    """Whether a module looks like one that subtracts a mean from images (a batch norm does not)."""
    named = "normali" in type(module).__name__.lower() and hasattr(module, "mean") and hasattr(module, "std")
    return isinstance(module, Normalize) or named


def _output_faults(logits: Tensor, x: Tensor, y: Tensor) -> list[str]:
    if logits.dim() != 2 or len(logits) != len(x):
        return [f"the model returns shape {tuple(logits.shape)} for {len(x)} images, not (N, classes)"]
    if int(y.max()) >= logits.shape[1]:
        return [f"labels go up to {int(y.max())}, but the model has {logits.shape[1]} classes"]
    return []
