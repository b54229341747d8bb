"""Training with Gaussian noise: the base classifier of randomized smoothing.

Idea      every image gets new noise N(0, sigma^2) in each step; the loss is the cross-entropy of the sum
Papers    Cohen et al. 2019; "Rand" in the adaptive batch-norm paper (Nandy et al.), sigma 0.5
Norm      no knob
Cost      one forward, one backward pass
Note      the noise is in pixel units and not clipped, as in certification; without adaptation such a
          network is much less accurate on images without noise
"""

from __future__ import annotations

from dataclasses import dataclass

from trimtab import rng
from trimtab.train.base import Objective, Parts, Step
from trimtab.types import at_least, method_card, number

_NOISE = 11  # purpose of the random numbers


@method_card(__doc__)
@dataclass(frozen=True)
class Gaussian(Objective):
    """Training with Gaussian noise: the loss at x + N(0, sigma^2), with new noise in each step.

    Args:
        sigma: Std of the noise, in pixel units.
        label_smoothing: Fraction of each label that is spread evenly over all classes.
    """

    sigma: float | str = 0.5
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "sigma", number(self.sigma))
        at_least(0, sigma=float(self.sigma))

    def run(self, step: Step) -> Parts:
        noise = rng.normal(step.x, step.seed, step.ids, _NOISE)
        logits = step.model(step.x + float(self.sigma) * noise)
        loss = step.loss(logits, step.y, self.label_smoothing)
        step.backward(loss, True)
        return Parts({"loss": loss}, logits)
