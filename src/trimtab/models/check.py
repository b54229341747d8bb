"""Is the input what the model expects? Said before a number is printed, not after.

A network that sees data normalised twice, never, or with a wrong mean still gives a number, and nobody
can tell from it. Three things give it away: pixels outside [0, 1]; a network that itself begins by
normalising; and, with labels, another usual normalisation that classifies far better than the model's own.
The last one costs five forward passes and needs some accuracy to tell by: on an untrained network, or
with a handful of images, it says nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from torch import Tensor, nn

from trimtab.models.memory import in_parts
from trimtab.models.pixels import (
    Normalise,
    Pixels,
    channels_of,
    evaluating,
    plain_spec,
    recorded_spec,
    wrap,
)
from trimtab.types import InputSpec

_TOLERANCE = 0.01
"""How far pixels may leave [0, 1] (resizing overshoots a little)."""
_GAIN, _SIGMAS = 0.05, 4.0
"""By how much another normalisation must beat the model's, and how surely, to be reported."""

USUAL: dict[int, dict[str, tuple[tuple[float, ...], tuple[float, ...]]]] = {
    3: {
        "ImageNet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        "CIFAR-10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
        "[-1, 1]": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    },
    1: {
        "MNIST": ((0.1307,), (0.3081,)),
        "Fashion-MNIST": ((0.2860,), (0.3530,)),
        "[-1, 1]": ((0.5,), (0.5,)),
    },
}
"""Means and deviations that networks are usually trained with, by channels."""


class Faults(NamedTuple):
    """What is wrong with an input, a sentence each."""

    certain: list[str]
    possible: list[str]
    """What may also be the images': of another kind than the model was trained on."""


def check_input(model: nn.Module, x: Tensor, y: Tensor | None = None) -> list[str]:
    """What is wrong with giving `x` (clean images, labels `y` if known) to `model`: a sentence each, or none.

    The model is left as it was.
    """
    found = input_faults(model, x, y)
    return [*found.certain, *found.possible]


def input_faults(model: nn.Module, x: Tensor, y: Tensor | None = None) -> Faults:
    """As `check_input`, what is certain apart from what is possible."""
    pixels = wrap(model)
    if not x.is_floating_point():
        return Faults([f"pixels are {x.dtype}, the model takes floats in [0, 1]: divide by 255"], [])
    if x.dim() == 4 and x.shape[1] != pixels.spec.channels and _guessed(model) and _runs(model, x[:2]):
        pixels = wrap(model, plain_spec(x.shape[1]))
    if x.dim() != 4 or x.shape[1] != pixels.spec.channels:
        takes = f"the model takes (N, {pixels.spec.channels}, H, W)"
        return Faults([f"images have shape {tuple(x.shape)}, {takes}"], [])
    found = [*_range_faults(x), *_double_normalisation(pixels)]
    return Faults(found, []) if found or y is None else _faults_by_accuracy(pixels, x, y)


def _guessed(model: nn.Module) -> bool:
    """Whether nobody said how many channels a model takes, nor does a first convolution for pictures."""
    said = isinstance(model, Pixels) or recorded_spec(model) is not None
    return not said and channels_of(model) not in (1, 3, 4)


def _runs(model: nn.Module, x: Tensor) -> bool:
    try:
        with evaluating(model):
            model(x)
    except Exception:  # whatever the user's code raises
        return False
    return True


def _range_faults(x: Tensor) -> list[str]:
    low, high = float(x.min()), float(x.max())
    if low >= 0 and high > 2:
        return [f"pixels go up to {high:g} instead of 1: divide by 255"]
    if not (low >= -_TOLERANCE and high <= 1 + _TOLERANCE):  # NaN as well
        return [f"pixels lie in [{low:.2f}, {high:.2f}] instead of [0, 1]: leave normalising to the model"]
    if 0 < high <= 0.02:
        return [f"no pixel is above {high:.4f}: the images seem to be divided by 255 twice"]
    return []


def _double_normalisation(model: Pixels) -> list[str]:
    if set(model.spec.mean) == {0.0} and set(model.spec.std) == {1.0}:
        return []
    first = next((m for m in model.net.modules() if _normalises(m) or next(m.children(), None) is None), None)
    if first is None or not _normalises(first):
        return []
    begins = type(first).__name__
    return [f"the network begins with {begins}, a second normalisation: wrap it with mean 0 and deviation 1"]


def _normalises(module: nn.Module) -> bool:
    """Whether a module looks like one that subtracts a mean from images (a batch norm does not)."""
    named = "normali" in type(module).__name__.lower() and hasattr(module, "mean") and hasattr(module, "std")
    return isinstance(module, Normalise) or named


def _faults_by_accuracy(model: Pixels, x: Tensor, y: Tensor) -> Faults:
    with evaluating(model):
        logits = in_parts(model, x)
        if logits.dim() != 2 or len(logits) != len(x):
            shape = tuple(logits.shape)
            return Faults([f"the model returns shape {shape} for {len(x)} images, not (N, classes)"], [])
        if int(y.max()) >= logits.shape[1]:
            classes = logits.shape[1]
            return Faults([f"labels go up to {int(y.max())}, but the model has {classes} classes"], [])
        own = logits.argmax(1) == y
        best, found = _GAIN, Faults([], [])
        for name, spec in _alternatives(model.spec).items():
            other = in_parts(model.net, Normalise(spec.mean, spec.std).to(x)(x)).argmax(1) == y
            if _share(other) - _share(own) > best and _sure(other, own):
                best = _share(other) - _share(own)
                saw = f"with {name} the model gets {_share(other):.0%} of these images right, with its own "
                saw += f"mean and deviation {_share(own):.0%}: its InputSpec "
                if 1 - _share(other) < (1 - _share(own)) / 2:
                    found = Faults([saw + "seems wrong"], [])
                else:  # the right one would mend more than that
                    found = Faults([], [saw + "may be wrong, or the images are of a kind that is new to it"])
        return found


def _alternatives(spec: InputSpec) -> dict[str, InputSpec]:
    plain = {"no normalisation": ((0.0,) * spec.channels, (1.0,) * spec.channels)}
    usual = {f"the mean and deviation of {name}": it for name, it in USUAL.get(spec.channels, {}).items()}
    return {name: replace(spec, mean=mean, std=std) for name, (mean, std) in (plain | usual).items()}


def _share(right: Tensor) -> float:
    return float(right.float().mean())


def _sure(other: Tensor, own: Tensor) -> bool:
    """McNemar's test: are the images that only one of the two gets right too unevenly spread for chance?"""
    won, lost = int((other & ~own).sum()), int((own & ~other).sum())
    return won - lost > _SIGMAS * (won + lost) ** 0.5
