"""Adversarial training: the loss at images that an attack has just made, with any share of clean ones.

Idea      all N images of the batch as adversarial ones, k N of them also as they are, in one pass through
          one set of norm layers: the loss is the mean over all (1 + k) N
Papers    Madry et al. 2018 (k = 0); "Intriguing properties of adversarial training", section 4 (k from
          0 to 1; Eq. 1 with alpha 1/2 is k = 1)
ALP       adversarial logit pairing (Kannan et al. 2018): plus w times the mean squared difference
          between the logits of an image and of its adversarial twin, over the pairs in the batch
Norm      the attack sees running statistics that do not learn; the training pass turns nothing
Cost      the attack's passes, and one forward and backward pass over (1 + k) N images
Changed   clean images are spread evenly over the batch, in each process and in each part of an accumulated
          batch by itself: a share that comes out even there does not depend on their number, another is
          rounded down; the attack on a mixed label takes the class with the larger share
Beware    with k > 0 and batch norm the network may lose robustness against long attacks: that is the
          finding of the paper, see `Mixture`. ALP can mask gradients (Engstrom et al. 2018).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from trimtab.attacks import PGD, Linf
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


@dataclass(frozen=True)
class Adversarial(Objective):
    attack: Callable[..., Any] = field(default_factory=lambda: PGD(Linf("8/255"), steps=7))
    """Makes the images: any callable (model, x, y) -> x_adv."""
    clean: float = 0.0
    """k, the share of the batch that is also trained on as it is, from 0 to 1."""
    alpha: float | None = None
    """Weight of the clean loss against 1 - alpha of the adversarial one; by number of images if not given."""
    alp: float = 0.0
    """Weight of adversarial logit pairing; needs clean images to pair with."""
    label_smoothing: float = 0.0
    """Share of each label spread evenly over all classes."""

    def __post_init__(self) -> None:
        check_smoothing(self.label_smoothing)
        if not 0 <= self.clean <= 1:
            raise BadInput(f"clean is a share between 0 and 1, found {self.clean}")
        if self.clean == 0 and (self.alp or self.alpha):
            raise BadInput("alp and alpha compare with clean images; give clean a share above 0, such as 1")
        check_weights(self.alpha, self.alp)

    def passes(self, batch: int) -> Passes:
        return self.crafting().plus(1 + self.clean)

    def crafting(self) -> Passes:
        return attack_passes(self.attack)

    def run(self, step: Step) -> Parts:
        twins = attacked(self.attack, step)
        kept = spread(len(step.x), self.clean).to(step.x.device)
        logits = step.model(torch.cat([step.x[kept], twins]))
        z_clean, z_adv = logits.split([len(kept), len(twins)])
        parts = {"adv": cross_entropy(z_adv, step.y, self.label_smoothing)}
        if len(kept):
            parts["clean"] = cross_entropy(z_clean, step.y[kept], self.label_smoothing)
        if self.alp and len(kept):
            parts["alp"] = pairing(z_clean, z_adv[kept])
        share = len(kept) / len(logits) if self.alpha is None or not len(kept) else self.alpha
        return descend(step, parts, share, self.alp)


def descend(step: Step, parts: Parts, alpha: float, alp: float) -> Parts:
    """alpha of the clean loss, the rest of the adversarial one, and the pairing."""
    loss = (1 - alpha) * parts["adv"]
    if "clean" in parts:
        loss = loss + alpha * parts["clean"]
    if "alp" in parts:
        loss = loss + alp * parts["alp"]
    step.backward(loss, True)
    return {"loss": loss, **parts}


def pairing(z_clean: Tensor, z_adv: Tensor) -> Tensor:
    """Mean over images and classes of the squared difference; zero if and only if the logits are equal."""
    return (z_clean - z_adv).square().mean()


def spread(n: int, share: float) -> Tensor:
    """Which `share` of n rows, evenly spaced: equal parts of a batch keep equal shares."""
    reached = (torch.arange(n + 1, dtype=torch.float64) * share + 1e-9).floor()
    return (reached.diff() > 0).nonzero().flatten()


def check_weights(alpha: float | None, alp: float) -> None:
    if alpha is not None and not 0 <= alpha <= 1:
        raise BadInput(f"alpha is a weight between 0 and 1, found {alpha}")
    if alp < 0:
        raise BadInput(f"the weight of logit pairing must not be negative, found {alp}")
