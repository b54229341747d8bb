"""Flags about the model itself: is its prediction a function of the image, are the pixels the right ones?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn

from trimtab import adapt, norm
from trimtab.attacks import guard
from trimtab.data import Batch, Images
from trimtab.evaluate.bn_modes import BranchMode, RunningMode
from trimtab.evaluate.card import Flag
from trimtab.evaluate.cells import Cell
from trimtab.evaluate.conditions import Columns
from trimtab.evaluate.probes import WITH, Normalization
from trimtab.models import Pixels
from trimtab.models.check import range_faults
from trimtab.models.corrections import is_certain, strongest
from trimtab.runtime import call_in_parts, require_usable

NONDETERMINISM = 1e-4
"""Tolerated difference of two passes, relative to the largest logit; rounding stays below 1e-5."""
BATCH_EFFECT = 1e-3
"""Tolerated difference of passes in other batches, likewise; other kernels move logits by about 1e-5."""
FLAT = 0.05
"""The fraction of images without a gradient from which attacks cannot be trusted."""


def first_flags(cells: Sequence[Cell], measured: Sequence[Columns]) -> Iterator[Flag]:
    """Yield what is wrong with the model, or with giving it these pixels.

    Args:
        cells: the health cell, and that of the normalization check if there is one.
        measured: their columns.
    """
    cell, health = cells[0], measured[0]
    batch = cell.subject.batch(0, cell.n)
    adapts = not isinstance(cell.bn_mode, RunningMode | BranchMode)
    with (
        guard(cell.subject.model)
        if adapts
        else cell.bn_mode.activate(cell.subject.model, _no_images) as model
    ):
        faults = range_faults(model, batch.x)
        layers = norm.audit(model).layers
        image_flags = list(other_images(model, batch, cell.subject.data))
    if any(isinstance(module, adapt.Router) for module in cell.subject.model.modules()):
        observed = "branches are chosen by the images' statistics, and a router is no defense"
        advice = "attack it with blend=True, which differentiates the choice, and quote the worst branch, too"
        yield Flag("router", observed, advice)
    for fault in faults:
        yield Flag("normalization", fault, "give the model the mean and std that it was trained with")
    yield from image_flags
    untrained = [row.name for row in layers if any(fault.kind == "never trained" for fault in row.warnings)]
    if untrained:
        observed = (
            f"running statistics of {len(untrained)} layers were never trained ({untrained[0]} for one)"
        )
        yield Flag(
            "untrained", observed, "load trained weights (file:PATH, timm:NAME+pretrained), or train it first"
        )
    yield from health_flags(health)
    for each, columns in zip(cells[1:], measured[1:], strict=True):
        yield from normalization_flags(each, columns)


def other_images(model: nn.Module, batch: Batch, data: Images) -> Iterator[Flag]:
    """Yield flags if images do not fit the model, or come class by class.

    Args:
        model: a classifier.
        batch: the first images.
        data: the set that they are from.
    """
    require_usable(model, batch.x)
    size = tuple(batch.x.shape[2:])
    if isinstance(model, Pixels) and model.recorded and size != model.spec.size:
        expected, actual = (f"{h} x {w}" for h, w in (model.spec.size, size))
        observed = f"the network was made for {expected} pixels, the images have {actual}"
        yield Flag("size", observed, "give it images of its size")
    outputs, classes = call_in_parts(model, batch.x[:4]).shape[1], len(data.classes)
    known: Any = getattr(model, "classes", None)
    if _named(known) and _named(data.classes) and tuple(known) != tuple(data.classes):
        differ = (pair for pair in zip_longest(known, data.classes) if pair[0] != pair[1])
        observed = "the model's {!r} is at the place of the images' {!r} among their classes".format(
            *next(differ)
        )
        yield Flag("classes", observed, "see that label k of the images is the model's class k")
    elif outputs > classes:
        observed = f"the model has {outputs} classes, the images have {classes}"
        yield Flag("classes", observed, "see that label k of the images is the model's class k")
    shown = len(batch.y.unique())
    if shown < min(classes, len(batch.y)) / 4 or (shown == 1 < classes and len(batch.y) >= 16):
        observed = f"the first {len(batch.y)} images are of {shown} of {classes} classes"
        advice = "mix them: statistics of the first images, or of a batch, are those of few classes"
        yield Flag("order", observed, advice)
    elif 16 <= len(batch.y) < len(data) and shown > 1 and _is_sorted(batch.y):
        observed = f"the first {len(batch.y)} images come in the order of their classes"
        advice = "mix them: neighboring classes look alike, and bias the statistics of a batch"
        yield Flag("order", observed, advice)


def _is_sorted(y: Tensor) -> bool:
    """Whether labels only grow, or only fall."""
    steps = y.diff()
    return bool((steps >= 0).all() or (steps <= 0).all())


def _named(classes: Any) -> bool:
    """Whether classes have names, and not only numbers."""
    return isinstance(classes, tuple | list) and any(not str(name).isdigit() for name in classes)


def _no_images(count: int) -> Tensor:
    """Return no images, which is enough for BN modes that do not adapt."""
    return torch.empty(0)


def health_flags(columns: Columns) -> Iterator[Flag]:
    """Yield the flags that the columns of the health cell raise.

    Args:
        columns: those of `probes.Health`.
    """
    n = len(columns["correct"])
    if columns["training"].any():
        yield Flag(
            "modes", "a submodule stays in training mode after eval()", "let eval() reach every submodule"
        )
    if not columns["finite"].all():
        lost = int((~columns["finite"]).sum())
        yield Flag("non-finite", f"logits of {lost} of {n} images are not numbers", "repair the model first")
    if columns["usual"].all() and not columns["common"].all():
        observed = f"all {n} images are given the same class"
        yield Flag(
            "constant", observed, "train the model, or give it images like those that it was trained on"
        )
    repeated, rebatched = float(columns["repeated"].max()), float(columns["rebatched"].max())
    if repeated > NONDETERMINISM:
        yield Flag(
            "stochastic",
            f"two passes over the same images differ by {repeated:.1%} of the largest logit",
            "turn off random sampling in eval mode (dropout), or attack its expectation: "
            "attacks.EOT(attack, [model] * 10)",
        )
    if rebatched > max(BATCH_EFFECT, 2 * repeated):
        finite = rebatched < math.inf
        differ = f"differ by {rebatched:.1%} of the largest logit" if finite else "are not all taken"
        yield Flag(
            "batch",
            f"the same images in other batches {differ}",
            "the numbers hold for these batches only: use running statistics, freeze them (adapt.frozen), or "
            "attack through the batch (attacks.ThroughBatch)",
        )
    if columns["summed"].all():
        yield Flag(
            "probabilities",
            "the outputs are not negative and sum to 1",
            "return logits: after a softmax, the loss that attacks maximize is flat",
        )
    flat = int((columns["flat"] & columns["correct"]).sum())
    if columns["cut"].any():
        yield Flag(
            "cut",
            "no gradient can reach the image, so no attack that follows gradients was tried",
            "remove what detaches the image in the forward pass, or take a black-box attack (attacks.Square)",
        )
    elif flat > FLAT * n:
        yield Flag(
            "no gradient",
            f"{flat} of {n} images have no gradient to follow",
            "look for rounding, thresholds or saturation in the model, and take a margin loss (attacks.CW), "
            "a differentiable stand-in, or a black-box attack (attacks.Square)",
        )


def normalization_flags(cell: Cell, columns: Columns) -> Iterator[Flag]:
    """Yield a flag if a correction of the pixels classifies significantly better than the pixels as they are.

    Args:
        cell: the cell of the normalization check.
        columns: its columns.
    """
    condition = cell.condition
    if not isinstance(condition, Normalization):
        return
    options = condition.options
    corrected = torch.stack([columns[f"{WITH}{option.name}"] for option in options])
    evidence = strongest(columns["correct"], corrected, columns["label"], options)
    if evidence is None:
        return
    images = cell.subject.batch(0, cell.n).x
    name = "normalization" if is_certain(evidence, images, dict(condition.known)) else "shift"
    advice = evidence.correction.advice
    if name == "shift":
        advice += "; or adapt it, if the images are of a kind that is new to it (trimtab adapt)"
    yield Flag(name, str(evidence), advice)
