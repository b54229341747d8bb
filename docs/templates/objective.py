"""Squared hinge: train the margin instead of the cross-entropy.

Idea   mean over wrong classes c of max(0, 1 - z_y + z_c)^2
Cost   one forward and one backward pass. Norm knobs: none.
"""

from dataclasses import dataclass

import torch

from trimtab.train import Objective, Passes
from trimtab.train.base import Parts, Step


@dataclass(frozen=True)
class SquaredHinge(Objective):
    """Descend the multi-class squared hinge loss."""

    margin: float = 1.0
    """How far the true class should lead."""

    def passes(self, batch: int) -> Passes:
        return Passes(1, 1)

    def run(self, step: Step) -> Parts:
        z = step.model(step.x)
        true = z.gather(1, step.labels[:, None])
        violation = (self.margin - true + z).clamp(min=0).square()  # (N, classes)
        wrong = torch.ones_like(z).scatter(1, step.labels[:, None], 0.0)
        loss = (violation * wrong).sum(1).mean() / (z.shape[1] - 1)
        step.backward(loss, True)
        return Parts({"loss": loss}, z)
