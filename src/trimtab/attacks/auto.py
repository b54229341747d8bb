"""An ensemble in the manner of AutoAttack: no parameters to tune, each attack on what still stands.

Idea      Auto-PGD on cross-entropy, targeted Auto-PGD on DLR (on the margin under four classes), Square
Paper     Croce and Hein 2020. FAB, the fourth of the original ensemble, is left out: targeted Auto-PGD
          finds nearly all that it finds. Do not quote a number of this as AutoAttack's.
Cost      per image that stands to the end: (1 + targets) * steps gradients and `queries` forward passes
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from trimtab.attacks.apgd import APGD, TargetedAPGD, standing
from trimtab.attacks.base import Attack, Outcome, Victim, unusual
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
            found = _next(victim, found, attack)
        return found

    def parts(self) -> tuple[Attack, ...]:
        """The attacks, in order."""
        return (
            APGD(self.budget, self.steps),
            TargetedAPGD(self.budget, self.steps, self.targets),
            Square(self.budget, self.queries),
        )


def _next(victim: Victim, before: Outcome, attack: Attack) -> Outcome:
    """Run one more attack on the images that still stand."""
    rows = (~before.broken).nonzero().squeeze(1)
    if len(rows) == 0:
        return before
    ids = [victim.ids[i] for i in rows.tolist()]
    found = attack.run(replace(victim, x=victim.x[rows], y=victim.y[rows], ids=ids))
    x, broken, broken_at = before.x.clone(), before.broken.clone(), before.broken_at.clone()
    x[rows], broken[rows], broken_at[rows] = found.x, found.broken, found.broken_at
    return Outcome(x, broken, broken_at)
