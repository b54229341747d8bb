"""An ensemble in the manner of AutoAttack: no parameters to tune, each attack runs on the survivors.

Idea      Auto-PGD on cross-entropy, targeted Auto-PGD on DLR (on the margin under four classes), Square
Paper     Croce and Hein 2020. FAB, the fourth of the original ensemble, is left out: targeted Auto-PGD
          succeeds on nearly every image on which FAB does. Do not report a number of this as AutoAttack's.
Cost      per robust image: (1 + targets) * steps gradients and `queries` forward passes
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from trimtab.attacks.apgd import APGD, TargetedAPGD, judge_clean
from trimtab.attacks.base import Attack, AttackTask, Outcome, non_default, retry_survivors
from trimtab.attacks.square import Square
from trimtab.types import Budget, Linf


@dataclass(frozen=True)
class AutoAttack(Attack):
    """An ensemble of Auto-PGD, targeted Auto-PGD and Square, each on the survivors of the others."""

    budget: Budget = field(default_factory=lambda: Linf("8/255"))
    """The ball around each image: Linf(eps) or L2(eps), in pixels."""
    steps: int = 100
    """Gradient steps of each Auto-PGD run."""
    targets: int = 9
    """Number of classes that targeted Auto-PGD tries."""
    queries: int = 5000
    """Forward passes of Square."""
    one_by_one = True
    version = 2

    def __post_init__(self) -> None:
        self.parts()  # which check these numbers

    def cache_key(self) -> dict[str, object]:
        """Return what its results depend on: the attacks that it runs, with their versions."""
        return {"parts": self.parts()}

    def __str__(self) -> str:
        parts = "APGD-CE, targeted APGD, Square"
        return (
            f"AutoAttack-style ensemble ({parts}), {self.budget}, early stopping{non_default(self, 'budget')}"
        )

    def run(self, task: AttackTask) -> Outcome:
        """Run the attacks in order, each on the images that are still classified correctly."""
        outcome = judge_clean(task)
        for attack in self.parts():
            outcome = retry_survivors(task, outcome, partial(_run, attack))
        return outcome

    def parts(self) -> tuple[Attack, ...]:
        """Return the attacks, in order."""
        return (
            APGD(self.budget, self.steps),
            TargetedAPGD(self.budget, self.steps, self.targets),
            Square(self.budget, self.queries),
        )


def _run(attack: Attack, task: AttackTask, before: Outcome) -> Outcome:
    return attack.run(task)
