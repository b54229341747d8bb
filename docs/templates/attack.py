"""Random corners: try random corners of the ball and keep the one with the largest loss.

Idea   x + eps sign(u), u uniform, `tries` times. Black box: no gradients.
Cost   `tries` forward passes an image.
"""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

from trimtab import rng
from trimtab.attacks import Attack, Linf, Outcome
from trimtab.attacks.base import AttackTask
from trimtab.runtime import is_misclassified


@dataclass(frozen=True)
class RandomCorners(Attack):
    """Keep the worst of N random corners of an l_inf ball."""

    budget: Linf = field(default_factory=lambda: Linf("8/255"))
    """The ball."""
    tries: int = 10
    """How many corners."""

    @torch.no_grad()
    def run(self, task: AttackTask) -> Outcome:
        x, worst = task.x, task.x
        highest = torch.full((len(x),), -torch.inf)
        for index in range(self.tries):
            u = rng.uniform(x, task.seed, task.ids, rng.purpose("corners", index)) - 0.5
            tried = (x + self.budget.radius * u.sign()).clamp(0, 1)
            loss = F.cross_entropy(task.net(tried), task.y, reduction="none")
            better = loss > highest
            worst = torch.where(better.view(-1, 1, 1, 1), tried, worst)
            highest = torch.where(better, loss, highest)
        success = is_misclassified(task.net(worst), task.y)
        return Outcome(worst, success, torch.where(success, self.tries, -1))
