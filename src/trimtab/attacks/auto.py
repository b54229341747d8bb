"""An ensemble in the manner of AutoAttack: no parameters to tune, each attack on what still stands.

Idea      Auto-PGD on cross-entropy, targeted Auto-PGD on DLR (on the margin under four classes), Square
Paper     Croce and Hein 2020. FAB, the fourth of the original ensemble, is left out: targeted Auto-PGD
          finds nearly all that it finds. Do not quote a number of this as AutoAttack's.
Cost      per image that stands to the end: (1 + targets) * steps gradients and `queries` forward passes
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from trimtab.attacks.apgd import APGD, TargetedAPGD, standing
from trimtab.attacks.base import Attack, Outcome, Victim, unusual
from trimtab.attacks.climbing import at_the_standing
from trimtab.attacks.square import Square
from trimtab.types import Budget, Linf


@dataclass(frozen=True)
class AutoAttack(Attack):
    budget: Budget = field(default_factory=lambda: Linf("8/255"))
    """Where the images may go: Linf(eps) or L2(eps), in pixels."""
    steps: int = 100
    """Gradient steps of each Auto-PGD run."""
    targets: int = 9
    """Classes that targeted Auto-PGD tries."""
    queries: int = 5000
    """Forward passes of Square."""
    one_by_one = True
    version = 2

    def __post_init__(self) -> None:
        self.parts()  # which refuse impossible numbers

    def determined_by(self) -> dict[str, object]:
        """What a key tells of it: also the versions of its parts."""
        return {"parts": self.parts()}

    def __str__(self) -> str:
        parts = "APGD-CE, targeted APGD, Square"
        return f"AutoAttack-style ensemble ({parts}), {self.budget}, any iterate{unusual(self, 'budget')}"

    def run(self, victim: Victim) -> Outcome:
        found = standing(victim)
        for attack in self.parts():
            found = at_the_standing(victim, found, partial(_attacked, attack))
        return found

    def parts(self) -> tuple[Attack, ...]:
        """The attacks, in order."""
        return (
            APGD(self.budget, self.steps),
            TargetedAPGD(self.budget, self.steps, self.targets),
            Square(self.budget, self.queries),
        )


def _attacked(attack: Attack, victim: Victim, before: Outcome) -> Outcome:
    return attack.run(victim)
