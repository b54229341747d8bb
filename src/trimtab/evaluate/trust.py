"""The trust card: reasons to doubt a robust accuracy, found before somebody else finds them.

After Athalye et al. 2018 and Carlini et al. 2019 ("On evaluating adversarial robustness"). Each flag says
what was seen and what to do. Comparisons are between the same images, and count only if chance explains them
in less than one case of a thousand (sign test), so that a sound model raises none.

    modes, stochastic, batch, non-finite     the model is not one function of the image
    normalisation, shift                     pixels arrive normalised twice, never, or in another range; or
                                             the images are of another kind
    size, classes, order                     images of another size or set of classes, or class by class
    probabilities, no gradient, cut          attacks on logits cannot climb
    weak attack, one step                    PGD is weaker than FGSM; FGSM is far weaker than PGD
    steps, budget                            more steps, or a larger budget, break less
    unbounded                                images stand although anything is allowed
    black box                                a search without gradients breaks what gradients did not
    curve                                    more iterations still break more
    samples                                  the interval is too wide
Cost    about 150 forward/backward and 300 forward passes over 128 images per budget
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any

import torch
from scipy.stats import binomtest
from torch import Tensor, nn

from trimtab import norm
from trimtab.attacks import FGSM, PGD, Linf, guard, is_flat
from trimtab.data import Batch, Images, as_set
from trimtab.evaluate.card import Flag, Row
from trimtab.evaluate.conditions import AFTER, Attacked, Columns
from trimtab.evaluate.engine import Cell, Subject, measure
from trimtab.evaluate.probes import MARKS, PROBED, Health, attacks_at
from trimtab.evaluate.states import Branch, NormState, Running
from trimtab.evaluate.store import Store
from trimtab.measure.accuracy import Accuracy
from trimtab.models import Pixels
from trimtab.models.check import input_faults
from trimtab.models.memory import in_parts
from trimtab.types import Budget, InputSpec

CHANCE = 1e-3
"""How unlikely under equal odds a difference must be to count."""
WIDEST = 0.10
"""The widest interval that passes without a flag ..."""
ENOUGH = 420
"""... and images that make every interval narrower."""
STOPS = ("normalisation", "cut")
"""Flags under which no robust accuracy is measured unless one insists."""
_MASKED = (
    "gradients are masked and the robust accuracy is not real: remove what masks them, attack a "
    "differentiable stand-in, or take attacks.Square"
)


def examine(
    model: nn.Module,
    data: Any,
    budgets: Sequence[Budget] = (Linf("8/255"),),
    state: NormState | None = None,
    store: Store | None = None,
    seed: int = 0,
) -> tuple[Flag, ...]:
    """The flags that a model's first 128 images raise at these budgets."""
    with tempfile.TemporaryDirectory() as folder:
        subject = Subject(model, as_set(data), store or Store(Path(folder) / "store.sqlite"))
        state = state or Running()
        first = health(subject, state, seed)
        flags = list(first_flags(first, measure(first)))
        for budget in () if stopped(flags) else budgets:
            cells = probing(subject, budget, state, seed)
            flags += attack_flags(budget, {role: measure(cell) for role, cell in cells.items()})
    return distinct(flags, state)


def health(subject: Subject, state: NormState, seed: int, limit: int = PROBED) -> Cell:
    """The cell that tells whether the model is one function of the image, and of the right pixels."""
    spec = getattr(subject.model, "spec", None)
    if not isinstance(spec, InputSpec) or not any(spec.mean):
        spec = subject.data.spec
    return _small(subject, Health(spec), state, seed, limit)


def probing(
    subject: Subject, budget: Budget, state: NormState, seed: int, limit: int = PROBED
) -> dict[str, Cell]:
    """The cells that tell whether attacks within a budget can be believed, by role."""
    spec = subject.data.spec
    pixels = spec.channels * spec.size[0] * spec.size[1]
    tried = attacks_at(budget, pixels, state.couples or subject.couples)
    return {role: _small(subject, attacked, state, seed, limit) for role, attacked in tried.items()}


