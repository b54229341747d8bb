"""Corruption error: the errors under common corruptions relative to those of a named baseline.

Hendrycks and Dietterich 2019, section 4. With E(s, c) the top-1 error at severity s of corruption c, E(clean)
the clean error and B the baseline's errors:

    CE(c)          = sum_s E(s, c) / sum_s B(s, c)
    relative CE(c) = sum_s (E(s, c) - E(clean)) / sum_s (B(s, c) - B(clean))

mCE and relative mCE are their means over the fifteen corruptions, as fractions (1 = equal to the baseline;
the literature multiplies by 100). Without a baseline (CIFAR-10-C has none) report `mean_error`, the mean over
corruptions and severities, and `gap`, its difference from the clean error. The four extra corruptions may be
in the table; they get their own CE and are not part of any mean.

The AlexNet constants belong to the published ImageNet-C files (center crop of 224, no resizing, stored as
JPEG). Corruptions computed on the fly differ from those files: an mCE on them compares networks with each
other, not with published numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from trimtab.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS
from trimtab.types import BadInput

Errors = Mapping[str, Sequence[float]]
"""Top-1 errors in [0, 1] by corruption, one per severity."""


@dataclass(frozen=True)
class Baseline:
    """The network that corruption errors are measured against."""

    name: str
    """Its name."""
    clean: float
    """Its clean top-1 error."""
    mean_errors: Mapping[str, float]
    """Its top-1 error by corruption, averaged over the severities."""

    @classmethod
    def of(cls, name: str, errors: Errors, clean: float) -> Baseline:
        """Build a baseline from its table of errors, which must be measured on the same images."""
        _check(errors, clean)
        return cls(name, clean, {corruption: _mean(row) for corruption, row in errors.items()})


ALEXNET = Baseline(
    "AlexNet",
    0.435,
    MappingProxyType(
        {
            "gaussian_noise": 0.886428,
            "shot_noise": 0.894468,
            "impulse_noise": 0.922640,
            "defocus_blur": 0.819880,
            "glass_blur": 0.826268,
            "motion_blur": 0.785948,
            "zoom_blur": 0.798360,
            "snow": 0.866816,
            "frost": 0.826572,
            "fog": 0.819324,
            "brightness": 0.564592,
            "contrast": 0.853204,
            "elastic_transform": 0.646056,
            "pixelate": 0.717840,
            "jpeg_compression": 0.606500,
            "speckle_noise": 0.845388,
            "gaussian_blur": 0.787108,
            "spatter": 0.717512,
            "saturate": 0.658248,
        }
    ),
)
"""AlexNet's published errors on ImageNet-C, the baseline of every mCE on ImageNet."""


@dataclass(frozen=True)
class CorruptionError:
    """The summary of a table of errors. Fractions, not percent."""

    clean: float
    """Clean top-1 error."""
    errors: Mapping[str, tuple[float, ...]]
    """By corruption and severity, as given."""
    baseline: str | None
    """Name of the baseline."""
    ce: Mapping[str, float]
    """CE by corruption; empty without a baseline."""
    relative_ce: Mapping[str, float]
    """Relative CE by corruption; empty without a baseline."""

    @property
    def complete(self) -> bool:
        """Whether all fifteen corruptions are in the table; a mean over fewer must not be called mCE."""
        return all(name in self.errors for name in CORRUPTIONS)

    @property
    def mean_errors(self) -> dict[str, float]:
        """Top-1 errors by corruption, averaged over the severities."""
        return {name: _mean(row) for name, row in self.errors.items()}

    @property
    def mean_error(self) -> float:
        """Top-1 error, averaged over the fifteen corruptions and all severities."""
        return self._over_fifteen(self.mean_errors)

    @property
    def gap(self) -> float:
        """The mean error minus the clean error."""
        return self.mean_error - self.clean

    @property
    def mce(self) -> float:
        """Mean CE over the fifteen corruptions."""
        return self._over_fifteen(self.ce)

    @property
    def relative_mce(self) -> float:
        """Mean relative CE over the fifteen corruptions."""
        return self._over_fifteen(self.relative_ce)

    def _over_fifteen(self, values: Mapping[str, float]) -> float:
        missing = [name for name in CORRUPTIONS if name not in values]
        if missing:
            raise BadInput(
                "a mean over the fifteen corruptions needs them all, and mCE a baseline; "
                f"missing: {', '.join(missing)}"
            )
        return _mean([values[name] for name in CORRUPTIONS])


def corruption_error(errors: Errors, clean: float, baseline: Baseline | None = ALEXNET) -> CorruptionError:
    """Summarize top-1 errors by corruption and severity; `baseline=None` omits the ratios.

    >>> errors = {name: [0.2, 0.3, 0.4, 0.5, 0.6] for name in CORRUPTIONS}
    >>> result = corruption_error(errors, clean=0.1, baseline=Baseline.of("itself", errors, 0.1))
    >>> result.mce, result.relative_mce, round(result.gap, 9)
    (1.0, 1.0, 0.3)
    """
    _check(errors, clean)
    rows = {name: tuple(float(e) for e in row) for name, row in errors.items()}
    if baseline is None:
        return CorruptionError(clean, rows, None, {}, {})
    missing = [name for name in rows if name not in baseline.mean_errors]
    if missing:
        raise BadInput(f"the baseline {baseline.name} has no error for {', '.join(missing)}")
    ce, relative = {}, {}
    for name, row in rows.items():
        theirs = baseline.mean_errors[name]
        ce[name] = _ratio(_mean(row), theirs)
        relative[name] = _ratio(_mean(row) - clean, theirs - baseline.clean)
    return CorruptionError(clean, rows, baseline.name, ce, relative)


def _check(errors: Errors, clean: float) -> None:
    known = CORRUPTIONS + EXTRA_CORRUPTIONS
    for name, row in errors.items():
        if name not in known:
            raise BadInput(f"there is no corruption {name!r}; choose from {', '.join(known)}")
        if len(row) != 5:
            raise BadInput(f"{name} needs an error for each of the five severities, found {len(row)}")
        if not all(0 <= e <= 1 for e in row):
            raise BadInput(
                f"errors must be fractions in [0, 1], found {list(row)} for {name}; divide percent by 100"
            )
    if not 0 <= clean <= 1:
        raise BadInput(
            f"the clean error must be a fraction in [0, 1], found {clean:g}; divide percent by 100"
        )


def _mean(values: Sequence[float]) -> float:
    return float(sum(values)) / len(values)


def _ratio(above: float, below: float) -> float:
    return above / below if below else float("nan")
