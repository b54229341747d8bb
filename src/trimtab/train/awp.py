"""Adversarial weight perturbation (AWP): adversarial training at adversarially moved weights.

Idea      min over w of max over v of the loss at x' and w + v: every weight tensor w_l moves by at most gamma
          of its own norm, along its gradient: v_l = gamma |w_l| g_l / |g_l|, with g the gradient at w and x'.
          The optimizer steps from w with the gradient at w + v: the loss landscape over weights flattens
Paper     Wu et al. 2020, "Adversarial weight perturbation helps robust generalization", with one step for v
          and one alternation per batch, as there; gamma 0.005
Wraps     any objective that attacks images: `AWP()` is AT-AWP, `AWP(inner=TRADES())` is TRADES-AWP. The
          images are attacked once, at w, and used twice; see `two_pass` for SAM and APART, which differ in
          what the attacker moves
Norm      `update` off in the second pass, so running statistics are those of the weights w
Cost      twice the passes of the inner objective, except for its attack on images, which runs once: with
          PGD-10 about 1.1 times adversarial training
Changed   running statistics are updated at w (public code: at w + v). As there, only tensors with two or more
          dimensions move: no bias and no scale of a normalization layer
Beware    it counters robust overfitting, which choosing the epoch by robust accuracy counters as well:
          compare with a network that was chosen so
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from trimtab.train.adversarial import Adversarial
from trimtab.train.base import Objective
from trimtab.train.two_pass import WeightAttack
from trimtab.types import method_card, radius


@method_card(__doc__)
@dataclass(frozen=True)
class AWP(WeightAttack):
    """Adversarial weight perturbation of any objective: descend the gradient at moved weights.

    Args:
        gamma: Largest perturbation of each weight tensor, relative to its norm.
        inner: The objective; `Adversarial` by default, `TRADES` for TRADES-AWP.
    """

    gamma: float | str = 0.005
    inner: Objective = field(default_factory=Adversarial)

    def __post_init__(self) -> None:
        object.__setattr__(self, "gamma", radius(self.gamma))

    def ascent(self, weights: Sequence[nn.Parameter]) -> list[Tensor | None]:
        return [layerwise_ascent(p, float(self.gamma)) if p.dim() > 1 else None for p in weights]


def layerwise_ascent(w: nn.Parameter, gamma: float) -> Tensor | None:
    """Return gamma |w| g / |g| of one tensor, with g its `.grad`; None without a gradient."""
    if w.grad is None:
        return None
    norms = [torch.linalg.vector_norm(value.detach()) for value in (w, w.grad)]
    return w.grad.detach() * (gamma * norms[0] / norms[1].clamp(min=1e-12))
