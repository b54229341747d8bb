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

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor, nn

from trimtab.train.base import Objective
from trimtab.train.standard import Standard
from trimtab.train.two_pass import WeightAttack, ascent_in_ball
from trimtab.types import method_card, radius


@method_card(__doc__)
@dataclass(frozen=True)
class SAM(WeightAttack):
    """Sharpness-aware minimization of any objective: descend the gradient at w + rho g / |g|.

    Args:
        rho: Radius of the ball of weights, in the l2 norm over all weights.
        inner: The objective whose sharpness is minimized; `Standard` by default.
    """

    rho: float | str = 0.05
    inner: Objective = field(default_factory=Standard)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rho", radius(self.rho))

    def ascent(self, weights: Sequence[nn.Parameter]) -> list[Tensor | None]:
        return ascent_in_ball(weights, float(self.rho))
