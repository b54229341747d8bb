"""What to measure, by name.

quick      clean, FGSM, PGD-20, noise, shifted statistics, gradient similarity: minutes on a CPU
standard   and the margin, l2, an iteration curve to 100, a sample of corruptions
full       and AutoAttack, a curve to 2000, all corruptions at all severities, certificates
corruptions   clean, and the 15 + 4 common corruptions at all severities
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from trimtab.attacks import CW, FGSM, L2, PGD, AutoAttack, CurvePGD, Linf
from trimtab.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS
from trimtab.evaluate.analysis import Shifted, Similar
from trimtab.evaluate.certified import Certified
from trimtab.evaluate.conditions import Attacked, Clean, Condition, Corrupted, Noise, as_condition
from trimtab.types import BadInput, Budget

SAMPLE = ("gaussian_noise", "defocus_blur", "fog", "contrast", "jpeg_compression")
"""One corruption of each kind, and one more."""


def quick(linf: Budget, l2: Budget) -> list[Condition]:
    """Return the quick suite: minutes on a CPU."""
    return [
        Clean(),
        Noise(0.1),
        Attacked(FGSM(linf)),
        Attacked(PGD(linf, steps=20, early_stop=True)),
        Shifted(0.2),
        Similar(),
    ]


def standard(linf: Budget, l2: Budget) -> list[Condition]:
    """Return the standard suite: quick, other losses and norms, a curve, a sample of corruptions."""
    return [
        *_more(linf, l2),
        Attacked(curve(linf, (10, 20, 100))),
        *(Corrupted(name, 3) for name in SAMPLE),
    ]


def full(linf: Budget, l2: Budget) -> list[Condition]:
    """Return the full suite: the ensemble, a long curve, all corruptions, certificates."""
    return [
        *_more(linf, l2),
        Attacked(curve(linf, (10, 20, 100, 500, 2000))),
        Attacked(AutoAttack(linf)),
        Attacked(AutoAttack(l2)),
        Certified(0.25, n=1000),
        *(Corrupted(name, severity) for name in CORRUPTIONS for severity in range(1, 6)),
    ]


def _more(linf: Budget, l2: Budget) -> list[Condition]:
    return [
        *quick(linf, l2),
        Attacked(CW(linf, steps=20, early_stop=True)),
        Attacked(PGD(l2, steps=20, early_stop=True)),
    ]


def corruptions(linf: Budget, l2: Budget) -> list[Condition]:
    """Return clean images and every corruption at every severity."""
    names = (*CORRUPTIONS, *EXTRA_CORRUPTIONS)
    return [Clean(), *(Corrupted(name, severity) for name in names for severity in range(1, 6))]


SUITES = {"quick": quick, "standard": standard, "full": full, "corruptions": corruptions}


def suite_of(
    given: str | Iterable[Any], linf: Budget | None = None, l2: Budget | None = None
) -> list[Condition]:
    """Return a suite by its name and budgets, or conditions and attacks as listed.

    Args:
        given: one of `SUITES`, or conditions and attacks.
        linf: the l_inf budget of a named suite, 8/255 if not given.
        l2: its l_2 budget, 0.5 if not given.
    """
    for budget in (linf, l2):
        if budget is not None and not isinstance(budget, Budget):
            raise BadInput(f"a budget is attacks.Linf(eps) or attacks.L2(eps), found {budget!r}")
    if not isinstance(given, str | Iterable):
        given = [given]
    if not isinstance(given, str):
        listed = [as_condition(condition) for condition in given]
        if not listed:
            raise BadInput("an evaluation needs at least one condition, found none")
        return listed
    if given not in SUITES:
        raise BadInput(f"there is no suite {given!r}; take one of {', '.join(SUITES)}")
    return SUITES[given](linf or Linf("8/255"), l2 or L2(0.5))


def curve(budget: Budget, marks: tuple[int, ...]) -> CurvePGD:
    """Return one long PGD with the step size of PGD-20, so that its points differ in iterations alone."""
    return CurvePGD(budget, steps=marks[-1], step_size=2.5 * budget.radius / 20 or None, marks=marks)
