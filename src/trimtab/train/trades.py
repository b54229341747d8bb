"""TRADES: clean accuracy against robustness, by one regularizer.

Idea      loss = CE(f(x), y) + beta KL(f(x) || f(x')): images are classified by their label, adversarial
          images as the clean ones are. x' maximizes the same divergence in a ball around x, by gradient steps
          x' <- P(x' + a sign(grad KL(f(x) || f(x')))) from x plus Gaussian noise of std 0.001
Paper     Zhang et al. 2019, "Theoretically principled trade-off between robustness and accuracy",
          Algorithm 1; on CIFAR-10 eps 0.031, 10 steps of 0.007, and beta = 1 / lambda = 6
Norm      the attack uses running statistics. Clean and adversarial images are normalized by their own batch
          statistics, in two passes; `update` off in the second
Cost      the attack's steps and one forward pass for f(x), then two forward and backward passes
Changed   running statistics are those of the clean images, and f(x) is computed once for both terms (public
          code: statistics of two passes over the clean and one over the adversarial images)
Beware    beta buys robustness with clean accuracy: in the paper 6 instead of 1 gains 7.5 points and loses
          3.7. Labels do not enter the attack, so an image with a wrong label is smoothed like any other
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from trimtab import rng
from trimtab.attacks import Attack, Linf, Outcome
from trimtab.attacks.base import AttackTask
from trimtab.attacks.geometry import project
from trimtab.attacks.pgd import fixed_steps
from trimtab.train.base import Objective, Parts, Passes, Step, keep_statistics
from trimtab.types import BadInput, Budget, at_least, method_card, number, pretty, whole

_START = rng.purpose("start of TRADES")
_STD = 0.001


@method_card(__doc__)
@dataclass(frozen=True)
class DivergenceAttack(Attack):
    """Maximize KL(f(x) || f(x')) in the ball around x: the attack of TRADES, which needs no label.

    Args:
        budget: The ball around each image: Linf(eps) or L2(eps), in pixels.
        steps: Gradient steps.
        step_size: Length of a step in pixels.
    """

    budget: Budget = field(default_factory=lambda: Linf(0.031))
    steps: int = 10
    step_size: float | str = 0.007

    def __post_init__(self) -> None:
        object.__setattr__(self, "step_size", number(self.step_size))
        at_least(0, steps=whole(self.steps, "steps"))
        if float(self.step_size) <= 0:
            raise BadInput(f"step_size must be above 0, found {self.step_size}")

    def __str__(self) -> str:
        return f"KL-{self.steps}, {self.budget}, step {pretty(float(self.step_size))}"

    def run(self, task: AttackTask) -> Outcome:
        """Take the steps from each image plus a little noise."""
        with torch.no_grad():
            p = task.net(task.x).softmax(1)
        noise = rng.normal(task.x, task.seed, task.ids, _START)
        start = project(task.x + _STD * noise, task.x, self.budget)
        return fixed_steps(task, start, p, divergence, self.budget, self.steps, float(self.step_size))


@method_card(__doc__)
@dataclass(frozen=True)
class TRADES(Objective):
    """TRADES: cross-entropy of clean images plus beta KL(f(x) || f(x')) at the images x' that maximize it.

    Args:
        beta: Weight of the divergence, 1 / lambda of the paper.
        attack: Makes the images x': any callable (model, x, y) -> x_adv; by default it maximizes the
            divergence in 10 steps of 0.007 within 0.031.
        label_smoothing: Fraction of each label that is spread evenly over all classes.
    """

    beta: float = 6.0
    attack: Callable[..., Any] = field(default_factory=DivergenceAttack)
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(0, beta=self.beta)

    def passes(self, batch: int) -> Passes:
        return self.attack_passes().plus(2)

    def attack_passes(self) -> Passes:
        forward, backward = super().attack_passes()
        return Passes(forward + isinstance(self.attack, DivergenceAttack), backward)

    def run(self, step: Step) -> Parts:
        x_adv = step.adversarial(self.attack)
        z = step.model(step.x)
        clean = step.loss(z, step.y, self.label_smoothing)
        with keep_statistics(step.model):
            gap = divergence(step.model(x_adv), z.softmax(1)).mean()
            loss = clean + self.beta * gap
            step.backward(loss, True)
        return Parts({"loss": loss, "clean": clean, "divergence": gap}, z)


def divergence(z: Tensor, p: Tensor) -> Tensor:
    """Return KL(p || softmax(z)) of each image, in nats."""
    return F.kl_div(z.log_softmax(1), p, reduction="none").sum(1)