def _small(subject: Subject, condition: Health | Attacked, state: NormState, seed: int, limit: int) -> Cell:
    n = min(PROBED, limit, len(subject.data))
    # Where images influence each other, none of these batches is larger than those that are asked about.
    smaller = subject.chunk < PROBED and (state.couples or subject.couples)
    chunk = subject.chunk if smaller else PROBED
    return Cell(replace(subject, chunk=chunk, keep_images=False), condition, state, seed, n)


def stopped(flags: Sequence[Flag], attack: Any = None) -> bool:
    """Whether a robust accuracy would mean nothing: that of any attack, or of this one."""
    raised = {flag.name for flag in flags} & {*STOPS}
    return bool(raised) and not (raised == {"cut"} and not getattr(attack, "by_gradients", True))


def unmeasured(flags: Sequence[Flag]) -> list[Flag]:
    """The flags, of which those that stopped attacks say so."""
    told = "no attack that this makes meaningless was measured (--insist, or insist=True, does)"
    return [replace(flag, advice=f"{flag.advice}; {told}") if flag.name in STOPS else flag for flag in flags]


def distinct(flags: Sequence[Flag], state: NormState) -> tuple[Flag, ...]:
    """Each flag once, by the first thing that raised it, and none that another explains."""
    first: dict[str, Flag] = {}
    for flag in flags:
        first.setdefault(flag.name, replace(flag, state=str(state)))
    if "constant" in first:  # nothing breaks what never changes its answer, and that is no masking
        first.pop("unbounded", None)
    if "normalisation" in first:  # wrong pixels may well look all the same
        first.pop("constant", None)
    return tuple(first.values())


def first_flags(cell: Cell, columns: Columns) -> Iterator[Flag]:
    """What is wrong with the model, or with giving it these pixels."""
    batch = cell.subject.batch(0, cell.n)
    adapts = not isinstance(cell.state, Running | Branch)  # to pixels of any range, too
    with guard(cell.subject.model) if adapts else cell.state.lend(cell.subject.model, _none) as model:
        faults = input_faults(model, batch.x, None if adapts else batch.y)
        layers = norm.audit(model).layers
        other = list(other_images(model, batch, cell.subject.data))
    untrained = [one.name for one in layers if any(found.kind == "never trained" for found in one.trouble)]
    for fault in faults.certain:
        yield Flag("normalisation", fault, "give the model the mean and deviation that it was trained with")
    for fault in faults.possible:
        advice = "give the model what it was trained with, or adapt it to these images (trimtab adapt)"
        yield Flag("shift", fault, advice)
    yield from other
    if untrained:
        saw = f"running statistics of {len(untrained)} layers were never trained ({untrained[0]} for one)"
        yield Flag(
            "untrained", saw, "load trained weights (file:PATH, timm:NAME+pretrained), or train it first"
        )
    yield from health_flags(columns)


def other_images(model: nn.Module, batch: Batch, data: Images) -> Iterator[Flag]:
    """Images that are not those the model was made for, or that come class by class."""
    size = tuple(batch.x.shape[2:])
    if isinstance(model, Pixels) and model.recorded and size != model.spec.size:
        made, found = (f"{h} x {w}" for h, w in (model.spec.size, size))
        saw = f"the network was made for {made} pixels, the images have {found}"
        yield Flag("size", saw, "give it images of its size")
    outputs, classes = in_parts(model, batch.x[:4]).shape[1], len(data.classes)
    known: Any = getattr(model, "classes", None)
    if _named(known) and _named(data.classes) and tuple(known) != tuple(data.classes):
        differ = (pair for pair in zip_longest(known, data.classes) if pair[0] != pair[1])
        saw = "the model's {!r} is at the place of the images' {!r} among their classes".format(*next(differ))
        yield Flag("classes", saw, "see that label k of the images is the model's class k")
    elif outputs > classes:
        saw = f"the model tells {outputs} classes apart, the images have {classes}"
        yield Flag("classes", saw, "see that label k of the images is the model's class k")
    shown = len(batch.y.unique())
    if shown < min(classes, len(batch.y)) / 4 or (shown == 1 < classes and len(batch.y) >= 16):
        saw = f"the first {len(batch.y)} images are of {shown} of {classes} classes"
        advice = "mix them: statistics of the first images, or of a batch, are those of few classes"
        yield Flag("order", saw, advice)


