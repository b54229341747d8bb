"""D_rand, D_det and D_conflict: images whose new label matches their non-robust features only.

Idea      a small targeted attack (l2 .5) makes a network predict class t; the image is then labeled t
            D_rand      t uniform over all classes, the true one included
            D_det       t = y + 1
            D_conflict  D_det started from D_R images: robust features of y, non-robust ones of y + 1
Papers    Ilyas et al. 2019; as in Benz, Zhang and Kweon (LIGS), sections 4.2, B.3 and E
Steps     100 of 0.1 along the l2-normalized gradient of the cross-entropy to t, no random start
Norm      running statistics of the active branch, not updated
Cost      `steps` forward/backward passes
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from trimtab import rng
from trimtab._accel import accelerate
from trimtab.attacks.base import AttackTask
from trimtab.attacks.losses import ce_targeted
from trimtab.attacks.pgd import fixed_steps
from trimtab.data import Batch, Images
from trimtab.runtime import check_images, check_labels, guard, unwrap
from trimtab.types import L2, BadInput, Budget, one_of

_TARGET = rng.purpose("new label")


@dataclass(frozen=True)
class Relabeled:
    """Construct D_rand, D_det or D_conflict: images attacked towards a target class, which becomes the label.

    Args:
        target: "random": uniform over all classes; "next": y + 1.
        budget: Budget of the perturbation.
        step: Step size.
        steps: Gradient steps.
    """

    target: str = "random"
    budget: Budget = field(default_factory=lambda: L2(0.5))
    step: float = 0.1
    steps: int = 100
    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        one_of(("random", "next"), target=self.target)
        if self.steps < 0 or self.step <= 0:
            raise BadInput(f"relabeling needs steps >= 0 and step > 0, found {self.steps} and {self.step}")

    def __call__(
        self, model: nn.Module, batch: Batch, images: Images, seed: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Return the images of `batch`, perturbed towards their target classes, and these classes."""
        classes, ids = len(images.classes), batch.ids.tolist()
        if self.target == "next":
            new_y = (batch.y + 1) % classes
        else:
            new_y = rng.integers(0, classes, seed, ids, _TARGET).to(batch.y)
        check_images(batch.x, batch.y)
        with guard(model):
            check_labels(model, batch.x, new_y)
            task = AttackTask(accelerate(unwrap(model), batch.x), batch.x, batch.y, seed, ids, coupled=False)
            start = batch.x.detach().clone(memory_format=torch.channels_last)
            result = fixed_steps(task, start, new_y, ce_targeted, self.budget, self.steps, self.step)
        return result.x, new_y
