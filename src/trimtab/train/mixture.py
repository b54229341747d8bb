"""Mixture BN: clean and adversarial images share all weights but the normalisation layers.

Idea      every norm layer gets a second branch. Adversarial images are crafted on it and trained through
          it; clean images keep "main". Both halves travel in one routed forward pass
Papers    "Intriguing properties of adversarial training", section 4.2; AdvProp (Xie et al. 2020), which
          is the same with a weak attack, to raise clean accuracy
Loss      the mean over all 2N images (Eq. 1 with alpha 1/2), or alpha; ALP pairs logits across branches
Norm      branch = [(main, N), (adv, N)]; the attack runs on the adversarial branch with running
          statistics that do not learn
Cost      the attack's passes, and one forward and backward pass over 2N images
Ablation  `separate` = "affine" or "statistics" splits one half only; later work finds that the affine
          half matters more
Beware    the two branches are two classifiers: main is accurate and not robust, adv is robust and less
          accurate. Without a selector at test time never quote the better half of each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from trimtab import norm
from trimtab.attacks import PGD, Linf
from trimtab.train.adversarial import check_weights, descend, pairing
from trimtab.train.base import (
    Objective,
    Parts,
    Passes,
    Step,
    attack_passes,
    attacked,
    check_smoothing,
    cross_entropy,
)
from trimtab.types import BadInput

HALVES = ("both", "affine", "statistics")


@dataclass(frozen=True)
class Mixture(Objective):
    attack: Callable[..., Any] = field(default_factory=lambda: PGD(Linf("8/255"), steps=7))
    """Makes the images: any callable (model, x, y) -> x_adv."""
    branch: str = "adv"
    """Name of the branch for adversarial images."""
    separate: str = "both"
    """What that branch has of its own: both, affine or statistics."""
    alpha: float = 0.5
    """Weight of the clean loss against 1 - alpha of the adversarial one."""
    alp: float = 0.0
    """Weight of adversarial logit pairing."""
    label_smoothing: float = 0.0
    """Share of each label spread evenly over all classes."""

    def __post_init__(self) -> None:
        check_smoothing(self.label_smoothing)
        if self.separate not in HALVES:
            raise BadInput(f"separate must be one of {', '.join(HALVES)}, found {self.separate!r}")
        check_weights(self.alpha, self.alp)

    def prepare(self, model: nn.Module) -> nn.Module:
        norm.steer(model)
        affine, statistics = self.separate != "statistics", self.separate != "affine"
        return ensure_branch(model, self.branch, affine=affine, statistics=statistics)

    def passes(self, batch: int) -> Passes:
        return self.crafting().plus(2)

    def crafting(self) -> Passes:
        return attack_passes(self.attack)

    def run(self, step: Step) -> Parts:
        require_branch(step.model, self.branch)
        with norm.use(step.model, branch=self.branch):
            twins = attacked(self.attack, step)
        n = len(step.x)
        with norm.use(step.model, branch=[("main", n), (self.branch, n)]):
            z_clean, z_adv = step.model(torch.cat([step.x, twins])).split(n)
            parts = {
                "adv": cross_entropy(z_adv, step.y, self.label_smoothing),
                "clean": cross_entropy(z_clean, step.y, self.label_smoothing),
            }
            if self.alp:
                parts["alp"] = pairing(z_clean, z_adv)
            return descend(step, parts, self.alpha, self.alp)


@dataclass(frozen=True)
class AdvProp(Mixture):
    """Mixture BN in the service of clean accuracy: one small step (Xie et al. 2020)."""

    attack: Callable[..., Any] = field(
        default_factory=lambda: PGD(Linf("1/255"), steps=1, step_size="1/255", targeted=True, clean_start=0.2)
    )


def ensure_branch(model: nn.Module, branch: str, affine: bool = True, statistics: bool = True) -> nn.Module:
    """Add the branch where there is none; one that an earlier training left is trained on."""
    there = {row["layer"]: row for row in norm.plan(model) if row["name"] == branch}
    if not norm.layers(model):
        raise BadInput(f"this model has no batch-norm layer to give a branch {branch!r} to")
    for name, row in there.items():
        if (not row["affine_of"], not row["statistics_of"]) != (affine, statistics):
            raise BadInput(f"{name} has a branch {branch!r} with other halves; name another branch")
    for name, layer in norm.layers(model).items():
        if name not in there:
            norm.add_branch(layer, branch, affine=affine, statistics=statistics)
    return model


def require_branch(model: nn.Module, branch: str) -> None:
    if not any(branch in layer.branch_names for layer in norm.layers(model).values()):
        raise BadInput(
            f"the model has no branch {branch!r}; call objective.prepare(model) before its optimiser is made"
        )
