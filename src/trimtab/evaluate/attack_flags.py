"""Flags about robust accuracies: attacks on the same images must agree with each other.

Comparisons count only if chance explains them in less than one case of a thousand (`SIGNIFICANCE`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from torch import Tensor

from trimtab.attacks import FGSM, PGD, is_flat
from trimtab.evaluate.card import Flag, Row
from trimtab.evaluate.cells import Cell
from trimtab.evaluate.conditions import AFTER, Columns
from trimtab.evaluate.probes import MARKS
from trimtab.measure.accuracy import Accuracy
from trimtab.models.corrections import SIGNIFICANCE, p_better
from trimtab.types import Budget

WIDEST = 0.10
"""The widest confidence interval that passes without a flag ..."""
ENOUGH = 420
"""... and the number of images that makes every interval narrower."""
ONE_STEP = 0.25
"""FGSM succeeds on less than this fraction of what PGD does only where gradients at the images mislead."""
LEAST_SUCCESSES = 10
"""Successes of PGD from which the two are compared."""
FEW = 0.02
"""The fraction of images on which a weaker attack may succeed alone, by luck."""
_MASKED = (
    "gradients are masked and the robust accuracy is not real: remove what masks them, attack a "
    "differentiable stand-in, or take attacks.Square"
)


def attack_flags(budget: Budget, measured: Mapping[str, Columns]) -> Iterator[Flag]:
    """Yield the flags of attacks within one budget that disagree on the same images.

    Args:
        budget: of the attacks.
        measured: the columns of the probing cells, by role.
    """
    robust = {role: columns["correct"] for role, columns in measured.items()}
    curve = {steps: measured["PGD"][f"{AFTER}{steps}"] for steps in MARKS}
    yield from weak_flags(robust["PGD"], robust["FGSM"], budget)
    clean = measured["FGSM"]["broken_at"] != 0
    if (ratio := one_step_ratio(clean, robust["FGSM"], robust["PGD"])) < ONE_STEP:
        observed = f"one step succeeds on {ratio:.0%} of the images that many steps succeed on ({budget})"
        yield Flag(
            "one step", observed, "the model is fitted to single steps: quote no number of FGSM for it"
        )
    for early, late in pairwise(MARKS):
        if more_correct(curve[late], curve[early]):
            before, after = _percent(curve[early]), _percent(curve[late])
            observed = f"{before} are robust after {early} steps of PGD, {after} after {late} ({budget})"
            yield Flag("steps", observed, f"the steps are too long for this model, or {_MASKED}")
    for name, small, large in (
        ("FGSM", robust["FGSM at half"], robust["FGSM"]),
        ("PGD", robust["PGD at half"], curve[20]),
    ):
        if more_correct(large, small):
            observed = (
                f"{name}: {_percent(small)} are robust at half of {budget}, {_percent(large)} at all of it"
            )
            yield Flag("budget", observed, _MASKED)
    if _more_than_few(robust["anything"]):
        observed = f"{_percent(robust['anything'])} survive although every image is allowed"
        yield Flag("unbounded", observed, _MASKED)
    if "Square" in measured:
        missed = missed_by_gradients(measured)
        if _more_than_few(missed):
            observed = f"a search without gradients succeeds on {_percent(missed)} that PGD and FGSM did not"
            yield Flag("black box", f"{observed} ({budget})", _MASKED)
    yield from curve_flags(measured["PGD"], budget)


def one_step_ratio(clean: Tensor, fgsm: Tensor, pgd: Tensor) -> float:
    """Return FGSM's successes per success of PGD, or 1 where PGD succeeds on too few images to compare.

    Args:
        clean: which images are classified correctly without an attack, (N,).
        fgsm: which still are under FGSM.
        pgd: which still are under PGD.
    """
    by_one, by_many = int((clean & ~fgsm).sum()), int((clean & ~pgd).sum())
    return by_one / by_many if by_many >= LEAST_SUCCESSES else 1.0


def missed_by_gradients(measured: Mapping[str, Columns]) -> Tensor:
    """Return the images that Square misclassifies, and neither PGD at any step nor FGSM does."""
    survive = (measured["PGD"]["broken_at"] < 0) & measured["PGD"]["correct"] & measured["FGSM"]["correct"]
    return survive & ~measured["Square"]["correct"]


def weak_flags(pgd: Tensor, fgsm: Tensor, budget: Budget) -> Iterator[Flag]:
    """Yield a flag if PGD is weaker than its own first step.

    Args:
        pgd: which images are robust under PGD, (N,).
        fgsm: which are under FGSM.
        budget: of both.
    """
    if more_correct(pgd, fgsm):
        observed = f"{_percent(pgd)} are robust under PGD, only {_percent(fgsm)} under FGSM ({budget})"
        yield Flag("weak attack", observed, _MASKED)


def curve_flags(columns: Columns, budget: Budget) -> Iterator[Flag]:
    """Yield a flag if an iteration curve still falls at its end.

    Args:
        columns: of an attack that kept its iteration curve; others yield nothing.
        budget: of the attack.
    """
    curve = {int(name.removeprefix(AFTER)): columns[name] for name in columns if name.startswith(AFTER)}
    if len(curve) > 1 and not is_flat(curve):
        before, last = (f"{_percent(curve[steps])} after {steps}" for steps in sorted(curve)[-2:])
        observed = f"robust accuracy: {before} iterations, {last} ({budget})"
        yield Flag(
            "curve", observed, "the attack has not converged: take more iterations until the curve is flat"
        )


def suite_flags(measured: Sequence[tuple[Cell, Columns]], rows: Sequence[Row]) -> Iterator[Flag]:
    """Yield the flags of a suite's cells, at their full size.

    Args:
        measured: the cells of a suite with their columns.
        rows: their rows.
    """
    by_budget: dict[Budget, list[tuple[PGD, Columns]]] = {}
    for cell, columns in measured:
        attack = getattr(cell.condition, "attack", None)
        if isinstance(attack, PGD) and not attack.targeted:
            by_budget.setdefault(attack.budget, []).append((attack, columns))
            yield from curve_flags(columns, attack.budget)
    for budget, attacked in by_budget.items():
        for fgsm in (columns for attack, columns in attacked if isinstance(attack, FGSM)):
            for pgd in (columns for attack, columns in attacked if attack.steps > 1):
                yield from weak_flags(pgd["correct"], fgsm["correct"], budget)
    for row in sorted(rows, key=lambda row: row.interval[0] - row.interval[1])[:1]:
        low, high = row.interval
        if high - low > WIDEST:
            measured_on = f"{row.condition}: {row.accuracy:.1%} of {row.n} images"
            observed = f"{measured_on}, with a 95 % interval from {low:.1%} to {high:.1%}"
            yield Flag("samples", observed, f"measure {ENOUGH} images or more")


def more_correct(correct: Tensor, baseline: Tensor) -> bool:
    """Return whether `correct` holds more often than `baseline`, on the same images, beyond chance.

    Args:
        correct: which images are classified correctly, (N,).
        baseline: which are under the other attack, (N,).
    """
    return p_better(correct, baseline) < SIGNIFICANCE


def _more_than_few(images: Tensor) -> bool:
    return int(images.sum()) > max(2, FEW * len(images))


def _percent(images: Tensor) -> str:
    return f"{Accuracy.of(images).value:.1%}"
