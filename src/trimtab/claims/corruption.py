"""Errors under common corruptions, for the claims of three papers.

Corruptions are computed on the fly, frost with procedural ice. So the baseline is the standard network of the
same seed; AlexNet's published errors are valid for the ImageNet-C files only.

    mCE          = mean over corruptions of E / E_standard
    relative mCE = mean(E - E_clean) / mean(E_standard - E_standard,clean)

Relative mCE is a ratio of means, since a mild corruption would dominate a mean of ratios. Clean errors are
measured on the same images.
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
        bench: Measures and caches.
        model: The network.
        state: The BN mode; running statistics if None.
        names: Corruptions; by default those of the scale.
        severities: Severities; by default those of the scale.
    """
    by_corruption = {"clean": 1 - bench.accuracy(model, state=state, n=bench.scale.corrupted)}
    for name in names or bench.scale.corruptions:
        conditions = [Corrupted(name, severity) for severity in severities or bench.scale.severities]
        by_corruption[name] = 1 - mean(
            [bench.accuracy(model, condition, state=state) for condition in conditions]
        )
    return by_corruption


def mean_error(by_corruption: Errors, names: Sequence[str] | None = None) -> float:
    """Return the mean error over the corruptions `names`, by default over all."""
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
