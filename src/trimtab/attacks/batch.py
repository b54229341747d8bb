"""Attacks on a whole batch, against classifiers whose statistics come from it.

ThroughBatch   every image is perturbed within the budget, with gradients *through* the batch statistics:
               the attack of someone who knows that the defense adapts at test time.
CoBatch        the attacker controls a few images of the batch, with any pixels, and makes the model
               misclassify the *others*, which stay clean.

Papers    Nandy et al. evaluate neither; the second is Wu et al. 2023, "data poisoning in test-time
          adaptation" (10 of 200 images, from gray, 500 sign steps of 1/255)
Norm      source "batch" or a blend, update off, through `adapt.per_batch`
Cost      `steps` forward/backward passes over the whole batch: no image leaves it, none is added
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from trimtab import adapt
from trimtab.attacks.base import Attack, check_rho
from trimtab.attacks.losses import ce, gradient
from trimtab.attacks.pgd import PGD
from trimtab.runtime import check_call, check_labels, declares_coupling, guard
from trimtab.types import BadInput, Budget, method_card, number


@method_card(__doc__)
@dataclass(frozen=True)
class ThroughBatch(Attack):
    """PGD on the model as it adapts to the batch, with gradients through the batch statistics.

    Args:
        attack: The inner attack; the last iterate of the whole batch counts.
        rho: The weight of the batch's statistics in the defense.
    """

    attack: PGD = field(default_factory=PGD)
    rho: float = 1.0

    joint = True
    adaptive = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "rho", float(self.rho))  # so that 1 and 1.0 are the same attack

    @property
    def budget(self) -> Budget:  # type: ignore[override]
        """Return the budget of the inner attack."""
        return self.attack.budget

    def scored(self, coupled: bool) -> str:
        """Return which iterate counts: an adaptive model couples its batch, so no image can stop early."""
        return self.attack.scored(True)

    def __str__(self) -> str:
        return f"{self.attack} through the batch statistics (rho={self.rho:g})"

    def resolve(
        self, model: nn.Module, x: Tensor, y: Tensor, seed: int, ids: Tensor | Sequence[int] | None
    ) -> tuple[Attack, nn.Module]:
        """Return the inner attack, and the model as it adapts to the batch."""
        return self.attack, _adaptive(model, self.rho)


@method_card(__doc__)
@dataclass(frozen=True)
class CoBatch:
    """Replace the last images of a batch so that the others are misclassified. Called like an attack.

    Args:
        images: Number of images in the batch that the attacker controls.
        steps: Sign steps.
        step_size: Length of a step in pixels.
        rho: The weight of the batch's statistics in the defense.
    """

    images: int = 10
    steps: int = 500
    step_size: float | str = "1/255"
    rho: float = 1.0
    version = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "step_size", number(self.step_size))
        object.__setattr__(self, "rho", float(self.rho))
        if self.images < 1 or self.steps < 0:
            raise BadInput(f"CoBatch needs images >= 1 and steps >= 0, found {self.images}, {self.steps}")

    def __str__(self) -> str:
        return f"co-batch attack, {self.images} images, {self.steps} steps (rho={self.rho:g})"

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor, seed: int = 0, ids: Tensor | Sequence[int] | None = None
    ) -> Tensor:
        """Return the batch with its last `images` replaced by adversarial ones; the model is left as it was.

        Args:
            model: Any classifier that returns logits (N, classes); a static one adapts with `rho`.
            x: Images (N, C, H, W) with pixels in [0, 1]; more than `images`.
            y: Labels (N,).
            seed: Not used: the attack is deterministic.
            ids: Not used.
        """
        check_call(model, x, y)
        y = y.long()
        victims = len(x) - self.images  # the first images of the batch, which stay clean
        if victims < 1:
            raise BadInput(
                f"{self.images} images of a batch of {len(x)} leave none to attack; give a larger batch"
            )
        defense = _adaptive(model, self.rho)
        step = float(self.step_size)
        with guard(defense):
            check_labels(defense, x, y)
            malicious = torch.full_like(x[victims:], 0.5)
            for _ in range(self.steps):
                malicious.requires_grad_(True)
                logits = defense(torch.cat([x[:victims], malicious]))
                loss = ce(logits[:victims], y[:victims]).sum()
                malicious = (malicious.detach() + step * gradient(loss, malicious).sign()).clamp(0, 1)
        return torch.cat([x[:victims], malicious.detach()])


def _adaptive(model: nn.Module, rho: float) -> nn.Module:
    """Return the model, adapting per batch; if it does already, its rho must be the attack's."""
    if isinstance(model, adapt.Stream):
        raise BadInput(
            "a stream adapts to its input and cannot be attacked; attack adapt.per_batch of its model"
        )
    check_rho(model, rho)
    return model if declares_coupling(model) else adapt.per_batch(model, rho)
