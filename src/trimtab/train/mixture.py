"""Mixture BN: clean and adversarial images share all weights but the normalization layers.

Idea      every norm layer gets a second branch. Adversarial images are made and trained with it; clean
          images use "main". Both go through the network in one routed forward pass
Papers    "Intriguing properties of adversarial training", section 4.2; AdvProp (Xie et al. 2020), which
          is the same with a weak attack, to improve clean accuracy
Loss      the mean over all 2N images (Eq. 1 with alpha 1/2), or alpha; ALP pairs logits across branches
Norm      branch = [(main, N), (adv, N)]; the attack uses the adversarial branch with running statistics
          and does not update them
Cost      the attack's passes, and one forward and backward pass over 2N images
Ablation  `separate` = "affine" or "statistics" separates only one of the two; later work finds that the
          affine parameters matter more
Beware    the two branches are two classifiers: main is accurate and not robust, adv is robust and less
          accurate. Unless branches are selected at test time, do not report the better number of each.
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
from trimtab.train.base import Objective, Parts, Passes, Step
from trimtab.types import BadInput, method_card, one_of

HALVES = ("both", "affine", "statistics")


@method_card(__doc__)
@dataclass(frozen=True)
class Mixture(Objective):
    """Mixture BN: clean and adversarial images share all weights, but have separate norm branches.

    Args:
        attack: Makes the adversarial images: any callable (model, x, y) -> x_adv; PGD-7 at 8/255 by default.
        branch: Name of the branch for adversarial images.
        separate: What the branch does not share with "main": "both", its "affine" parameters, or its
            "statistics".
        alpha: Weight of the clean loss, against 1 - alpha of the adversarial loss.
        alp: Weight of adversarial logit pairing.
        label_smoothing: Fraction of each label that is spread evenly over all classes.
    """

    attack: Callable[..., Any] = field(default_factory=lambda: PGD(Linf("8/255"), steps=7))
    branch: str = "adv"
    separate: str = "both"
    alpha: float = 0.5
    alp: float = 0.0
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(HALVES, separate=self.separate)
        check_weights(self.alpha, self.alp)

    def setup(self, model: nn.Module) -> nn.Module:
        norm.steer(model)
        affine, statistics = self.separate != "statistics", self.separate != "affine"
        return ensure_branch(model, self.branch, affine=affine, statistics=statistics)

    def passes(self, batch: int) -> Passes:
        return self.attack_passes().plus(2)

    def run(self, step: Step) -> Parts:
        require_branch(step.model, self.branch)
        with norm.use(step.model, branch=self.branch):
            x_adv = step.adversarial(self.attack)
        n = len(step.x)
        with norm.use(step.model, branch=[("main", n), (self.branch, n)]):
            z_clean, z_adv = step.model(torch.cat([step.x, x_adv])).split(n)
            parts = {
                "adv": step.loss(z_adv, step.y, self.label_smoothing),
                "clean": step.loss(z_clean, step.y, self.label_smoothing),
            }
            if self.alp:
                parts["alp"] = pairing(z_clean, z_adv)
            return descend(step, parts, self.alpha, self.alp, z_clean)


@method_card(__doc__)
@dataclass(frozen=True)
class AdvProp(Mixture):
    """AdvProp: Mixture BN with a weak attack, to improve clean accuracy (Xie et al. 2020).

    Args:
        attack: Makes the adversarial images: any callable (model, x, y) -> x_adv; by default one
            targeted step of 1/255, with a clean start for 20 % of the images.
        branch: Name of the branch for adversarial images.
        separate: What the branch does not share with "main": "both", its "affine" parameters, or its
            "statistics".
        alpha: Weight of the clean loss, against 1 - alpha of the adversarial loss.
        alp: Weight of adversarial logit pairing.
        label_smoothing: Fraction of each label that is spread evenly over all classes.
    """

    attack: Callable[..., Any] = field(
        default_factory=lambda: PGD(Linf("1/255"), steps=1, step_size="1/255", targeted=True, clean_start=0.2)
    )


def ensure_branch(model: nn.Module, branch: str, affine: bool = True, statistics: bool = True) -> nn.Module:
    """Add the branch to layers that lack it; a branch from an earlier training is trained further."""
    present = {row["layer"]: row for row in norm.branch_spec(model) if row["name"] == branch}
    if not norm.layers(model):
        raise BadInput(f"this model has no batch-norm layer to give a branch {branch!r} to")
    for name, row in present.items():
        if (not row["affine_of"], not row["statistics_of"]) != (affine, statistics):
            raise BadInput(f"{name} has a branch {branch!r} that separates other parts; name another branch")
    for name, layer in norm.layers(model).items():
        if name not in present:
            norm.add_branch(layer, branch, affine=affine, statistics=statistics)
    return model


def require_branch(model: nn.Module, branch: str) -> None:
    """Raise BadInput if no layer of the model has the branch."""
    if not any(branch in layer.branch_names for layer in norm.layers(model).values()):
        raise BadInput(
            f"the model has no branch {branch!r}; call objective.prepare(model) before its optimizer is made"
        )
