"""The trust card: checks that reveal whether a robust accuracy is an artifact of model, data or attack.

After Athalye et al. 2018 and Carlini et al. 2019 ("On evaluating adversarial robustness"). Each flag says
what was measured and what to do. Comparisons are between the same images, and count only if chance explains
them in less than one case of a thousand, so that a sound model raises none.

    modes, stochastic, batch, non-finite     the model is not one function of the image
    router                                   branches are chosen by statistics that an attacker can move
    normalization, shift                     pixels arrive normalized twice, never, or in another range; or
                                             the images are of another kind
    size, classes, order                     images of another size or set of classes, or class by class
    probabilities, no gradient, cut          attacks on logits cannot follow their gradients
    weak attack, one step                    PGD is weaker than FGSM; FGSM is far weaker than PGD
    steps, budget                            more steps, or a larger budget, are a weaker attack
    unbounded                                images survive although any change is allowed
    black box                                a search without gradients succeeds where gradients did not
    curve                                    more iterations still lower the accuracy
    samples                                  the interval is too wide
Cost    about 150 forward/backward and 300 forward passes over 128 images per budget

The flags about the model are in `model_flags`, those about attacks in `attack_flags`. How often they detect
planted faults, and how far sound networks stay from every threshold: docs/results/detectors.md.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from trimtab.attacks import Linf
from trimtab.data import as_set
from trimtab.evaluate.attack_flags import ENOUGH, WIDEST, attack_flags, suite_flags
from trimtab.evaluate.bn_modes import BNMode, RunningMode, mode_record
from trimtab.evaluate.card import Flag
from trimtab.evaluate.cells import Cell, Subject
from trimtab.evaluate.conditions import Attacked
from trimtab.evaluate.engine import measure
from trimtab.evaluate.model_flags import first_flags, other_images
from trimtab.evaluate.probes import PROBED, Health, Normalization, attacks_at
from trimtab.evaluate.store import Store
from trimtab.models.check import known_constants
from trimtab.models.corrections import CHECKED
from trimtab.types import Budget

__all__ = [
    "ENOUGH", "STOPS", "WIDEST", "attack_flags", "distinct", "examine", "first_flags", "health",
    "normalization", "other_images", "probing", "stopped", "suite_flags", "unmeasured",
]  # fmt: skip

NORMALIZATION_COST = 20.0
"""Forward passes per image of the normalization check."""
STOPS = ("normalization", "cut")
"""Flags under which no robust accuracy is measured unless forced."""


def examine(
    model: nn.Module,
    data: Any,
    budgets: Sequence[Budget] = (Linf("8/255"),),
    bn_mode: BNMode | None = None,
    store: Store | None = None,
    seed: int = 0,
) -> tuple[Flag, ...]:
    """Return the flags that a model's first images raise at these budgets.

    Args:
        model: any classifier.
        data: one of our sets, or a DataLoader of (image, label).
        budgets: within which attacks are compared with each other.
        bn_mode: the BN mode; the running statistics if not given.
        store: where the cells are kept; nowhere if not given.
        seed: of all randomness.
    """
    with tempfile.TemporaryDirectory() as folder:
        subject = Subject(model, as_set(data), store or Store(Path(folder) / "store.sqlite"))
        bn_mode = bn_mode or RunningMode()
        first = first_cells(subject, bn_mode, seed)
        flags = list(first_flags(first, [measure(cell) for cell in first]))
        for budget in () if stopped(flags) else budgets:
            cells = probing(subject, budget, bn_mode, seed)
            flags += attack_flags(budget, {role: measure(cell) for role, cell in cells.items()})
    return distinct(flags, bn_mode)


def first_cells(
    subject: Subject, bn_mode: BNMode, seed: int, limit: int | None = None, brief: bool = False
) -> list[Cell]:
    """Return the cells that are measured before any attack: health and normalization.

    Args:
        subject: model, data and store.
        bn_mode: the BN mode that the model is measured in.
        seed: of all randomness.
        limit: the number of images to evaluate, if not all.
        brief: whether no attack follows, so that gradients do not matter.
    """
    limit = CHECKED if limit is None else limit
    return [health(subject, bn_mode, seed, limit, brief), normalization(subject, bn_mode, seed, limit)]


def health(subject: Subject, bn_mode: BNMode, seed: int, limit: int = PROBED, brief: bool = False) -> Cell:
    """Return the cell that shows whether the model is one function of the image."""
    return _first_images(subject, Health(brief), bn_mode, seed, min(PROBED, limit))


def normalization(subject: Subject, bn_mode: BNMode, seed: int, limit: int = CHECKED) -> Cell:
    """Return the cell that shows whether a correction of the pixels classifies better than none."""
    spec = subject.data.spec
    known = known_constants(subject.model, spec)
    condition = Normalization(spec.channels, tuple(known.items()))
    return _first_images(subject, condition, bn_mode, seed, min(CHECKED, limit))


def probing(
    subject: Subject, budget: Budget, bn_mode: BNMode, seed: int, limit: int = PROBED
) -> dict[str, Cell]:
    """Return the cells that show whether attacks within a budget can be trusted, by role."""
    spec = subject.data.spec
    pixels = spec.channels * spec.size[0] * spec.size[1]
    tried = attacks_at(budget, pixels, bn_mode.couples or subject.couples)
    return {role: _first_images(subject, attacked, bn_mode, seed, limit) for role, attacked in tried.items()}


def _first_images(
    subject: Subject, condition: Health | Normalization | Attacked, bn_mode: BNMode, seed: int, limit: int
) -> Cell:
    n = min(limit, len(subject.data))
    # Where images influence each other, no batch is larger than those of the evaluation.
    size = CHECKED if isinstance(condition, Normalization) else PROBED
    smaller = subject.chunk < size and (bn_mode.couples or subject.couples)
    chunk = subject.chunk if smaller else size
    return Cell(replace(subject, chunk=chunk, keep_images=False), condition, bn_mode, seed, n)


def stopped(flags: Sequence[Flag], attack: Any = None) -> bool:
    """Return whether a robust accuracy would mean nothing: that of any attack, or of this one."""
    raised = {flag.name for flag in flags} & {*STOPS}
    return bool(raised) and not (raised == {"cut"} and not getattr(attack, "by_gradients", True))


def unmeasured(flags: Sequence[Flag]) -> list[Flag]:
    """Return the flags, with a note on those that stopped attacks."""
    added = "no attack that this makes meaningless was measured (--force, or force=True, does)"
    return [replace(flag, advice=f"{flag.advice}; {added}") if flag.name in STOPS else flag for flag in flags]


def distinct(flags: Sequence[Flag], bn_mode: BNMode) -> tuple[Flag, ...]:
    """Return each flag once, by what raised it first, and none that another explains."""
    first: dict[str, Flag] = {}
    for flag in flags:
        first.setdefault(flag.name, replace(flag, bn_mode=mode_record(bn_mode)))
    if "constant" in first:  # a constant prediction survives everything, and that is no masking
        first.pop("unbounded", None)
    if "normalization" in first:  # wrong pixels may well give one constant prediction
        first.pop("constant", None)
    return tuple(first.values())
