"""D_rand, D_det and D_conflict: images with a new label that only their non-robust features show.

Idea      a small targeted step (l2 .5) makes a network see class t; the image is then labelled t
            D_rand      t uniform over all classes, the true one included
            D_det       t = y + 1
            D_conflict  as D_det, started from D_R images: robust features say y, non-robust ones y + 1
Papers    Ilyas et al. 2019; as in Benz, Zhang and Kweon (LIGS), section 6
Steps     100 of 0.1 along the l2-normalised gradient of the cross-entropy to t, no random start
Norm      running statistics of the branch in use, not learning
Cost      `steps` forward/backward passes to the image
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from trimtab import draws
from trimtab.attacks.base import Victim, check_images, check_labels
from trimtab.attacks.climbing import climb
from trimtab.attacks.guard import fast, guard
from trimtab.attacks.losses import ce_targeted
from trimtab.data import Batch, Images
from trimtab.types import L2, BadInput, Budget

_TARGET = draws.purpose("new label")


@dataclass(frozen=True)
class Relabelled:
    target: str = "random"
    """"random": uniform over all classes; "next": y + 1."""
    budget: Budget = field(default_factory=lambda: L2(0.5))
    """Where the images may go."""
    step: float = 0.1
    """Length of a step."""
    steps: int = 100
    """Gradient steps."""
    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if self.target not in ("random", "next"):
            raise BadInput(f'target must be "random" or "next", found {self.target!r}')
        if self.steps < 0 or self.step <= 0:
            raise BadInput(f"relabelling needs steps >= 0 and step > 0, found {self.steps} and {self.step}")

    def __call__(
        self, model: nn.Module, batch: Batch, images: Images, seed: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Images of `batch` that the network takes for another class, and that class."""
        classes, ids = len(images.classes), batch.ids.tolist()
        if self.target == "next":
            goal = (batch.y + 1) % classes
        else:
            goal = draws.integers(0, classes, seed, ids, _TARGET).to(batch.y)
        check_images(batch.x, batch.y)
        with guard(model):
            check_labels(model, batch.x, goal)
            victim = Victim(fast(model, batch.x), batch.x, batch.y, seed, ids, coupled=False)
            start = batch.x.detach().clone(memory_format=torch.channels_last)
            found = climb(victim, start, goal, ce_targeted, self.budget, self.steps, self.step)
        return found.x, goal
