"""Standard training: the mean cross-entropy over the batch.

Options   label smoothing
Norm      no knob: train mode normalizes with batch statistics and updates the running statistics
Cost      one forward, one backward pass
"""

from __future__ import annotations

from dataclasses import dataclass

from trimtab.train.base import Objective, Parts, Step
from trimtab.types import method_card


@method_card(__doc__)
@dataclass(frozen=True)
class Standard(Objective):
    """Standard training: the mean cross-entropy over the batch.

    Args:
        label_smoothing: Fraction of each label that is spread evenly over all classes.
    """

    label_smoothing: float = 0.0

    def run(self, step: Step) -> Parts:
        logits = step.model(step.x)
        loss = step.loss(logits, step.y, self.label_smoothing)
        step.backward(loss, True)
        return Parts({"loss": loss}, logits)
