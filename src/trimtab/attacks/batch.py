"""Attacks on a whole batch, against classifiers whose statistics come from it.

ThroughBatch   every image is perturbed within the budget, with gradients *through* the batch statistics:
               what an attacker does who knows that the defence adapts.
CoBatch        the attacker owns a few images of the batch, may put any pixels there, and flips the
               *others*, which stay untouched.

Papers    both are beyond Nandy et al., whose evaluation has neither; the second is Wu et al. 2023, "data
          poisoning in test-time adaptation" (10 of 200 images, from grey, 500 sign steps of 1/255)
Norm      source "batch" or a blend, update off, through `adapt.per_batch`
Cost      `steps` forward/backward passes over the batch, which is never split, refilled or reduced
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from trimtab import adapt
from trimtab.attacks.base import Attack, Outcome, check_call, check_labels, check_rho
from trimtab.attacks.climbing import gradient
from trimtab.attacks.guard import guard, says_coupled
from trimtab.attacks.losses import ce
from trimtab.attacks.pgd import PGD
from trimtab.types import BadInput, Budget, number


@dataclass(frozen=True)
class ThroughBatch(Attack):
    attack: PGD = field(default_factory=PGD)
    """The attack that climbs; it scores the last iterate of the whole batch."""
    rho: float = 1.0
    """How much of the batch's statistics the defence takes."""

    joint = True
    adaptive = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "rho", float(self.rho))  # 1 and 1.0 are one attack

    @property
    def budget(self) -> Budget:  # type: ignore[override]
        return self.attack.budget

    def scored(self, coupled: bool) -> str:
        return self.attack.scored(True)

    def __str__(self) -> str:
        return f"{self.attack} through the batch statistics (rho={self.rho:g})"

    def outcome(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        seed: int = 0,
        ids: Tensor | Sequence[int] | None = None,
        judged: bool = True,
    ) -> Outcome:
        check_call(model, x, y)
        return self.attack.outcome(_adaptive(model, self.rho), x, y, seed, ids, judged)


@dataclass(frozen=True)
class CoBatch:
    """Called like an attack; returns the batch with its last `images` replaced by the attacker's."""

    images: int = 10
    """How many of the batch are the attacker's."""
    steps: int = 500
    """Sign steps."""
    step_size: float | str = "1/255"
    """Length of a step in pixels."""
    rho: float = 1.0
    """How much of the batch's statistics the defence takes."""
    version = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "step_size", number(self.step_size))
        object.__setattr__(self, "rho", float(self.rho))
        if self.images < 1 or self.steps < 0:
            raise BadInput(f"CoBatch needs an image and no negative steps, found {self.images}, {self.steps}")

    def __str__(self) -> str:
        return f"co-batch attack, {self.images} images, {self.steps} steps (rho={self.rho:g})"

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor, seed: int = 0, ids: Tensor | Sequence[int] | None = None
    ) -> Tensor:
        check_call(model, x, y)
        y = y.long()
        own = len(x) - self.images
        if own < 1:
            raise BadInput(f"{self.images} images of a batch of {len(x)} leave nobody to attack")
        defence = _adaptive(model, self.rho)
        with guard(defence):
            check_labels(defence, x, y)
            theirs = torch.full_like(x[own:], 0.5)
            for _ in range(self.steps):
                theirs.requires_grad_(True)
                loss = ce(defence(torch.cat([x[:own], theirs]))[:own], y[:own]).sum()
                theirs = (theirs.detach() + float(self.step_size) * gradient(loss, theirs).sign()).clamp(0, 1)
        return torch.cat([x[:own], theirs.detach()])


def _adaptive(model: nn.Module, rho: float) -> nn.Module:
    """The model made adaptive; one that is already must adapt as the attack says."""
    if isinstance(model, adapt.Stream):
        raise BadInput("a stream learns from what it is shown; attack adapt.per_batch of its model")
    check_rho(model, rho)
    return model if says_coupled(model) else adapt.per_batch(model, rho)
