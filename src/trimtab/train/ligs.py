"""Training for a linear neighbourhood: the local input-gradient similarity (LIGS) as a regulariser.

Idea      loss = CE + weight (1 - LIGS), LIGS = mean over images of cos(grad_x l(x, y), grad_x l(x + nu, y))
          with nu a small random step: where the input gradient does not turn, the network is locally linear
Paper     "Batch normalisation increases adversarial vulnerability", section 4 (figure 5); form and weight
          are not stated there: both are ours
Norm      batch statistics in both passes; update off in the pass at x + nu
Cost      two forward passes, two backward passes to the image, and one through those: on a CPU as ten passes
Beware    a high LIGS is no proof of robustness: constant and linear functions have it, too
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from trimtab import draws
from trimtab.train.base import Objective, Parts, Passes, Step, check_smoothing, cross_entropy, quiet
from trimtab.types import BadInput, number

_PROBE = 13  # what the random draw is for


@dataclass(frozen=True)
class LIGS(Objective):
    weight: float = 1.0
    """Of 1 - LIGS beside the cross-entropy."""
    size: float | str = 0.01
    """Deviation of the Gaussian step, in pixels."""
    label_smoothing: float = 0.0
    """Share of each label spread evenly over all classes."""

    def __post_init__(self) -> None:
        check_smoothing(self.label_smoothing)
        object.__setattr__(self, "size", number(self.size))
        if self.weight < 0 or float(self.size) < 0:
            raise BadInput(f"weight and size must not be negative, found {self.weight} and {self.size}")

    def passes(self, batch: int) -> Passes:
        return Passes(2, 4)

    def run(self, step: Step) -> Parts:
        nu = float(self.size) * draws.normal(step.x, step.seed, step.ids, _PROBE)
        loss, here = self._slope(step, step.x)
        with quiet(step.model):
            _, there = self._slope(step, step.x + nu)
            turned = turn(here.flatten(1), there.flatten(1))
            total = loss + self.weight * turned
            step.backward(total, True)
        return {"loss": total, "ce": loss, "turned": turned}

    def _slope(self, step: Step, x: Tensor) -> tuple[Tensor, Tensor]:
        """The mean loss, and its gradient at each image times N: a graph of its own."""
        x = x.detach().requires_grad_(True)
        loss = cross_entropy(step.model(x), step.y, self.label_smoothing)
        (grad,) = torch.autograd.grad(loss, x, create_graph=True)
        return loss, grad * len(x)


def turn(here: Tensor, there: Tensor) -> Tensor:
    """Mean of 1 - cos over rows; a gradient of zero (the loss has saturated) points nowhere and counts 0."""
    alive = (here.detach().norm(dim=1) > 1e-12) & (there.detach().norm(dim=1) > 1e-12)
    cosine = F.cosine_similarity(here[alive], there[alive], dim=1, eps=1e-12)
    return (1 - cosine).sum() / len(here)
