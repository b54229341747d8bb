"""Certificates as a condition: they live in the store, and resume, like every other cell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from trimtab import draws
from trimtab.certify import VERSION, certify
from trimtab.certify.bounds import max_radius
from trimtab.data.sets import Batch
from trimtab.evaluate.conditions import Columns, Condition
from trimtab.types import BadInput, number, pretty

STEP = 0.25
"""Between the radii that the card shows."""


@dataclass(frozen=True)
class Certified(Condition):
    """The smoothed classifier's answer, right or wrong, and the l2 radius within which it holds."""

    sigma: float | str = 0.25
    """Deviation of the noise, in pixels."""
    n0: int = 100
    """Draws that guess the class."""
    n: int = 10_000
    """Draws that certify it."""
    alpha: float = 0.001
    """The chance that a certificate is wrong."""
    kind: ClassVar[str] = "certificate"
    version: ClassVar[int] = VERSION

    def __post_init__(self) -> None:
        object.__setattr__(self, "sigma", number(self.sigma))
        if not 0 < self.alpha < 1:
            raise BadInput(
                f"alpha, the chance of a wrong certificate, lies between 0 and 1, found {self.alpha}"
            )

    @property
    def cost(self) -> float:
        return float(self.n0 + self.n)

    def applies(self, model: nn.Module, coupled: bool) -> bool:
        return not coupled

    def shown(self, batch: Batch, seed: int) -> Tensor:
        """What a state adapts to; certificates draw their own noise."""
        noise = draws.normal(batch.x, seed, batch.ids.tolist(), draws.purpose("adaptation noise"))
        return batch.x + float(self.sigma) * noise

    def columns(self, model: nn.Module, batch: Batch, seed: int) -> Columns:
        found = certify(model, batch.x, self.sigma, self.n0, self.n, self.alpha, seed, batch.ids)
        return {
            "correct": found.classes.to(batch.y.device) == batch.y,
            "abstains": found.classes < 0,
            "radius": found.radii,
        }

    def figures(self, columns: Columns) -> dict[str, float]:
        right, radius = columns["correct"].bool(), columns["radius"]
        steps = range(int(max_radius(float(self.sigma), self.n, self.alpha) / STEP) + 1)
        at = {f"radius {STEP * k:g}": float((right & (radius >= STEP * k)).double().mean()) for k in steps}
        return {**at, "abstains": float(columns["abstains"].double().mean())}

    def __str__(self) -> str:
        return f"smoothed with sigma {pretty(float(self.sigma))}, {self.n:,} draws, alpha {self.alpha:g}"
