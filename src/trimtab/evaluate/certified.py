"""Certificates as a condition: stored and resumed like every other cell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from trimtab import rng
from trimtab.certify import VERSION, certify
from trimtab.certify.bounds import max_radius
from trimtab.data.sets import Batch
from trimtab.evaluate.conditions import Columns, Recorded
from trimtab.evaluate.records import CertificateRecord, Curve
from trimtab.types import BadInput, number

STEP = 0.25
"""Between the radii that the card shows."""


@dataclass(frozen=True)
class Certified(Recorded):
    """The class that the smoothed classifier predicts, and the l2 radius within which it is certified."""

    sigma: float | str = 0.25
    """Std of the noise, in pixels; the noise is not clipped."""
    n0: int = 100
    """Samples that guess the class."""
    n: int = 10_000
    """Samples that certify it."""
    alpha: float = 0.001
    """The probability that a certificate is wrong."""
    kind: ClassVar[str] = "certificate"
    version: ClassVar[int] = VERSION

    def __post_init__(self) -> None:
        object.__setattr__(self, "sigma", number(self.sigma))
        if not 0 < self.alpha < 1:
            raise BadInput(
                f"alpha, the probability of a wrong certificate, lies between 0 and 1, found {self.alpha}"
            )

    @property
    def cost(self) -> float:
        """Approximate forward passes per image."""
        return float(self.n0 + self.n)

    def applies(self, model: nn.Module, coupled: bool) -> bool:
        """Return whether images are classified independently of their batch."""
        return not coupled

    def shown(self, batch: Batch, seed: int) -> Tensor:
        """Return what a BN mode adapts to; certificates sample their own noise."""
        noise = rng.normal(batch.x, seed, batch.ids.tolist(), rng.purpose("adaptation noise"))
        return batch.x + float(self.sigma) * noise

    def columns(self, model: nn.Module, batch: Batch, seed: int) -> Columns:
        """Return which images are certified correctly, which abstain, and the radii."""
        certificates = certify(model, batch.x, self.sigma, self.n0, self.n, self.alpha, seed, batch.ids)
        return {
            "correct": certificates.classes.to(batch.y.device) == batch.y,
            "abstains": certificates.classes < 0,
            "radius": certificates.radii,
        }

    def figures(self, columns: Columns) -> dict[str, float]:
        """Return the fraction of images on which the classifier abstains."""
        return {"abstains": float(columns["abstains"].double().mean())}

    def curve(self, columns: Columns) -> Curve:
        """Return the fraction that is certified correctly at each radius, up to the largest possible one."""
        correct, radius = columns["correct"].bool(), columns["radius"]
        steps = range(int(max_radius(float(self.sigma), self.n, self.alpha) / STEP) + 1)
        points = ((STEP * k, float((correct & (radius >= STEP * k)).double().mean())) for k in steps)
        return Curve("radius", tuple(points))

    def record(self) -> CertificateRecord:
        """Return the typed value that rows store."""
        return CertificateRecord(float(self.sigma), self.n0, self.n, self.alpha)
