"""Iteration curves: accuracy after 10, 20, 100, ... steps of one long attack with one fixed step size.

A curve that still falls at its end overstates robustness: the attack was not done. Each point scores the
image of *that* iteration ("last" iterate), or whether any up to it was misclassified ("any"). Where images
of a batch influence each other it is always that iteration's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor, nn

from trimtab.attacks.base import Outcome, Victim
from trimtab.attacks.pgd import PGD
from trimtab.types import BadInput


@dataclass(frozen=True)
class CurvePGD(PGD):
    """PGD whose outcome tells, for each mark, which images were broken after that many iterations."""

    marks: tuple[int, ...] = (10, 20, 100)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.restarts != 1 or not self.marks or max(self.marks) > self.steps or min(self.marks) < 0:
            raise BadInput(
                f"a curve needs marks between 0 and {self.steps} steps, and one try, found {self.marks} "
                f"and restarts={self.restarts}"
            )

    def run(self, victim: Victim, marks: Sequence[int] = ()) -> Outcome:
        found = super().run(victim, self.marks)
        if self.score == "any" and not victim.coupled:
            reached = {m: (found.broken_at >= 0) & (found.broken_at <= m) for m in self.marks}
            return replace(found, marks=reached)
        return found


def curve(
    attack: PGD,
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    marks: Sequence[int] = (10, 20, 100),
    seed: int = 0,
    ids: Tensor | Sequence[int] | None = None,
) -> dict[int, Tensor]:
    """For each mark: which images stand after that many iterations of one run of max(marks) steps.

    The step size is the attack's own; if it gives none, the one for its own number of steps is kept.
    """
    if not marks:
        raise BadInput("a curve needs marks, such as 10 and 20 iterations, found none")
    kept = ("budget", "loss", "targeted", "restarts", "random_start", "clean_start", "score", "precision")
    fields = {name: getattr(attack, name) for name in kept}
    long = CurvePGD(**fields, steps=max(marks), step_size=attack.step, marks=tuple(sorted(marks)))
    broken = long.outcome(model, x, y, seed, ids).marks
    return {mark: ~broken[mark] for mark in long.marks}


def is_flat(stands: Mapping[int, Tensor]) -> bool:
    """Whether a curve has stopped falling: its last leg loses at most one image in a hundred, or two.

    A single point does not tell.
    """
    if len(stands) < 2:
        return False
    before, last = (stands[mark] for mark in sorted(stands)[-2:])
    return int(before.sum()) - int(last.sum()) <= max(2, 0.01 * len(last))
