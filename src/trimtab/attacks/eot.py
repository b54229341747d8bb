"""Expectation over transformation: attack a classifier that is sampled at random.

Idea      ascend -log(1/m sum_i p_i(y | x)) over m sampled classifiers (the logarithm outside the mean)
Paper     Athalye et al. 2018; against adaptive batch norm as in Nandy et al., appendix E: m copies, each
          adapted to the batch plus a random perturbation from the ball, then frozen
Norm      each sampled model has its own statistics
Cost      m times that of the inner attack
Caution   the copies treat statistics as constants and were adapted to random, not adversarial, noise:
          a weak attack on an adaptive defense. Report `ThroughBatch` and transfer next to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from trimtab import adapt, rng
from trimtab.attacks.base import Attack, check_rho, non_default
from trimtab.attacks.geometry import random_start
from trimtab.attacks.pgd import PGD
from trimtab.runtime import check_labels, guard
from trimtab.types import BadInput, Budget, method_card

Sampler = Callable[[int], nn.Module]
"""Returns the classifier of a seed."""


@method_card(__doc__)
@dataclass(frozen=True)
class EOT(Attack):
    """PGD on the mean probability of several sampled classifiers (expectation over transformation).

    Args:
        attack: The inner attack; its loss must be cross-entropy.
        sampler: A function from a seed to a classifier, or a sequence of classifiers; None adapts copies
            of the attacked model to the batch (the paper's adaptive-BN sampler).
        m: Number of classifiers to sample; of a sequence all are used.
        rho: With the adaptive-BN sampler: the weight of the batch's statistics.
    """

    attack: PGD = field(default_factory=lambda: PGD(steps=100))
    sampler: Sampler | Sequence[nn.Module] | None = None
    m: int = 10
    rho: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "rho", float(self.rho))
        if not isinstance(self.attack, PGD) or self.attack.loss != "ce" or self.attack.targeted:
            raise BadInput(
                "EOT ascends the cross-entropy of the mean probability; give an untargeted PGD with loss ce"
            )
        if self.classifiers < 1:
            raise BadInput(f"EOT needs at least one classifier, found {self.classifiers}")

    @property
    def classifiers(self) -> int:
        """Return how many classifiers there are, given or sampled."""
        return len(self.sampler) if isinstance(self.sampler, Sequence | nn.ModuleList) else self.m

    @property
    def budget(self) -> Budget:  # type: ignore[override]
        """Return the budget of the inner attack."""
        return self.attack.budget

    @property
    def joint(self) -> bool:  # type: ignore[override]
        """Whether the classifiers depend on the batch: those of the adaptive-BN sampler do."""
        return self.sampler is None

    @property
    def adaptive(self) -> bool:  # type: ignore[override]
        """Whether it attacks the model as it adapts to the batch, not as it is given."""
        return self.sampler is None

    def scored(self, coupled: bool) -> str:
        """Return which iterate counts; the sampled classifiers are fixed, so images can stop early."""
        return self.attack.scored(False)

    def __str__(self) -> str:
        rest = non_default(self, "attack", "sampler", "m")
        return f"EOT over {self.classifiers} classifiers of {self.attack}{rest}"

    def resolve(
        self, model: nn.Module, x: Tensor, y: Tensor, seed: int, ids: Tensor | Sequence[int] | None
    ) -> tuple[Attack, nn.Module]:
        """Return the inner attack, and the mean probability of the sampled classifiers."""
        sampler = self.sampler
        if sampler is None:
            sampler = adaptive_sampler(model, x, self.budget, self.rho, rng.ids_of(x, ids))
        if isinstance(sampler, Sequence | nn.ModuleList):
            models = list(sampler)
        else:
            models = [sampler(rng.key(seed, i) >> 1) for i in range(self.m)]
        with guard(models[0]):
            check_labels(models[0], x, y)
        return self.attack, MeanProbability(models)


class MeanProbability(nn.Module):
    """Several classifiers as one, whose logits are the logarithm of their mean probability."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logarithm of the classifiers' mean probability, (N, classes)."""
        log_p = torch.stack([model(x).log_softmax(1) for model in self.models])  # (models, N, classes)
        return log_p.logsumexp(0) - torch.tensor(float(len(self.models))).log().to(log_p)


def adaptive_sampler(
    model: nn.Module, x: Tensor, budget: Budget, rho: float = 1.0, ids: Sequence[int] | None = None
) -> Sampler:
    """Return the paper's sampler: copies of `model`, frozen on the batch plus random noise from the ball.

    Args:
        model: The model to copy; an adaptive one must have the same rho.
        x: The batch that the copies adapt to.
        budget: The ball that the noise is uniform in.
        rho: The weight of the batch's statistics.
        ids: The images' indices in their set, 0..N-1 if not given.
    """
    check_rho(model, rho)
    static = model.model if isinstance(model, adapt.PerBatch | adapt.Stream) else model
    blend_of, estimator = "std", "mean"
    if isinstance(model, adapt.PerBatch):
        blend_of, estimator = model.blend_of, model.estimator
    image_ids = list(range(len(x))) if ids is None else list(ids)

    def sampler(seed: int) -> nn.Module:
        noisy = random_start(x, budget, seed, image_ids)
        return adapt.frozen(static, noisy, rho, blend_of, estimator=estimator)

    return sampler
