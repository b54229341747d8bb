"""Gradient similarity and shifted statistics as conditions: what `trimtab analyze` looks at, as rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from trimtab import norm, rng
from trimtab.attacks import RandomSign
from trimtab.data.sets import Batch
from trimtab.evaluate.conditions import Columns, Recorded, correct
from trimtab.evaluate.records import Measure, ShiftRecord, SimilarityRecord
from trimtab.measure.ligs import ligs
from trimtab.runtime import couples_batch
from trimtab.types import BadInput, number


@dataclass(frozen=True)
class Similar(Recorded):
    """Clean images, and the cosine similarity of the loss gradients at and near each of them (LIGS)."""

    size: float | str = 0.01
    """Std of the Gaussian step to the nearby image, in pixels."""
    kind: ClassVar[str] = "gradients"

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", number(self.size))
        if float(self.size) <= 0:
            raise BadInput(f"the step to a nearby image must be longer than 0, found {float(self.size):g}")

    @property
    def cost(self) -> float:
        """Approximate forward passes per image."""
        return 7.0

    def columns(self, model: nn.Module, batch: Batch, seed: int) -> Columns:
        """Return which images are correct, and the similarity of each; NaN where a gradient is zero."""
        similarity = ligs(model, batch.x, batch.y, size=self.size, seed=seed, ids=batch.ids)
        return {"correct": correct(model, batch.x, batch.y), "ligs": similarity}

    def measure(self, columns: Columns) -> Measure:
        """Return the mean over images whose gradient is not zero, with a normal 95 % interval."""
        finite = columns["ligs"][columns["ligs"].isfinite()]
        if not len(finite):
            return Measure("LIGS")
        mean = float(finite.double().mean())
        error = 1.96 * float(finite.double().std()) / len(finite) ** 0.5 if len(finite) > 1 else 2.0
        return Measure("LIGS", mean, max(-1.0, mean - error), min(1.0, mean + error))

    def record(self) -> SimilarityRecord:
        """Return the typed value that rows store."""
        return SimilarityRecord(float(self.size))


@dataclass(frozen=True)
class Shifted(Recorded):
    """Clean images, with every channel's mean and std shifted by `eps` of itself, up or down at random.

    Random signs are sampled for each image: with the same signs for all, the accuracy may fall by 5 points or
    by 40, which the interval over images would not show. Where images of a batch influence each other, signs
    are sampled for each batch, and the interval, which counts images, is too narrow.
    """

    eps: float | str = 0.2
    """The relative size of the shift; its signs are the same for all models with these layers."""
    kind: ClassVar[str] = "statistics"
    version: ClassVar[int] = 2

    def __post_init__(self) -> None:
        object.__setattr__(self, "eps", number(self.eps))
        if not 0 <= float(self.eps) < 1:
            raise BadInput(f"statistics are shifted by 0 to less than 1, found eps {float(self.eps):g}")

    def applies(self, model: nn.Module, coupled: bool) -> bool:
        """Return whether the model has layers whose statistics can be shifted."""
        return norm.steerable(model)

    @property
    def cost(self) -> float:
        """Approximate forward passes per image."""
        return 4.0

    def columns(self, model: nn.Module, batch: Batch, seed: int) -> Columns:
        """Return which images are correct under shifted statistics."""
        copied = norm.steer(norm.clone(model))  # the model itself may be a stock one
        coupled = couples_batch(model, batch.x)
        size = len(batch.x) if coupled else 1
        parts = []
        for x, y, ids in zip(batch.x.split(size), batch.y.split(size), batch.ids.split(size), strict=True):
            signs = RandomSign(self.eps)(copied, seed=rng.key(seed, int(ids[0])) >> 1)
            # Not every network takes a single image, so it is given twice.
            images, labels = (x, y) if coupled else (torch.cat([x, x]), torch.cat([y, y]))
            with norm.use(copied, shift=signs):
                parts.append(correct(copied, images, labels)[:size])
        return {"correct": torch.cat(parts)}

    def record(self) -> ShiftRecord:
        """Return the typed value that rows store."""
        return ShiftRecord(float(self.eps))
