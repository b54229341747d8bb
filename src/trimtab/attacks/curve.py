"""Iteration curves: accuracy after 10, 20, 100, ... steps of one long attack with one fixed step size.

A curve that still falls at its end overstates robustness: the attack has not converged. A point counts the
images that are misclassified at that iteration (last iterate) or, with early stopping, at any iteration up to
it. If the images of a batch influence each other, it is always the former.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

from torch import Tensor, nn

from trimtab.attacks.base import AttackTask, Outcome
from trimtab.attacks.pgd import PGD
from trimtab.types import BadInput, method_card


@method_card(__doc__)
@dataclass(frozen=True)
class CurvePGD(PGD):
    """PGD whose outcome records which images are misclassified after each number of iterations in `marks`.

    Takes the arguments of `PGD`, and `marks`.

    Args:
        marks: Numbers of iterations after which the images are judged.
    """

    marks: tuple[int, ...] = (10, 20, 100)

    def __post_init__(self, score: str | None, eps: float | str | None, norm: str | None) -> None:
        super().__post_init__(score, eps, norm)
        if self.restarts != 1 or not self.marks or max(self.marks) > self.steps or min(self.marks) < 0:
            raise BadInput(
                f"a curve needs marks between 0 and {self.steps} and restarts=1, found marks={self.marks} "
                f"and restarts={self.restarts}"
            )

    def __str__(self) -> str:
        kind = f"{'targeted ' if self.targeted else ''}PGD ({self.loss}), {self.budget}"
        return f"{kind}, after {', '.join(map(str, self.marks))} steps"

    def run(self, task: AttackTask, marks: Sequence[int] = ()) -> Outcome:
        """Run PGD once and judge the images after each number of iterations."""
        outcome = super().run(task, self.marks)
        if self.early_stop and not task.coupled:
            at = outcome.success_at
            return replace(outcome, marks={t: (at >= 0) & (at <= t) for t in self.marks})
        return outcome


def curve(
    attack: PGD,
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    marks: Sequence[int] = (10, 20, 100),
    seed: int = 0,
    ids: Tensor | Sequence[int] | None = None,
) -> dict[int, Tensor]:
    """Return which images are robust after each number of iterations, in one run of max(marks) steps.

    Args:
        attack: The attack. Its step size is kept, even if it is derived from its number of steps.
        model: Any classifier that returns logits (N, classes).
        x: Images (N, C, H, W) with pixels in [0, 1].
        y: Labels (N,).
        marks: Numbers of iterations after which the images are judged.
        seed: Seed of all randomness.
        ids: The images' indices in their set, 0..N-1 if not given.
    """
    if not marks:
        raise BadInput("a curve needs marks (numbers of iterations), such as (10, 20), found none")
    options = {option.name: getattr(attack, option.name) for option in fields(attack)}
    changed = {"steps": max(marks), "step_size": attack.step, "marks": tuple(sorted(marks))}
    long = CurvePGD(**options | changed)
    success = long.outcome(model, x, y, seed, ids).marks
    return {t: ~success[t] for t in long.marks}


def is_flat(robust: Mapping[int, Tensor]) -> bool:
    """Return whether a curve has stopped falling: its last segment loses at most 1 % of the images, or two.

    Args:
        robust: Which images are robust after each number of iterations; with fewer than two, False.
    """
    if len(robust) < 2:
        return False
    before, last = (robust[t] for t in sorted(robust)[-2:])
    return int(before.sum()) - int(last.sum()) <= max(2, 0.01 * len(last))
