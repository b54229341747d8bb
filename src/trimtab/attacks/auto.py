"""AutoAttack: an ensemble without parameters to tune, each attack on the survivors of those before it.

standard  Auto-PGD on cross-entropy, targeted Auto-PGD on DLR, targeted FAB, Square
plus      the same with 5 restarts of Auto-PGD and FAB, and with Auto-PGD on DLR and untargeted FAB as well
rand      Auto-PGD on cross-entropy and on DLR, each gradient the mean of 20 passes: for a model whose
          predictions are random
Paper     Croce and Hein 2020, "Reliable evaluation of adversarial robustness with an ensemble of diverse
          parameter-free attacks"; 100 steps, 9 targets and 5000 queries as published
Norm      running statistics of the active branch, not updated
Cost      standard, per robust image: 100 + 9 * 100 + 9 * 100 gradients, and 9 * 100 + 5000 forward passes
Compared  docs/results/autoattack.md, image by image with the authors' own package
Changed   with fewer than four classes the targeted loss is the margin, which DLR needs four logits to scale;
          "rand" judges an image by its mean logits over the 20 passes, where the authors take one pass
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from trimtab.attacks.apgd import APGD, TargetedAPGD, judge_clean
from trimtab.attacks.base import Attack, AttackTask, Outcome, in_slices, non_default, retry_survivors
from trimtab.attacks.fab import FAB
from trimtab.attacks.square import Square
from trimtab.types import BadInput, Budget, Linf, method_card

VARIANTS = ("standard", "plus", "rand")
_RESTARTS, _SAMPLES = 5, 20


@method_card(__doc__)
@dataclass(frozen=True)
class AutoAttack(Attack):
    """AutoAttack: Auto-PGD, FAB and Square, each on the images that the attacks before it left correct.

    Args:
        budget: The ball around each image: Linf(eps) or L2(eps), in pixels.
        variant: The published version: standard, plus, or rand (for models whose predictions are random).
        steps: Steps of each run of Auto-PGD and FAB.
        targets: Number of classes that the targeted attacks try.
        queries: Forward passes of Square.
    """

    budget: Budget = field(default_factory=lambda: Linf("8/255"))
    variant: str = "standard"
    steps: int = 100
    targets: int = 9
    queries: int = 5000
    one_by_one = True
    refills = True  # each part takes its own slices of the images that are left
    version = 3

    def __post_init__(self) -> None:
        if self.variant not in VARIANTS:
            raise BadInput(f"AutoAttack's variant is one of {', '.join(VARIANTS)}, found {self.variant!r}")
        self.parts()  # each attack checks its own arguments

    def cache_key(self) -> dict[str, object]:
        """Return the attacks that it runs, with their versions: what its results depend on."""
        return {"parts": self.parts()}

    def __str__(self) -> str:
        changed = non_default(self, "budget", "variant")
        return f"AutoAttack {self.variant}, {self.budget}, early stopping{changed}"

    def run(self, task: AttackTask) -> Outcome:
        """Run the attacks in order, each on the images that are still classified correctly."""
        outcome = in_slices(judge_clean, task, refills=False)
        for attack in self.parts():
            outcome = retry_survivors(task, outcome, partial(_run, attack))
        return outcome

    def parts(self) -> tuple[Attack, ...]:
        """Return the attacks, in order."""
        restarts = _RESTARTS if self.variant == "plus" else 1
        samples = _SAMPLES if self.variant == "rand" else 1
        ce = APGD(self.budget, self.steps, "ce", restarts, samples)
        dlr = APGD(self.budget, self.steps, "dlr", restarts, samples)
        targeted = TargetedAPGD(self.budget, self.steps, self.targets)
        fab = FAB(self.budget, self.steps, 0, restarts)
        targeted_fab = FAB(self.budget, self.steps, self.targets, restarts)
        square = Square(self.budget, self.queries, rescale=False)
        return {
            "standard": (ce, targeted, targeted_fab, square),
            "plus": (ce, dlr, fab, square, targeted, targeted_fab),
            "rand": (ce, dlr),
        }[self.variant]


def _run(attack: Attack, task: AttackTask, before: Outcome) -> Outcome:
    return in_slices(attack.run, task, attack.refills)
