"""Is the model's normalization the one it was trained with? Ask whether corrected pixels classify better.

A network that receives its images normalized twice, never, with the wrong constants, in 0..255 or with
reversed channels still returns predictions, and no absolute number reveals the fault: an adversarially
trained network may lose only ten points. But each of these faults has an inverse on the pixels. If the
model applies mean a and std s where mean b and std t are right, the pixels

    x' = s (x - b) / t + a

reach the network as they should. So each candidate correction is compared with the pixels as they are, on the
same labeled images: a correction that classifies better by at least `GAIN`, beyond chance (McNemar's exact
test, times the number of candidates) and with real skill, reveals the fault.

Cost    about 20 forward passes over `FIRST` images; only corrections that help there are tried on the rest
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from scipy.stats import binomtest
from torch import Tensor

Constants: TypeAlias = tuple[tuple[float, ...], tuple[float, ...]]
"""A mean and a std per channel."""

VERSION = 1
"""Raised whenever the candidates or their comparison change."""
CHECKED = 512
"""Images that the comparison uses, if there are as many."""
FIRST = 128
"""A correction that does not help on these is not tried on the rest."""
GAIN = 0.05
"""The least gain in accuracy that reveals a fault. On the tuning families of benchmarks.detectors, faults
that cost ten points gain 11 or more, and sound networks at most 2.3."""
SIGNIFICANCE = 1e-3
"""The largest p-value that does, over all candidates together."""
SKILL = 0.2
"""The least skill of a correction: its accuracy above that of the most common label. Trained networks of the
tuning families reach 0.39; untrained ones stay below, whatever pixels happen to suit them."""
UNLIKE = 0.25
"""The distance (`unlike_constants`) from which images are of another kind than ordinary ones. On the tuning
families, clean images are at most 0.09 away, and corrupted ones that a correction suits 0.40 or more."""
NEAR = 0.05
"""Constants that differ by less are as good as each other."""

USUAL: dict[int, dict[str, Constants]] = {
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
"""Means and stds that networks are usually trained with, by number of channels."""

MISSING = "the model gets pixels that are not normalized; give it its mean and std (trimtab.models.wrap)"
TWICE = "the pixels are normalized twice; remove one of the two normalizations"
OTHER = "the model normalizes with other constants than it was trained with; give it its own mean and std"
BYTES = "the model expects pixels from 0 to 255; multiply by 255 inside the model"
UNBYTES = "the model multiplies pixels by 255, or was trained on pixels / 255; scale them once"
REVERSED = "the model expects its channels in reverse order (BGR); reverse them inside the model"


@dataclass(frozen=True)
class Correction:
    """A change of the pixels that undoes one fault: scale and offset per channel, or reversed channels."""

    name: str
    """What is done to the pixels, in words that follow "with pixels"."""
    advice: str
    """What is wrong with the model if this helps, and the remedy."""
    scale: tuple[float, ...] = (1.0,)
    offset: tuple[float, ...] = (0.0,)
    reverse: bool = False
    """Whether the order of the channels is reversed."""

    def __call__(self, x: Tensor) -> Tensor:
        """Corrected pixels, of the same shape (N, C, H, W)."""
        if self.reverse:
            return x.flip(1)
        scale, offset = (torch.tensor(v).to(x).view(-1, 1, 1) for v in (self.scale, self.offset))
        return x * scale + offset


def corrections(channels: int, known: Mapping[str, Constants] | None = None) -> tuple[Correction, ...]:
    """Return the candidate corrections for images with this number of channels.

    Args:
        channels: of the images.
        known: constants to consider besides the `USUAL` ones, by name: the model's own, those of the data.
    """
    sets = _distinct({**(known or {}), **USUAL.get(channels, {})})
    unlike: dict[str, Constants] = {}
    for name, constants in sets.items():
        if all(_apart(constants, other) >= NEAR for other in unlike.values()):
            unlike[name] = constants
    options = []
    for name, (mean, std) in sets.items():
        options.append(_affine(f"normalized as for {name}", MISSING, _plain(channels), (mean, std)))
        options.append(_affine(f"un-normalized by {name}", TWICE, (mean, std), _plain(channels)))
    for name, (mean, std) in unlike.items():
        no_mean, no_std = ((0.0,) * channels, std), (mean, (1.0,) * channels)
        options.append(_affine(f"minus the mean of {name}", OTHER, no_mean, (mean, std)))
        options.append(_affine(f"divided by the std of {name}", OTHER, no_std, (mean, std)))
    for name, applied in sets.items():
        for right, constants in sets.items():
            if _apart(applied, constants) >= NEAR:
                words = f"re-normalized from {name} to {right}"
                options.append(_affine(words, OTHER, applied, constants))
    options.append(Correction("in 0..255", BYTES, scale=(255.0,)))
    options.append(Correction("divided by 255", UNBYTES, scale=(1 / 255,)))
    if channels == 3:
        options.append(Correction("in reverse channel order", REVERSED, reverse=True))
    return tuple(options)


@dataclass(frozen=True)
class Evidence:
    """A correction that classifies significantly better than the pixels as they are."""

    correction: Correction
    before: float
    """Accuracy with the pixels as they are."""
    after: float
    """Accuracy with the correction."""
    p_value: float
    """Of McNemar's exact one-sided test, times the number of candidates."""

    def __str__(self) -> str:
        rise = f"accuracy rises from {self.before:.1%} to {self.after:.1%}"
        return f"{rise} with pixels {self.correction.name}"


