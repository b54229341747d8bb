"""Training under Gaussian noise: what randomised smoothing wants of its base classifier.

Idea      every image gets fresh noise N(0, sigma^2) in each step; the loss is the cross-entropy there
Papers    Cohen et al. 2019; "Rand" in the adaptive batch-norm paper (Nandy et al.), sigma 0.5
Norm      none turned
Cost      one forward, one backward pass
Note      noise is in pixels and not clipped, as in certification; without adaptation such a network is
          much less accurate on images without noise
"""

from __future__ import annotations

from dataclasses import dataclass

from trimtab import draws
from trimtab.train.base import Objective, Parts, Step, check_smoothing, cross_entropy
from trimtab.types import BadInput, number

_NOISE = 11  # what the random draw is for


@dataclass(frozen=True)
class Gaussian(Objective):
    sigma: float | str = 0.5
    """Deviation of the noise, in pixels."""
    label_smoothing: float = 0.0
    """Share of each label spread evenly over all classes."""

    def __post_init__(self) -> None:
        check_smoothing(self.label_smoothing)
        object.__setattr__(self, "sigma", number(self.sigma))
        if float(self.sigma) < 0:
            raise BadInput(f"a deviation must not be negative, found sigma={self.sigma}")

    def run(self, step: Step) -> Parts:
        noise = draws.normal(step.x, step.seed, step.ids, _NOISE)
        loss = cross_entropy(step.model(step.x + float(self.sigma) * noise), step.y, self.label_smoothing)
        step.backward(loss, True)
        return {"loss": loss}
