"""Errors under common corruptions, as the studies of three papers need them.

At the paper's scale corruption errors are relative to AlexNet's, as published for ImageNet-C; elsewhere to
those of the standard network of the same seed. Corruptions are made on the fly, frost from grown ice.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from torch import nn

from trimtab.evaluate import Corrupted, NormState
from trimtab.measure.corruption_error import ALEXNET
from trimtab.studies.bench import Bench

NOISE = ("gaussian_noise", "shot_noise", "impulse_noise")
BLUR = ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur")
WEATHER = ("snow", "frost", "fog", "brightness", "contrast")
DIGITAL = ("elastic_transform", "pixelate", "jpeg_compression")
CATEGORIES = {"noise": NOISE, "blur": BLUR, "weather": WEATHER, "digital": DIGITAL}

Errors = dict[str, float]
"""By corruption, averaged over severities; under "clean" without one."""


def errors(
    bench: Bench,
    model: nn.Module,
    state: NormState | None = None,
    names: Sequence[str] | None = None,
    severities: Sequence[int] | None = None,
) -> Errors:
    found = {"clean": 1 - bench.accuracy(model, state=state)}
    for name in names or bench.scale.corruptions:
        shown = [Corrupted(name, severity) for severity in severities or bench.scale.severities]
        found[name] = 1 - fmean(bench.accuracy(model, one, state=state) for one in shown)
    return found


def mean_error(found: Errors, names: Sequence[str] | None = None) -> float:
    return fmean(found[name] for name in names or [name for name in found if name != "clean"])


def mce(bench: Bench, found: Errors, standard: Errors, relative: bool = False) -> float:
    """Mean corruption error, or what is lost beside clean images; `standard` is the baseline off ImageNet."""
    base = standard
    if bench.scale.name == "paper":
        base = {"clean": ALEXNET.clean, **ALEXNET.mean_errors}
    names = [name for name in found if name != "clean"]
    less, base_less = (found["clean"], base["clean"]) if relative else (0.0, 0.0)
    return fmean((found[name] - less) / _not_zero(base[name] - base_less) for name in names)


def _not_zero(value: float) -> float:
    return value if abs(value) > 1e-3 else 1e-3  # a corruption that costs nothing would divide by nothing
