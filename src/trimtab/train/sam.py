"""Sharpness-aware minimization (SAM): descend the gradient at the worst point in a small ball of weights.

Idea      w' = w + rho g / |g|_2 with g the gradient at w; the optimizer steps from w with the gradient at w'
Paper     Foret et al. 2021; in the APART paper as a baseline (rho 0.05 on CIFAR-10, 0.1 on CIFAR-100) and
          as an instance of model-based adversarial training, see `two_pass`
Wraps     any objective: `SAM(inner=Adversarial(...))` attacks once, at w, and uses the images twice
Norm      `update` off in the second pass, so running statistics end as after a standard step
Cost      twice the passes of the inner objective, except for its attack on images, which runs once
Beware    with several processes |g| is the norm of the averaged gradient (not one per process, which the
          paper calls m-sharpness and finds helpful)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar

from torch import nn

from trimtab.train.base import (
    Objective,
    Parts,
    Passes,
    Step,
    isolated_gradients,
    keep_statistics,
    method_card,
)
from trimtab.train.standard import Standard
from trimtab.train.two_pass import ascent_in_ball, moved_weights, not_last
from trimtab.types import radius


@method_card(__doc__)
@dataclass(frozen=True)
class SAM(Objective):
    """Sharpness-aware minimization of any objective: descend the gradient at w + rho g / |g|.

    Args:
        rho: Radius of the ball of weights, in the l2 norm over all weights.
        inner: The objective whose sharpness is minimized; `Standard` by default.
    """

    rho: float | str = 0.05
    inner: Objective = field(default_factory=Standard)
    reads_gradients: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "rho", radius(self.rho))

    def setup(self, model: nn.Module) -> nn.Module:
        return self.inner.setup(model)

    def in_parts(self, parts: int) -> SAM:
        return replace(self, inner=self.inner.in_parts(parts))

    def nested(self) -> Iterator[Objective]:
        yield self
        yield from self.inner.nested()

    def passes(self, batch: int) -> Passes:
        return self.inner.passes(batch).doubled_except(self.attack_passes())

    def attack_passes(self) -> Passes:
        return self.inner.attack_passes()

    def run(self, step: Step) -> Parts:
        with isolated_gradients(step.model) as w:
            parts = self.inner.run(replace(step, backward=not_last(step.backward)))  # g at w
            delta = ascent_in_ball(w, float(self.rho))
            for p in w:
                p.grad = None
            with moved_weights(w, delta), keep_statistics(step.model):
                defended = self.inner.run(step)  # the gradient at w + delta
        losses = parts | {f"defended_{name}": value for name, value in defended.items()}
        loss_weights = {f"defended_{name}": weight for name, weight in defended.loss_weights.items()}
        return Parts(losses, parts.logits, loss_weights)
