"""Errors under common corruptions, for the claims of three papers.

Corruptions are computed on the fly, frost with generated ice, so errors are relative to those of the standard
network of the same seed: AlexNet's published ones belong to the files of ImageNet-C. mCE is the mean over
corruptions of E / E_standard. Relative mCE is a ratio of means of E - E_clean: a mild corruption hardly
changes the error and would dominate a mean of ratios. The clean error is that of the same images.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from trimtab.claims.bench import Bench
from trimtab.claims.power import mean, ratio
from trimtab.evaluate import BNMode, Corrupted

NOISE = ("gaussian_noise", "shot_noise", "impulse_noise")
BLUR = ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur")
WEATHER = ("snow", "frost", "fog", "brightness", "contrast")
DIGITAL = ("elastic_transform", "pixelate", "jpeg_compression")
CATEGORIES = {"noise": NOISE, "blur": BLUR, "weather": WEATHER, "digital": DIGITAL}

Errors = dict[str, float]
"""By corruption, averaged over severities; the clean error is under "clean"."""


def errors(
    bench: Bench,
    model: nn.Module,
    state: BNMode | None = None,
    names: Sequence[str] | None = None,
    severities: Sequence[int] | None = None,
) -> Errors:
    """Return a model's errors by corruption, and on the clean images.

    Args:
        bench: The bench.
        model: The model.
        state: The BN mode; running statistics if None.
        names: The corruptions; by default those of the scale.
        severities: By default those of the scale.
    """
    by_corruption = {"clean": 1 - bench.accuracy(model, state=state, n=bench.scale.corrupted)}
    for name in names or bench.scale.corruptions:
        conditions = [Corrupted(name, severity) for severity in severities or bench.scale.severities]
        by_corruption[name] = 1 - mean([bench.accuracy(model, at, state=state) for at in conditions])
    return by_corruption


def mean_error(by_corruption: Errors, names: Sequence[str] | None = None) -> float:
    """Return the mean error over corruptions; over all of them without `names`."""
    names = names or [name for name in by_corruption if name != "clean"]
    return mean([by_corruption[name] for name in names])


def mce(by_corruption: Errors, standard: Errors, relative: bool = False) -> float:
    """Return the (relative) mean corruption error with the standard network as baseline."""
    names = [name for name in by_corruption if name != "clean"]
    if not relative:
        return mean([ratio(by_corruption[name], standard[name]) for name in names])
    ours, theirs = (
        mean([errors[name] - errors["clean"] for name in names]) for errors in (by_corruption, standard)
    )
    return ratio(ours, theirs)
