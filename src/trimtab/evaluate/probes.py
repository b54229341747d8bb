"""What the trust card looks at: small measurements on the first images, made and stored like all others."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trimtab.attacks import FGSM, L2, PGD, Attack, Linf, Square
from trimtab.attacks.base import wrong
from trimtab.attacks.guard import says_coupled
from trimtab.data.sets import Batch
from trimtab.evaluate.conditions import Attacked, Columns, Condition, logits
from trimtab.evaluate.suites import curve
from trimtab.models.memory import halving, in_parts
from trimtab.types import BadInput, Budget, InputSpec

PROBED = 128
"""Images that the trust card looks at."""
BATCHES = (1, 7, 64)
"""Batch sizes that must not matter."""
MARKS = (5, 10, 20, 40)
"""Iterations after which the probing PGD is looked at."""


@dataclass(frozen=True)
class Health(Condition):
    """How a model behaves on images as they are. Per image:

    common       the label is the most common one
    usual        the answer is the model's most common one
    finite       all logits are numbers
    unsteady     how far two passes over the same batch are apart, relative to the largest logit
    beside       how far passes in batches of 1, 7 and 64 are from the pass over all
    summed       the logits are probabilities: none negative, sum 1
    flat         the gradient of the cross-entropy is zero in every pixel, or not a number
    cut          no gradient can reach the image at all
    training     some submodule stayed in training mode
    normalised, restored, bytes    correct, had the pixels come normalised, un-normalised, or in 0..255
    """

    spec: InputSpec
    """The mean and deviation with which a normalisation may be missing, or one too many."""
    kind: ClassVar[str] = "health"
    version: ClassVar[int] = 2
    whole: ClassVar[bool] = True

    @property
    def cost(self) -> float:
        return 12.0

    @torch.no_grad()
    def columns(self, model: nn.Module, batch: Batch, seed: int) -> Columns:
        x, y = batch.x, batch.y

        def seen(images: Tensor) -> Tensor:
            """What the model says; in parts if it must be, and if that changes nothing."""
            if says_coupled(model):
                return logits(model, images, y)
            return in_parts(lambda part: logits(model, part, y), images)

        z = seen(x)
        scale = z.nan_to_num().abs().max().clamp(min=1e-6)

        def apart(other: Tensor) -> Tensor:
            return (other - z).nan_to_num().abs().amax(1).float() / scale.float()

        def in_batches(size: int) -> Tensor:
            """How far the logits move; a model that refuses such a batch depends on it."""
            try:
                return apart(torch.cat([seen(part) for part in x.split(size)]))
            except (BadInput, ValueError):
                return torch.full((len(x),), torch.inf, device=x.device)

        beside = [in_batches(size) for size in BATCHES]
        mean, std = (torch.tensor(v).to(x).view(-1, 1, 1) for v in (self.spec.mean, self.spec.std))
        tried = {"normalised": (x - mean) / std, "restored": x * std + mean, "bytes": x * 255}
        return {
            "correct": ~wrong(z, y),
            "common": y == y.mode().values,
            "usual": z.argmax(1) == z.argmax(1).mode().values,
            "finite": z.isfinite().all(1),
            "unsteady": apart(seen(x)),
            "beside": torch.stack(beside).amax(0),
            "summed": ((z.sum(1) - 1).abs() < 1e-3) & (z >= 0).all(1),
            "training": torch.full_like(y, any(m.training for m in model.modules()), dtype=torch.bool),
            **_followed_in_parts(model, x, y),
            **{name: seen(other).argmax(1) == y for name, other in tried.items()},
        }

    def __str__(self) -> str:
        return "health of the model"


@torch.enable_grad()
def followed(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Which images have a gradient that an attack can follow, and whether any can reach them."""
    x = x.detach().clone().requires_grad_(True)
    loss = F.cross_entropy(model(x), y, reduction="sum")
    grad = torch.autograd.grad(loss, x, allow_unused=True)[0] if loss.requires_grad else None
    if grad is None:
        everywhere = torch.ones_like(y, dtype=torch.bool)
        return {"flat": everywhere, "cut": everywhere}
    flat = (grad == 0).flatten(1).all(1) | ~grad.isfinite().flatten(1).all(1)
    return {"flat": flat, "cut": torch.zeros_like(flat)}


def _followed_in_parts(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    def work(size: int) -> dict[str, Tensor]:
        found = [followed(model, *part) for part in zip(x.split(size), y.split(size), strict=True)]
        return {name: torch.cat([one[name] for one in found]) for name in found[0]}

    return work(len(x)) if says_coupled(model) else halving(work, len(x))


def attacks_at(budget: Budget, pixels: int, coupled: bool) -> dict[str, Attacked]:
    """Attacks whose results must agree with each other for a robust accuracy to mean something, by role."""
    half = type(budget)(budget.radius / 2)
    anything = Linf(1.0) if isinstance(budget, Linf) else L2(math.sqrt(pixels))
    tried: dict[str, Attack] = {
        "FGSM": FGSM(budget),
        "FGSM at half": FGSM(half),
        "PGD": curve(budget, MARKS),
        "PGD at half": PGD(half, steps=20),
        "anything": PGD(anything, steps=50, score="any"),
    }
    if not coupled:
        tried["Square"] = Square(budget, queries=300)
    return {role: Attacked(attack) for role, attack in tried.items()}
