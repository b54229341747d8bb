"""Expectation over transformation: attack a classifier that is itself drawn at random.

Idea      climb -log(1/m sum_i p_i(y | x)) over m drawn classifiers (the logarithm outside the mean)
Paper     Athalye et al. 2018; against adaptive batch norm as in Nandy et al., appendix E: m copies, each
          adapted to the batch plus a random perturbation from the ball, then frozen
Norm      of each drawn model its own
Cost      m times that of the attack inside
Careful   the copies treat statistics as constants and were adapted to random, not adversarial, noise:
          a weak attack on an adaptive defence. Report `ThroughBatch` and transfer beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from trimtab import adapt, draws
from trimtab.attacks.base import Attack, Outcome, check_call, check_labels, check_rho, unusual
from trimtab.attacks.geometry import random_start
from trimtab.attacks.guard import guard
from trimtab.attacks.pgd import PGD
from trimtab.types import BadInput, Budget

Sampler = Callable[[int], nn.Module]
"""Draws a classifier by a seed."""


@dataclass(frozen=True)
class EOT(Attack):
    attack: PGD = field(default_factory=lambda: PGD(steps=100))
    """The attack that climbs; its loss must be cross-entropy."""
    sampler: Sampler | Sequence[nn.Module] | None = None
    """Draws a classifier by a seed, or is a set of them; None draws from the model it is called with, by
    adapting it to the batch (the paper's adaptive-BN sampler)."""
    m: int = 10
    """How many to draw; a given set is taken whole."""
    rho: float = 1.0
    """With the adaptive-BN sampler: how much of the batch's statistics they take."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "rho", float(self.rho))
        if not isinstance(self.attack, PGD) or self.attack.loss != "ce" or self.attack.targeted:
            raise BadInput(
                "EOT climbs the cross-entropy of the mean probability; give an untargeted PGD with loss ce"
            )
        if self.classifiers < 1:
            raise BadInput(f"EOT needs at least one classifier, found {self.classifiers}")

    @property
    def classifiers(self) -> int:
        """How many there are, given or drawn."""
        return len(self.sampler) if isinstance(self.sampler, Sequence | nn.ModuleList) else self.m

    @property
    def budget(self) -> Budget:  # type: ignore[override]
        return self.attack.budget

    @property
    def joint(self) -> bool:  # type: ignore[override]
        return self.sampler is None  # which adapts to the batch

    @property
    def adaptive(self) -> bool:  # type: ignore[override]
        return self.sampler is None

    def scored(self, coupled: bool) -> str:
        return self.attack.scored(False)  # the classifiers drawn are fixed

    def __str__(self) -> str:
        rest = unusual(self, "attack", "sampler", "m")
        return f"EOT over {self.classifiers} classifiers of {self.attack}{rest}"

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
        if len(x) == 0:
            return Outcome.empty(x)
        sampler = self.sampler
        if sampler is None:
            sampler = adaptive_sampler(model, x, self.budget, self.rho, draws.ids_of(x, ids))
        if isinstance(sampler, Sequence | nn.ModuleList):
            drawn = list(sampler)
        else:
            drawn = [sampler(draws.key(seed, i) >> 1) for i in range(self.m)]
        with guard(drawn[0]):
            check_labels(drawn[0], x, y)
        return self.attack.outcome(MeanProbability(drawn), x, y, seed, ids, judged)


class MeanProbability(nn.Module):
    """Several classifiers as one, whose logits are the logarithm of their mean probability."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)

    def forward(self, x: Tensor) -> Tensor:
        each = torch.stack([model(x).log_softmax(1) for model in self.models])
        return each.logsumexp(0) - torch.tensor(float(len(self.models))).log().to(each)


def adaptive_sampler(
    model: nn.Module, x: Tensor, budget: Budget, rho: float = 1.0, ids: Sequence[int] | None = None
) -> Sampler:
    """The paper's sampler: copies of `model`, frozen on the batch plus a random perturbation in the ball."""
    check_rho(model, rho)
    static = model.model if isinstance(model, adapt.PerBatch | adapt.Stream) else model
    blend_of, estimator = "std", "mean"
    if isinstance(model, adapt.PerBatch):
        blend_of, estimator = model.blend_of, model.estimator
    own = list(range(len(x))) if ids is None else list(ids)

    def sampler(seed: int) -> nn.Module:
        return adapt.frozen(static, random_start(x, budget, seed, own), rho, blend_of, estimator=estimator)

    return sampler