@torch.no_grad()
def compare(
    call: Callable[[Tensor], Tensor], x: Tensor, y: Tensor, options: Sequence[Correction]
) -> tuple[Tensor, Tensor]:
    """Return which images are classified correctly as they are (N,), and with each option (options, N).

    A correction that does not help on the `FIRST` images counts as no change on the rest.

    Args:
        call: returns the logits of pixels.
        x: clean images, (N, C, H, W).
        y: their labels.
        options: the candidate corrections.
    """
    as_given = call(x).argmax(1) == y
    corrected = as_given.repeat(len(options), 1)
    for row, option in zip(corrected, options, strict=True):
        row[:FIRST] = call(option(x[:FIRST])).argmax(1) == y[:FIRST]
        if len(x) > FIRST and row[:FIRST].sum() > as_given[:FIRST].sum():
            row[FIRST:] = call(option(x[FIRST:])).argmax(1) == y[FIRST:]
    return as_given, corrected


def strongest(
    as_given: Tensor, corrected: Tensor, y: Tensor, options: Sequence[Correction]
) -> Evidence | None:
    """Return the correction that gains most, if its gain is large and significant.

    Args:
        as_given: which images are classified correctly as they are, (N,).
        corrected: which are with each option, (options, N).
        y: the labels; a correction must also be much better than predicting the most common one.
        options: the candidate corrections.
    """
    if not options or not len(y):
        return None
    best = int(corrected.sum(1).argmax())
    constant = float((y == y.mode().values).double().mean())
    before, after = (float(values.double().mean()) for values in (as_given, corrected[best]))
    p_value = len(options) * p_better(corrected[best], as_given)
    if after - before < GAIN or p_value >= SIGNIFICANCE or skill(after, constant) < SKILL:
        return None
    return Evidence(options[best], before, after, p_value)


def skill(accuracy: float, constant: float) -> float:
    """Return how far an accuracy is above that of the most common label, 1 for a perfect one.

    Args:
        accuracy: of the classifier.
        constant: the fraction of images with the most common label.
    """
    return (accuracy - constant) / (1 - constant) if constant < 1 else 0.0


def p_better(correct: Tensor, baseline: Tensor) -> float:
    """Return the p-value of McNemar's exact one-sided test that `correct` is true more often."""
    gained, lost = int((correct & ~baseline).sum()), int((baseline & ~correct).sum())
    return float(binomtest(gained, gained + lost, alternative="greater").pvalue) if gained > lost else 1.0


def is_certain(evidence: Evidence, x: Tensor, known: Mapping[str, Constants]) -> bool:
    """Return whether the model is at fault, and not images of another kind that a correction happens to suit.

    It is where the images' own mean and std are ordinary, and for faults that no kind of images resembles.

    Args:
        evidence: of the correction that classifies best.
        x: clean images, (N, C, H, W).
        known: constants by where they are recorded, the model's before those of the data.
    """
    resembled = evidence.correction.advice in (MISSING, TWICE, OTHER)
    return not resembled or unlike_constants(x, references(x.shape[1], known)) <= UNLIKE


def unlike_constants(x: Tensor, references: Sequence[Constants]) -> float:
    """Return how far the images' own mean and std are from those of the nearest reference.

    The largest over channels of |mean difference| / std and |log2(std ratio)|; 0 where they agree. Images of
    the kind that a model was trained on agree with its constants, whether or not it applies them rightly.

    Args:
        x: pixels, (N, C, H, W).
        references: means and stds of ordinary images.
    """
    mean, std = x.mean((0, 2, 3)).double().cpu(), x.std((0, 2, 3)).double().cpu().clamp(min=1e-6)
    apart = []
    for reference_mean, reference_std in references:
        m, s = torch.tensor(reference_mean).double(), torch.tensor(reference_std).double()
        apart.append(float(torch.maximum((mean - m).abs() / s, (std / s).log2().abs()).max()))
    return min(apart, default=0.0)


def references(channels: int, known: Mapping[str, Constants]) -> list[Constants]:
    """Return the means and stds of ordinary images: those recorded, and the usual ones.

    Args:
        channels: of the images.
        known: constants by where they are recorded; the first set that normalizes counts.
    """
    recorded = dict(list(_distinct(known).items())[:1])
    sets = _distinct(recorded | USUAL.get(channels, {}))
    return [constants for constants in sets.values() if set(constants[0]) != {0.5}]


def _plain(channels: int) -> Constants:
    return (0.0,) * channels, (1.0,) * channels


def _affine(name: str, advice: str, applied: Constants, right: Constants) -> Correction:
    """The pixels that a model which applies some constants must get to see what the right ones would give."""
    scale = tuple(s / t for s, t in zip(applied[1], right[1], strict=True))
    offset = tuple(a - b * k for a, b, k in zip(applied[0], right[0], scale, strict=True))
    return Correction(name, advice, scale, offset)


def _distinct(known: Mapping[str, Constants]) -> dict[str, Constants]:
    """The sets of constants that normalize at all, each once."""
    kept: dict[str, Constants] = {}
    for name, constants in known.items():
        normalizes = any(constants[0]) or set(constants[1]) != {1.0}
        if normalizes and all(_apart(constants, other) >= 0.005 for other in kept.values()):
            kept[name] = constants
    return kept


def _apart(first: Constants, second: Constants) -> float:
    pairs = zip((*first[0], *first[1]), (*second[0], *second[1]), strict=True)
    return max(abs(a - b) for a, b in pairs)
