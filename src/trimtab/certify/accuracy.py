"""Certified accuracy over radii, for one noise level and for several.

    accuracy(r) = fraction of images whose certified class is correct and whose radius is at least r

An abstention counts as wrong. A small sigma certifies many images at small radii, a large one few images at
large radii; a network with adapted statistics can be certified at any sigma (Nandy et al., appendix D). Two
ways to combine several sigmas:

`envelope`                 the paper's: per image the sigma with the largest radius. That sigma may differ
                           at x + d, so this is not a certificate of any single classifier, and with k
                           sigmas the probability of a wrong radius is up to k alpha. Its label says so.
`fixed_sigma_per_radius`   the certified counterpart: for each radius the best sigma on held-out images.
                           Each column is the certified accuracy of a single classifier.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trimtab.certify.smoothing import ABSTAIN, Certificates
from trimtab.runtime import check_pairs
from trimtab.types import BadInput, number, pretty

ENVELOPE = "the paper's envelope, not a certificate of one classifier"
"""Label of an `envelope` curve."""

Radii = Sequence[float | str]


@dataclass(frozen=True)
class CertifiedCurve:
    """Certified accuracy at radii: a row of the paper's table 6."""

    label: str
    radii: tuple[float, ...]
    accuracy: tuple[float, ...]
    """Fraction of images, per radius."""
    sigmas: tuple[float, ...] | None
    """Sigma of the classifier, per radius; None if it differs between images: then nothing is certified."""
    images: int
    """Number of images."""

    @property
    def certified(self) -> bool:
        """Whether the curve is a certificate, each column that of a single classifier."""
        return self.sigmas is not None

    def __str__(self) -> str:
        name = "certified" if self.certified else "envelope"
        rows = [("radius", map(pretty, self.radii)), (name, (f"{100 * a:.1f}" for a in self.accuracy))]
        if self.sigmas is not None:
            rows.append(("sigma", map(pretty, self.sigmas)))
        return "\n".join(
            [self.label, *(f"{name:<9}" + "".join(f"{v:>7}" for v in row) for name, row in rows)]
        )


def certified_accuracy(certificates: Certificates, y: Tensor, radii: Radii) -> CertifiedCurve:
    """Return the fraction of images that are certified with the correct class at each radius."""
    at = _radii(radii)
    correct = _correct(certificates, y)
    accuracy = tuple(_fraction(correct, certificates.radii, r) for r in at)
    return CertifiedCurve(str(certificates), at, accuracy, (certificates.sigma,) * len(at), len(certificates))


def envelope(several: Sequence[Certificates], y: Tensor, radii: Radii) -> CertifiedCurve:
    """Return the curve of the best sigma per image: the paper's figure 3, which certifies no classifier."""
    _require_same_images(several)
    at = _radii(radii)
    largest, best = torch.stack([c.radii for c in several]).max(dim=0)
    correct = torch.stack([_correct(c, y) for c in several]).gather(0, best[None])[0]
    label = f"{ENVELOPE} (sigma {', '.join(pretty(c.sigma) for c in several)})"
    return CertifiedCurve(label, at, tuple(_fraction(correct, largest, r) for r in at), None, len(y))


def fixed_sigma_per_radius(
    held_out: Sequence[Certificates],
    held_out_y: Tensor,
    test: Sequence[Certificates],
    test_y: Tensor,
    radii: Radii,
) -> CertifiedCurve:
    """Return the certified accuracy with, for each radius, the sigma that certifies most held-out images.

    Ties go to the larger sigma. The choice must be independent of the test noise: held-out
    and test certificates must differ in seed or in ids.
    """
    _require_same_images(held_out)
    _require_same_images(test)
    by_sigma = {c.sigma: c for c in test}
    if len(by_sigma) != len(test) or set(by_sigma) != {c.sigma for c in held_out}:
        raise BadInput(
            "held-out and test certificates must have the same sigmas, each once; found "
            f"{[c.sigma for c in held_out]} and {[c.sigma for c in test]}"
        )
    if held_out[0].seed == test[0].seed and bool(torch.isin(held_out[0].ids, test[0].ids).any()):
        raise BadInput(
            "held-out and test certificates share seed and ids, and thus noise; certify the held-out images "
            "with another seed"
        )
    at = _radii(radii)
    correct = {c.sigma: _correct(c, held_out_y) for c in held_out}
    sigmas = tuple(max((_fraction(correct[c.sigma], c.radii, r), c.sigma) for c in held_out)[1] for r in at)
    accuracy = tuple(
        _fraction(_correct(by_sigma[sigma], test_y), by_sigma[sigma].radii, r)
        for sigma, r in zip(sigmas, at, strict=True)
    )
    label = f"sigma fixed per radius on {len(held_out_y)} held-out images, certified on {len(test_y)} others"
    return CertifiedCurve(label, at, accuracy, sigmas, len(test_y))


def _fraction(correct: Tensor, radii: Tensor, r: float) -> float:
    return float((correct & (radii >= r)).double().mean())


def _correct(certificates: Certificates, y: Tensor) -> Tensor:
    if len(y) != len(certificates):
        raise BadInput(
            f"{len(certificates)} certificates came with {len(y)} labels; give one label per image"
        )
    check_pairs(certificates.classes, y)
    return (certificates.classes == y.cpu()) & (certificates.classes != ABSTAIN)


def _radii(radii: Radii) -> tuple[float, ...]:
    values = tuple(number(r) for r in radii)
    if not values or min(values) < 0:
        raise BadInput(f"radii must be given and must not be negative, found {list(radii)}")
    return values


def _require_same_images(several: Sequence[Certificates]) -> None:
    if not several:
        raise BadInput("no certificates were given; give one Certificates per sigma")
    if any(not torch.equal(c.ids, several[0].ids) for c in several):
        raise BadInput("certificates of several sigmas must be of the same images in the same order")
