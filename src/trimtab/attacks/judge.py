"""Record which images are misclassified at which iteration of an attack."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trimtab.attacks.base import AttackTask, Outcome
from trimtab.runtime import is_misclassified


class Judge:
    """Record the misclassified images of one run, from the logits that each gradient computes anyway.

    Args:
        task: The network, the clean images and their labels.
        marks: Iterations that are recorded even if the caller does not ask for success.
    """

    def __init__(self, task: AttackTask, marks: Sequence[int] = ()) -> None:
        self.task, self.marks = task, marks
        self.success = torch.zeros(len(task.x), dtype=torch.bool, device=task.x.device)
        self.success_at = torch.full((len(task.x),), -1, device=task.x.device)
        self.at_marks: dict[int, Tensor] = {}

    def record(self, t: int, x: Tensor, logits: Tensor) -> None:
        """Record which images x of iteration t are misclassified."""
        marked = t in self.marks
        if not (self.task.judged or marked):
            return
        if marked and self.task.approximate:
            logits = self._logits(x)
        self.success = is_misclassified(logits, self.task.y)
        if marked:
            self.at_marks[t] = self.success
        if self.task.judged:
            newly = self.success & (self.success_at < 0)
            if self.task.approximate and not marked:
                newly = self._confirmed(x, newly)
            self.success_at[newly] = t

    def outcome(self, t: int, x: Tensor) -> Outcome:
        """Record the final images, after t iterations, and return the outcome of the run."""
        if self.task.judged:
            logits = self._logits(x)
            self.success = is_misclassified(logits, self.task.y)
            self.success_at[self.success & (self.success_at < 0)] = t
            if t in self.marks:
                self.at_marks[t] = self.success
        return Outcome(x, self.success, self.success_at, self.at_marks)

    @torch.no_grad()
    def _logits(self, x: Tensor) -> Tensor:
        logits: Tensor = self.task.net(x)
        return logits

    def _confirmed(self, x: Tensor, likely: Tensor) -> Tensor:
        """Return which of the likely misclassified images the network itself misclassifies."""
        rows = likely.nonzero()[:, 0]
        confirmed = torch.zeros_like(likely)
        if len(rows):
            confirmed[rows] = is_misclassified(self._logits(x[rows]), self.task.y[rows])
        return confirmed
