"""Sharpness-aware minimisation: descend the gradient of the worst point in a small ball of weights.

Idea      w' = w + rho g / |g|_2 with g the gradient at w; the step at w is taken with the gradient at w'
Paper     Foret et al. 2021; in the APART paper as a baseline (rho 0.05 on CIFAR-10, 0.1 on CIFAR-100) and
          as an instance of model-based adversarial training, see `two_player`
Around    any objective: `SAM(inner=Adversarial(...))` attacks once, at w, and uses the images twice
Norm      update off in the second pass, so running statistics end as after a plain step
Cost      twice the inner objective's passes; its attack on images once
Beware    over several processes the norm is that of the averaged gradient (not each process's own, which
          the paper calls m-sharpness and finds to help)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar

from torch import nn

from trimtab.train.base import Backward, Objective, Parts, Passes, Step
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

    def in_parts(self, parts: int) -> SAM:
        return replace(self, inner=self.inner.in_parts(parts))

    def nested(self) -> Iterator[Objective]:
        yield self
        yield from self.inner.nested()

    def passes(self, batch: int) -> Passes:
        return self.inner.passes(batch).twice_but(self.crafting())

    def crafting(self) -> Passes:
        return self.inner.crafting()

    def run(self, step: Step) -> Parts:
        def losses(backward: Backward) -> Parts:
            return self.inner.run(replace(step, backward=backward))

        return play(
            step.model,
            first=lambda: losses(not_last(step.backward)),
            attackers=[climb_weights(self.rho)],
            second=lambda: losses(step.backward),
            keep_first=False,
        )