def _named(classes: Any) -> bool:
    """Whether classes have names, and not only numbers."""
    return isinstance(classes, tuple | list) and any(not str(name).isdigit() for name in classes)


def _none(count: int) -> Tensor:
    """No image: statistics that do not adapt need none."""
    return torch.empty(0)


def health_flags(columns: Columns) -> Iterator[Flag]:
    n = len(columns["correct"])
    if columns["training"].any():
        yield Flag(
            "modes", "a submodule stays in training mode after eval()", "let eval() reach every submodule"
        )
    if not columns["finite"].all():
        lost = int((~columns["finite"]).sum())
        yield Flag("non-finite", f"logits of {lost} of {n} images are not numbers", "repair the model first")
    if columns["usual"].all() and not columns["common"].all():
        saw = f"all {n} images are given the same class"
        yield Flag("constant", saw, "train the model, or give it images like those that it was trained on")
    unsteady, beside = float(columns["unsteady"].max()), float(columns["beside"].max())
    if unsteady > 1e-4:
        yield Flag(
            "stochastic",
            f"two passes over the same images differ by {unsteady:.1%} of the largest logit",
            "turn off what draws at random in eval mode (drop-out), or attack its expectation: "
            "attacks.EOT(attack, [model] * 10)",
        )
    if beside > max(1e-3, 2 * unsteady):
        differ = f"differ by {beside:.1%} of the largest logit" if beside < math.inf else "are not all taken"
        yield Flag(
            "batch",
            f"the same images in batches of 1, 7 and 64 {differ}",
            "the numbers hold for these batches only: use running statistics, freeze them (adapt.frozen), or "
            "attack through the batch (attacks.ThroughBatch)",
        )
    yield from normalisation_flags(columns)
    if columns["summed"].all():
        yield Flag(
            "probabilities",
            "the outputs are not negative and sum to 1",
            "return logits: after a softmax, the loss that attacks climb is flat",
        )
    flat = int((columns["flat"] & columns["correct"]).sum())
    if columns["cut"].any():
        yield Flag(
            "cut",
            "no gradient can reach the image, so no attack that follows gradients was tried",
            "remove what detaches the image in the forward pass, or take a black-box attack (attacks.Square)",
        )
    elif flat > 0.05 * n:
        yield Flag(
            "no gradient",
            f"{flat} of {n} images have no gradient to follow",
            "look for rounding, thresholds or saturation in the model, and take a margin loss (attacks.CW), "
            "a differentiable stand-in, or a black-box attack (attacks.Square)",
        )


def normalisation_flags(columns: Columns) -> Iterator[Flag]:
    causes = {
        "normalised": "the model expects normalised pixels and gets raw ones; wrap it (trimtab.models.wrap)",
        "restored": "pixels are normalised twice; take one normalisation out",
        "bytes": "the model expects pixels from 0 to 255; scale them inside the model",
    }
    asis, constant = columns["correct"], columns["common"]  # better than the model, and than no model at all
    better = {
        name: columns[name]
        for name in causes
        if more_stand(columns[name], asis) and more_stand(columns[name], constant)
    }
    if better:
        name = max(better, key=lambda name: int(better[name].sum()))
        before, after = Accuracy.of(asis).value, Accuracy.of(better[name]).value
        how = "in 0..255" if name == "bytes" else name
        saw = f"accuracy rises from {before:.1%} to {after:.1%} with pixels {how}"
        certain = name == "bytes" or 1 - after < (1 - before) / 2  # the right pixels would mend as much
        yield Flag("normalisation" if certain else "shift", saw, causes[name])


