"""What the trust card measures: small cells on the first images, made and stored like all others."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trimtab.attacks import FGSM, L2, PGD, Attack, Linf, Square
from trimtab.data.sets import Batch
from trimtab.evaluate.conditions import Attacked, Columns, Condition, logits
from trimtab.evaluate.suites import curve
from trimtab.models.corrections import Constants, Correction, compare, corrections
from trimtab.runtime import call_in_parts, declares_coupling, is_misclassified, retry_halved
from trimtab.types import BadInput, Budget

PROBED = 128
"""Images that the trust card measures; its normalization check takes up to `corrections.CHECKED`."""
BATCHES = (1, 7, 64)
"""Batch sizes that must not matter."""
MARKS = (5, 10, 20, 40)
"""Iterations of the probing PGD whose accuracies are compared."""
WITH = "with "
"""How the columns of the normalization check begin, followed by the name of a correction."""


@dataclass(frozen=True)
class Health(Condition):
    """How a model behaves on images as they are. Per image:

    common       the label is the most common one
    usual        the prediction is the model's most common one
    finite       all logits are numbers
    repeated     distance of two passes over the same batch, relative to the largest logit
    rebatched    distance of passes in batches of 1, 7 and 64 from the pass over all, likewise
    summed       the logits are probabilities: none negative, sum 1
    flat         the gradient of the cross-entropy is zero in every pixel, or not a number
    cut          no gradient can reach the image at all
    training     some submodule stayed in training mode

    A brief one, for suites without attacks, takes three passes: other batches are of one image, and gradients
    are left out (`flat` and `cut` are false).
    """

    brief: bool = False
    """Whether no attack follows."""
    kind: ClassVar[str] = "health"
    version: ClassVar[int] = 4
    whole: ClassVar[bool] = True

    @property
    def cost(self) -> float:
        """Approximate forward passes per image."""
        return 3.0 if self.brief else 9.0

    @torch.no_grad()
    def columns(self, model: nn.Module, batch: Batch, seed: int) -> Columns:
        """Return the values listed above."""
        x, y = batch.x, batch.y
        call = _logits_of(model, y)
        z = call(x)
        scale = z.nan_to_num().abs().max().clamp(min=1e-6)

        def distance(other: Tensor) -> Tensor:
            return (other - z).nan_to_num().abs().amax(1).float() / scale.float()

        def in_batches(size: int) -> Tensor:
            """The distance of the logits; infinite if the model refuses a batch of this size."""
            try:
                return distance(torch.cat([call(part) for part in x.split(size)]))
            except (BadInput, ValueError):
                return torch.full((len(x),), torch.inf, device=x.device)

        rebatched = [in_batches(size) for size in (BATCHES[:1] if self.brief else BATCHES)]
        without = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        return {
            "correct": ~is_misclassified(z, y),
            "common": y == y.mode().values,
            "usual": z.argmax(1) == z.argmax(1).mode().values,
            "finite": z.isfinite().all(1),
            "repeated": distance(call(x)),
            "rebatched": torch.stack(rebatched).amax(0),
            "summed": ((z.sum(1) - 1).abs() < 1e-3) & (z >= 0).all(1),
            "training": torch.full_like(y, any(m.training for m in model.modules()), dtype=torch.bool),
            **({"flat": without, "cut": without} if self.brief else _gradients_in_parts(model, x, y)),
        }

    def __str__(self) -> str:
        return "health of the model"


@dataclass(frozen=True)
class Normalization(Condition):
    """Which images a model classifies correctly with each correction of its pixels. Per image:

    label           the label
    with NAME       correct with the correction of this name (see `models.corrections`)
    """

    channels: int
    """Of the images."""
    known: tuple[tuple[str, Constants], ...]
    """Means and stds that the model and the data record, by where."""
    kind: ClassVar[str] = "normalization"
    whole: ClassVar[bool] = True

    @property
    def cost(self) -> float:
        """Approximate forward passes per image."""
        return 10.0

    @property
    def options(self) -> tuple[Correction, ...]:
        """The candidate corrections."""
        return corrections(self.channels, dict(self.known))

    @torch.no_grad()
    def columns(self, model: nn.Module, batch: Batch, seed: int) -> Columns:
        """Return which images are correct as given, their labels, and a column per correction."""
        options = self.options
        as_given, corrected = compare(_logits_of(model, batch.y), batch.x, batch.y, options)
        rows = {f"{WITH}{option.name}": row for option, row in zip(options, corrected, strict=True)}
        return {"correct": as_given, "label": batch.y, **rows}

    def __str__(self) -> str:
        return "normalization of the pixels"


def _logits_of(model: nn.Module, y: Tensor) -> Callable[[Tensor], Tensor]:
    """The model as a classifier of these labels; in parts if memory is short, where that changes nothing."""
    if declares_coupling(model):
        return lambda x: logits(model, x, y)
    return lambda x: call_in_parts(lambda part: logits(model, part, y), x)


@torch.enable_grad()
def image_gradients(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Return which images have no gradient that an attack can follow, and whether none can reach them.

    Args:
        model: a classifier.
        x: pixels, (N, C, H, W).
        y: labels.
    """
    x = x.detach().clone().requires_grad_(True)
    loss = F.cross_entropy(model(x), y, reduction="sum")
    grad = torch.autograd.grad(loss, x, allow_unused=True)[0] if loss.requires_grad else None
    if grad is None:
        everywhere = torch.ones_like(y, dtype=torch.bool)
        return {"flat": everywhere, "cut": everywhere}
    flat = (grad == 0).flatten(1).all(1) | ~grad.isfinite().flatten(1).all(1)
    return {"flat": flat, "cut": torch.zeros_like(flat)}


def _gradients_in_parts(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    def work(size: int) -> dict[str, Tensor]:
        parts = [image_gradients(model, *part) for part in zip(x.split(size), y.split(size), strict=True)]
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    return work(len(x)) if declares_coupling(model) else retry_halved(work, len(x))


def attacks_at(budget: Budget, pixels: int, coupled: bool) -> dict[str, Attacked]:
    """Return attacks whose results must agree for a robust accuracy to mean something, by role.

    Args:
        budget: the budget that a suite's attacks have.
        pixels: values per image, which bound every L2 distance.
        coupled: whether images of a batch influence each other; Square then does not apply.
    """
    half = type(budget)(budget.radius / 2)
    anything = Linf(1.0) if isinstance(budget, Linf) else L2(math.sqrt(pixels))
    tried: dict[str, Attack] = {
        "FGSM": FGSM(budget),
        "FGSM at half": FGSM(half),
        "PGD": curve(budget, MARKS),
        "PGD at half": PGD(half, steps=20),
        "anything": PGD(anything, steps=50, early_stop=True),
    }
    if not coupled:
        tried["Square"] = Square(budget, queries=300)
    return {role: Attacked(attack) for role, attack in tried.items()}
