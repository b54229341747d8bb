"""What the lens sees, as conditions: how alike gradients are a step aside, and what moved statistics do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from trimtab import draws, norm
from trimtab.attacks import RandomSign
from trimtab.attacks.guard import couples_batch
from trimtab.data.sets import Batch
from trimtab.evaluate.card import ENDS
from trimtab.evaluate.conditions import Columns, Condition, correct
from trimtab.measure.ligs import ligs
from trimtab.types import BadInput, number, pretty


@dataclass(frozen=True)
class Similar(Condition):
    """Unchanged images, and how alike the loss gradients at each and a small step aside are (LIGS)."""

    size: float | str = 0.01
    """Deviation of the Gaussian step, in pixels."""
    kind: ClassVar[str] = "gradients"
    instead: ClassVar[str] = "LIGS"

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", number(self.size))
        if float(self.size) <= 0:
            raise BadInput(f"a step aside must be longer than 0, found {float(self.size):g}")

    @property
    def cost(self) -> float:
        return 7.0

    def columns(self, model: nn.Module, batch: Batch, seed: int) -> Columns:
        similar = ligs(model, batch.x, batch.y, size=self.size, seed=seed, ids=batch.ids)
        return {"correct": correct(model, batch.x, batch.y), "ligs": similar}

    def figures(self, columns: Columns) -> dict[str, float]:
        """The mean over images whose gradient is not zero; nothing if there are none."""
        finite = columns["ligs"][columns["ligs"].isfinite()]
        if not len(finite):
            return {}
        mean = float(finite.double().mean())
        error = 1.96 * float(finite.double().std()) / len(finite) ** 0.5 if len(finite) > 1 else 2.0
        values = (mean, max(-1.0, mean - error), min(1.0, mean + error))
        return {self.instead + end: value for end, value in zip(("", *ENDS), values, strict=True)}

    def __str__(self) -> str:
        return f"gradient similarity (LIGS), step {pretty(float(self.size))}"


@dataclass(frozen=True)
class Shifted(Condition):
    """Unchanged images, with every channel's mean and deviation moved by `eps` of itself, up or down.

    Which way is drawn anew for each image: one draw for all may cost 5 points and the next one 40, which no
    number of images would tell. Where images of a batch influence each other, each batch has a draw, and the
    interval, which counts images, is too narrow.
    """

    eps: float | str = 0.2
    """How far: as APART's random signs, the same for all models with these layers."""
    kind: ClassVar[str] = "statistics"
    version: ClassVar[int] = 2

    def __post_init__(self) -> None:
        object.__setattr__(self, "eps", number(self.eps))
        if not 0 <= float(self.eps) < 1:
            raise BadInput(f"statistics are moved by 0 to less than 1, found eps {float(self.eps):g}")

    def applies(self, model: nn.Module, coupled: bool) -> bool:
        return norm.steerable(model)

    @property
    def cost(self) -> float:
        return 4.0

    def columns(self, model: nn.Module, batch: Batch, seed: int) -> Columns:
        moved = norm.steer(norm.copied(model))  # the model itself may be a stock one
        together = couples_batch(model, batch.x)
        size = len(batch.x) if together else 1
        right = []
        for x, y, ids in zip(batch.x.split(size), batch.y.split(size), batch.ids.split(size), strict=True):
            signs = RandomSign(self.eps)(moved, seed=draws.key(seed, int(ids[0])) >> 1)
            shown = (
                (x, y) if together else (torch.cat([x, x]), torch.cat([y, y]))
            )  # not all take a single one
            with norm.use(moved, shift=signs):
                right.append(correct(moved, *shown)[:size])
        return {"correct": torch.cat(right)}

    def __str__(self) -> str:
        return f"statistics moved by random signs, eps {pretty(float(self.eps))}"