def attack_flags(budget: Budget, seen: Mapping[str, Columns]) -> Iterator[Flag]:
    """What attacks within one budget, made on the same images, say about each other."""
    stands = {role: columns["correct"] for role, columns in seen.items()}
    after = [seen["PGD"][f"{AFTER}{mark}"] for mark in MARKS]
    yield from weak_flags(stands["PGD"], stands["FGSM"], budget)
    right = seen["FGSM"]["broken_at"] != 0
    by_one, by_many = int((right & ~stands["FGSM"]).sum()), int((right & ~stands["PGD"]).sum())
    if by_many >= 10 and by_one < by_many / 4:
        saw = f"one step breaks {by_one} images, many break {by_many} ({budget})"
        yield Flag("one step", saw, "the model is fitted to single steps: quote no number of FGSM for it")
    for (early, late), (fewer, more) in zip(pairwise(MARKS), pairwise(after), strict=True):
        if more_stand(more, fewer):
            saw = f"{_share(fewer)} stand after {early} steps of PGD, {_share(more)} after {late} ({budget})"
            yield Flag("steps", saw, f"the steps are too long for this model, or {_MASKED}")
    for name, small, large in (
        ("FGSM", stands["FGSM at half"], stands["FGSM"]),
        ("PGD", stands["PGD at half"], seen["PGD"][f"{AFTER}20"]),
    ):
        if more_stand(large, small):
            saw = f"{name} leaves {_share(small)} standing at half of {budget}, {_share(large)} at all of it"
            yield Flag("budget", saw, _MASKED)
    if _many(stands["anything"]):
        yield Flag(
            "unbounded", f"{_share(stands['anything'])} stand although every image is allowed", _MASKED
        )
    if "Square" in seen:
        white = (seen["PGD"]["broken_at"] < 0) & stands["PGD"] & stands["FGSM"]
        missed = white & ~stands["Square"]
        if _many(missed):
            saw = f"a search without gradients breaks {_share(missed)} that PGD and FGSM did not ({budget})"
            yield Flag("black box", saw, _MASKED)
    yield from curve_flags(seen["PGD"], budget)


def weak_flags(pgd: Tensor, fgsm: Tensor, budget: Budget) -> Iterator[Flag]:
    if more_stand(pgd, fgsm):
        saw = f"PGD leaves {_share(pgd)} standing, FGSM only {_share(fgsm)} ({budget})"
        yield Flag("weak attack", saw, _MASKED)


def curve_flags(columns: Columns, budget: Budget) -> Iterator[Flag]:
    """Whether an iteration curve still falls at its end."""
    stands = {int(name.removeprefix(AFTER)): columns[name] for name in columns if name.startswith(AFTER)}
    if len(stands) > 1 and not is_flat(stands):
        before, last = (f"{_share(stands[mark])} after {mark}" for mark in sorted(stands)[-2:])
        saw = f"images that stand: {before} iterations, {last} ({budget})"
        yield Flag("curve", saw, "the attack is not done: take more iterations until the curve is flat")


def suite_flags(seen: Sequence[tuple[Cell, Columns]], rows: Sequence[Row]) -> Iterator[Flag]:
    """What the cells of a suite say about each other, at their full size."""
    by_budget: dict[Budget, list[tuple[PGD, Columns]]] = {}
    for cell, columns in seen:
        attack = getattr(cell.condition, "attack", None)
        if isinstance(attack, PGD) and not attack.targeted:
            by_budget.setdefault(attack.budget, []).append((attack, columns))
            yield from curve_flags(columns, attack.budget)
    for budget, climbed in by_budget.items():
        for _, fgsm in (one for one in climbed if isinstance(one[0], FGSM)):
            for _, pgd in (one for one in climbed if one[0].steps > 1):
                yield from weak_flags(pgd["correct"], fgsm["correct"], budget)
    for row in sorted(rows, key=lambda row: row.interval[0] - row.interval[1])[:1]:
        low, high = row.interval
        if high - low > WIDEST:
            saw = (
                f"{row.condition}: {row.accuracy:.1%} of {row.n} images may be {low:.1%} to {high:.1%} of all"
            )
            yield Flag("samples", saw, f"measure {ENOUGH} images or more")


def more_stand(stands: Tensor, baseline: Tensor) -> bool:
    """Whether images stand here that fell there, more often than the reverse, beyond chance (sign test)."""
    gained, lost = int((stands & ~baseline).sum()), int((baseline & ~stands).sum())
    return gained > lost and binomtest(gained, gained + lost, alternative="greater").pvalue < CHANCE


def _many(stands: Tensor) -> bool:
    return int(stands.sum()) > max(2, 0.02 * len(stands))


def _share(stands: Tensor) -> str:
    return f"{Accuracy.of(stands).value:.1%}"
