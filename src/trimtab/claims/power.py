"""Detectable effects, and standard errors over training seeds and test images.

    detectable         the smallest effect that a paired test over n seeds detects with probability 0.8
    too_small          whether that is more than half of the paper's effect
    holm               which of several p-values are rejected, the family-wise error controlled
    crossed_error      a standard error over training seeds *and* test images
    PerImage           a mean that keeps its per-image values
    ratio              a quotient of two such means, with the per-image values of the delta method

**Crossed bootstrap.** A per-image outcome d[s, i] of seed s and image i varies with the seed, with the
image, and with both: var(mean) = v_seed / S + v_image / N + v_both / (S N). Seeds and images are resampled
independently, each with replacement (Owen's pigeonhole bootstrap); the variance over seeds is multiplied
by S / (S - 1), since a bootstrap over few units underestimates it, and intervals use Student's quantile with
S - 1 degrees of freedom.
"""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

Array = NDArray[np.float64]
POWER = 0.8
"""Probability with which an effect of the detectable size is detected."""
RESAMPLES = 1000
"""Bootstrap samples."""


def power(effect: float, std: float, n: int, level: float = 0.95) -> float:
    """Return the probability that the lower end of a paired Student interval exceeds 0.

    Args:
        effect: The true mean of the contrast.
        std: Its std over seeds.
        n: Number of seeds.
        level: Level of the two-sided interval.
    """
    if n < 2:
        return 0.0
    if std == 0:
        return float(effect > 0)
    bound = stats.t.ppf((1 + level) / 2, n - 1)
    return float(stats.nct.sf(bound, n - 1, effect * math.sqrt(n) / std))


def detectable(std: float, n: int, level: float = 0.95, at: float = POWER) -> float:
    """Return the smallest effect that is detected with probability `at`; infinite with a single seed."""
    if n < 2:
        return math.inf
    if std == 0:
        return 0.0
    standard = optimize.brentq(lambda effect: power(effect, 1.0, n, level) - at, 0, 1000)
    return float(standard * std)


def too_small(effect: float | None, paper: float | None) -> bool:
    """Return whether the smallest detectable effect exceeds half of the paper's effect.

    Args:
        effect: The smallest detectable effect of a setting; None if unknown.
        paper: The paper's effect; None if it states none.
    """
    return effect is not None and paper is not None and effect > paper / 2


def holm(p_values: Sequence[float], alpha: float) -> list[bool]:
    """Return which hypotheses Holm's step-down procedure rejects at family-wise level `alpha`."""
    rejected = [False] * len(p_values)
    for rank, index in enumerate(np.argsort(p_values, kind="stable")):
        if not p_values[index] <= alpha / (len(p_values) - rank):
            break
        rejected[index] = True
    return rejected


def crossed_error(values: Array, resamples: int = RESAMPLES, seed: int = 0) -> float:
    """Return the standard error of the mean by the crossed bootstrap, over seeds and images.

    Args:
        values: One contrast per seed and image (seeds, images); all seeds have the same images.
        resamples: Bootstrap samples.
        seed: Seed of the resampling.
    """
    seeds, images = values.shape
    rng = np.random.default_rng(seed)
    seed_weights = rng.multinomial(seeds, np.full(seeds, 1 / seeds), resamples) / seeds  # (resamples, seeds)
    image_weights = rng.multinomial(images, np.full(images, 1 / images), resamples) / images
    means = np.einsum("rs,si,ri->r", seed_weights, values, image_weights, optimize=True)
    by_seed = values.mean(1)
    correction = by_seed.var(ddof=1) / seeds - by_seed.var() / seeds  # the factor S / (S - 1)
    return math.sqrt(float(means.var(ddof=1)) + float(correction))


def mean_and_error(contrasts: Sequence[float]) -> tuple[float, float, str]:
    """Return the mean of contrasts, its standard error, and what that is over.

    It is over seeds and images if every contrast has per-image values, of the same number of images. The
    error of a single value, or of one that is not finite, is infinite.
    """
    images = [contrast.values for contrast in contrasts if isinstance(contrast, PerImage)]
    if len(images) == len(contrasts) > 1 and len({len(values) for values in images}) == 1:
        crossed = np.stack(images)
        return float(crossed.mean()), crossed_error(crossed), "seeds and images"
    plain, error = [float(contrast) for contrast in contrasts], math.inf
    if len(plain) > 1 and all(map(math.isfinite, plain)):
        error = stdev(plain) / math.sqrt(len(plain))
    return fmean(plain) if plain else math.nan, error, "units"


