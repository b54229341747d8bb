"""Conditions used by claims only: images crafted on another branch or network, and scaled statistics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from trimtab import norm
from trimtab.attacks import Attack, Scaled
from trimtab.data import Batch
from trimtab.evaluate.conditions import Columns, Condition, correct


@dataclass(frozen=True)
class CraftedOn(Condition):
    """An attack on one branch, whichever branch classifies: the cross pairs of Mixture BN."""

    attack: Attack
    branch: str
    kind: ClassVar[str] = "attack"

    def columns(self, model: nn.Module, batch: Batch, seed: int) -> Columns:
        """Return which images the model classifies correctly after the attack on `branch`."""
        with norm.use(model, branch=self.branch):
            x = self.attack(model, batch.x, batch.y, seed=seed, ids=batch.ids)
        return {"correct": correct(model, x, batch.y)}

    def __str__(self) -> str:
        return f"{self.attack}, crafted on {self.branch}"


@dataclass(frozen=True)
class Transferred(Condition):
    """An attack on another network, such as the static network of an adaptive classifier."""

    attack: Attack
    source: nn.Module
    kind: ClassVar[str] = "attack"

    def columns(self, model: nn.Module, batch: Batch, seed: int) -> Columns:
        """Return which images the model classifies correctly after the attack on `source`."""
        x = self.attack(self.source, batch.x, batch.y, seed=seed, ids=batch.ids)
        return {"correct": correct(model, x, batch.y)}

    def __str__(self) -> str:
        return f"{self.attack}, transferred"


@dataclass(frozen=True)
class Rescaled(Condition):
    """Clean images, with the statistics of every norm layer scaled by one vector for all images."""

    attack: Scaled
    number: int = 0
    """Which random signs: the same for all networks with these layers."""
    kind: ClassVar[str] = "statistics"

    def columns(self, model: nn.Module, batch: Batch, seed: int) -> Columns:
        """Return which images the model classifies correctly with scaled statistics."""
        with norm.use(model, shift=self.attack(model, seed=self.number)):
            return {"correct": correct(model, batch.x, batch.y)}

    def __str__(self) -> str:
        return f"{self.attack}, signs {self.number}"


def worst(columns: Sequence[Tensor]) -> Tensor:
    """Return which images are classified correctly under every one of several attacks."""
    return torch.stack([column.double() for column in columns]).amin(0)
