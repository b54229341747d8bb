"""Standard training: the mean cross-entropy over the batch.

Options   label smoothing
Norm      none turned: batch statistics in train mode, learning
Cost      one forward, one backward pass
"""

from __future__ import annotations

from dataclasses import dataclass

from trimtab.train.base import Objective, Parts, Step, check_smoothing, cross_entropy


@dataclass(frozen=True)
class Standard(Objective):
    label_smoothing: float = 0.0
    """Share of each label spread evenly over all classes."""

    def __post_init__(self) -> None:
        check_smoothing(self.label_smoothing)

    def run(self, step: Step) -> Parts:
        loss = cross_entropy(step.model(step.x), step.y, self.label_smoothing)
        step.backward(loss, True)
        return {"loss": loss}
