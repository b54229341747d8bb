"""Errors under common corruptions, as the studies of three papers need them.

At the paper's scale corruption errors are relative to AlexNet's, as published for ImageNet-C: mCE is the mean
over corruptions of E / E_Alex, relative mCE that of (E - E_clean) / (E_Alex - E_Alex,clean). Elsewhere they
are relative to those of the standard network of the same seed, and relative mCE is a ratio of means: a mild
corruption costs a small network next to nothing, and would decide a mean of ratios alone. Clean error is
that of the images that are corrupted, too. Corruptions are made on the fly, frost from grown ice.
"""

from __future__ import annotations

import math
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
    found = {"clean": 1 - bench.accuracy(model, state=state, n=bench.scale.corrupted)}
    for name in names or bench.scale.corruptions:
        shown = [Corrupted(name, severity) for severity in severities or bench.scale.severities]
        found[name] = 1 - fmean(bench.accuracy(model, one, state=state) for one in shown)
    return found


def mean_error(found: Errors, names: Sequence[str] | None = None) -> float:
    return fmean(found[name] for name in names or [name for name in found if name != "clean"])


def mce(bench: Bench, found: Errors, standard: Errors, relative: bool = False) -> float:
    """Mean corruption error, or what is lost beside clean images; `standard` is the baseline off ImageNet."""
    names = [name for name in found if name != "clean"]
    paper = bench.scale.name == "paper"
    base = {"clean": ALEXNET.clean, **ALEXNET.mean_errors} if paper else standard
    less, base_less = (found["clean"], base["clean"]) if relative else (0.0, 0.0)
    ours, theirs = [found[name] - less for name in names], [base[name] - base_less for name in names]
    if relative and not paper:
        return _ratio(fmean(ours), fmean(theirs))
    return fmean(_ratio(a, b) for a, b in zip(ours, theirs, strict=True))


def _ratio(ours: float, theirs: float) -> float:
    """Beside a baseline that loses nothing, nothing can be said."""
    return ours / theirs if theirs > 0 else math.nan
