"""Sharpness-aware minimisation: descend the gradient of the worst point in a small ball of weights.

Idea      w' = w + rho g / |g|_2 with g the gradient at w; the step at w is taken with the gradient at w'
Paper     Foret et al. 2021; in the APART paper as a baseline (rho 0.05 on CIFAR-10, 0.1 on CIFAR-100) and
          as an instance of model-based adversarial training, see `two_player`
Around    any objective: `SAM(inner=Adversarial(...))` attacks, then takes the inner objective twice
Norm      update off in the second pass, so running statistics end as after a plain step
Cost      twice the inner objective
Beware    over several processes the norm is that of the averaged gradient (not each process's own, which
          the paper calls m-sharpness and finds to help)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import nn

from trimtab.train.base import Objective, Parts, Passes, Step
from trimtab.train.standard import Standard
from trimtab.train.two_player import climb_weights, not_last, play
from trimtab.types import BadInput


@dataclass(frozen=True)
class SAM(Objective):
    rho: float = 0.05
    """Radius of the ball of weights, in the l2 norm over all of them."""
    inner: Objective = field(default_factory=Standard)
    """The objective whose sharpness is minimised."""
    reads_gradients: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.rho < 0:
            raise BadInput(f"a radius must not be negative, found rho={self.rho}")

    def prepare(self, model: nn.Module) -> nn.Module:
        return self.inner.prepare(model)

    def passes(self) -> Passes:
        forward, backward = self.inner.passes()
        return Passes(2 * forward, 2 * backward)

    def run(self, step: Step) -> Parts:
        def inner(backward: object) -> Parts:
            return self.inner(step.model, step.x, step.y, backward, step.seed, step.ids)  # type: ignore[arg-type]

        return play(
            step.model,
            first=lambda: inner(not_last(step.backward)),
            attackers=[climb_weights(self.rho)],
            second=lambda: inner(step.backward),
            keep_first=False,
        )