class PerImage(float):
    """A mean over images that keeps the per-image values through +, -, * and /.

    Any other operation returns a plain float, whose intervals are over seeds only.
    """

    values: Array
    """One per image."""

    def __new__(cls, values: Any) -> PerImage:
        array = np.asarray(values, dtype=np.float64)
        self = super().__new__(cls, array.mean())
        self.values = array
        return self

    def __add__(self, other: float) -> float:
        return self._with(other, np.add, float.__add__)

    __radd__ = __add__

    def __sub__(self, other: float) -> float:
        return self._with(other, np.subtract, float.__sub__)

    def __rsub__(self, other: float) -> float:
        return self._with(other, lambda a, b: b - a, float.__rsub__)

    def __mul__(self, other: float) -> float:
        if isinstance(other, PerImage):
            return float(self) * float(other)
        return PerImage(self.values * other)

    __rmul__ = __mul__

    def __truediv__(self, other: float) -> float:
        if isinstance(other, PerImage):
            return float(self) / float(other)
        return PerImage(self.values / other)

    def __neg__(self) -> float:
        return PerImage(-self.values)

    def __reduce__(self) -> tuple[type[PerImage], tuple[Array]]:
        return PerImage, (self.values,)

    def _with(self, other: float, elementwise: Any, plain: Any) -> float:
        """Combine two means image by image; means over different images only as plain floats."""
        if not isinstance(other, PerImage):
            return PerImage(elementwise(self.values, other))
        if len(other.values) != len(self.values):
            return float(plain(float(self), float(other)))
        return PerImage(elementwise(self.values, other.values))


def pack(row: PerImage) -> str:
    """Return per-image values as text, "n/k:base64"; "" if some are not finite.

    Outcomes of -1, 0 and 1 take two bits per image (k = 0), averages of up to 127 of them one byte (multiples
    of 1/k), other values four (k = f, little-endian float32).
    """
    if not np.isfinite(row.values).all():
        return ""
    if np.isin(row.values, (-1, 0, 1)).all():
        packed = np.packbits(np.concatenate([row.values > 0, row.values < 0])).tobytes()
        return f"{len(row.values)}/0:{base64.b64encode(packed).decode()}"
    for k in range(2, 128):
        whole = np.rint(row.values * k)
        if np.abs(whole).max() <= 127 and np.abs(row.values * k - whole).max() < 1e-6:
            packed = zlib.compress(whole.astype(np.int8).tobytes(), 9)
            return f"{len(row.values)}/{k}:{base64.b64encode(packed).decode()}"
    packed = zlib.compress(row.values.astype("<f4").tobytes(), 9)
    return f"{len(row.values)}/f:{base64.b64encode(packed).decode()}"


def unpack(text: str) -> PerImage:
    """Return the per-image values in the text of `pack`."""
    head, _, packed = text.partition(":")
    size, _, k = head.partition("/")
    n, raw = int(size), base64.b64decode(packed)
    if k == "f":
        return PerImage(np.frombuffer(zlib.decompress(raw), "<f4"))
    if k != "0":
        return PerImage(np.frombuffer(zlib.decompress(raw), np.int8) / int(k))
    bits = np.unpackbits(np.frombuffer(raw, np.uint8), count=2 * n).astype(np.float64)
    return PerImage(bits[:n] - bits[n:])


def ratio(ours: float, theirs: float) -> float:
    """Return a quotient of means; NaN if the divisor is not positive.

    Of means over the same images r = a / b, per-image values are its linear expansion r + (a_i - r b_i) / b:
    their mean is r, their standard error that of the delta method.
    """
    if not theirs > 0:
        return math.nan
    r = float(ours) / float(theirs)
    images = [value.values for value in (ours, theirs) if isinstance(value, PerImage)]
    if len(images) < 2 or len(images[0]) != len(images[1]):
        return r
    return PerImage(r + (images[0] - r * images[1]) / float(theirs))


def mean(values: Sequence[float]) -> float:
    """Return the mean, with per-image values if all values have them for the same images."""
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total / len(values)
