"""Adversarial training: the loss at images that an attack makes in each step, and at part of the clean ones.

Idea      adversarial versions of all N images of the batch and k N of them clean, in one pass through one
          set of norm layers: the loss is the mean over all (1 + k) N images
Papers    Madry et al. 2018 (k = 0); "Intriguing properties of adversarial training", section 4 (k from
          0 to 1; Eq. 1 with alpha 1/2 is k = 1)
ALP       adversarial logit pairing (Kannan et al. 2018): plus w times the mean squared difference
          between the logits of an image and of its adversarial version, over the pairs in the batch
Norm      the attack uses running statistics and does not update them; the training pass sets no knob
Cost      the attack's passes, and one forward and backward pass over (1 + k) N images
Changed   clean images are spread evenly over the batch, separately in each process and in each part of an
          accumulated batch; k N is rounded down there. For a mixed label the attack takes the class with the
          larger probability
Beware    with k > 0 and batch norm the network may lose robustness against attacks of many steps: that is
          the finding of the paper, see `Mixture`. ALP can mask gradients (Engstrom et al. 2018).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from trimtab.attacks import PGD, Linf
from trimtab.train.base import Objective, Parts, Passes, Step
from trimtab.types import BadInput, at_least, fraction, method_card


@method_card(__doc__)
@dataclass(frozen=True)
class Adversarial(Objective):
    """Adversarial training: the loss at images that an attack makes in each step, and at clean images.

    Args:
        attack: Makes the adversarial images: any callable (model, x, y) -> x_adv; PGD-7 at 8/255 by default.
        clean: Fraction k of the batch that is also trained on clean, from 0 to 1.
        alpha: Weight of the clean loss, against 1 - alpha of the adversarial loss; if None, all images have
            equal weights.
        alp: Weight of adversarial logit pairing; it needs clean images.
        label_smoothing: Fraction of each label that is spread evenly over all classes.
    """

    attack: Callable[..., Any] = field(default_factory=lambda: PGD(Linf("8/255"), steps=7))
    clean: float = 0.0
    alpha: float | None = None
    alp: float = 0.0
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        fraction(clean=self.clean)
        if self.clean == 0 and (self.alp or self.alpha):
            raise BadInput("alp and alpha need clean images; set clean to a fraction above 0, such as 1")
        check_weights(self.alpha, self.alp)

    def passes(self, batch: int) -> Passes:
        return self.attack_passes().plus(1 + self.clean)

    def run(self, step: Step) -> Parts:
        x_adv = step.adversarial(self.attack)
        clean_rows = evenly_spaced(len(step.x), self.clean).to(step.x.device)
        logits = step.model(torch.cat([step.x[clean_rows], x_adv]))
        z_clean, z_adv = logits.split([len(clean_rows), len(x_adv)])
        parts = {"adv": step.loss(z_adv, step.y, self.label_smoothing)}
        if len(clean_rows):
            parts["clean"] = step.loss(z_clean, step.y[clean_rows], self.label_smoothing)
        if self.alp and len(clean_rows):
            parts["alp"] = pairing(z_clean, z_adv[clean_rows])
        alpha = len(clean_rows) / len(logits) if self.alpha is None or not len(clean_rows) else self.alpha
        return descend(step, parts, alpha, self.alp, z_adv)


def descend(step: Step, parts: dict[str, Tensor], alpha: float, alp: float, logits: Tensor) -> Parts:
    """Add the gradient of alpha clean + (1 - alpha) adv + alp pairing, and return the losses."""
    loss = (1 - alpha) * parts["adv"]
    if "clean" in parts:
        loss = loss + alpha * parts["clean"]
    if "alp" in parts:
        loss = loss + alp * parts["alp"]
    step.backward(loss, True)
    return Parts({"loss": loss, **parts}, logits)


def pairing(z_clean: Tensor, z_adv: Tensor) -> Tensor:
    """Return the mean squared difference of logits over images and classes."""
    return (z_clean - z_adv).square().mean()


def evenly_spaced(n: int, fraction: float) -> Tensor:
    """Return the indices of a fraction of n rows, spaced evenly so that parts of a batch have it as well."""
    counts = (torch.arange(n + 1, dtype=torch.float64) * fraction + 1e-9).floor()
    return (counts.diff() > 0).nonzero().flatten()


def check_weights(alpha: float | None, alp: float) -> None:
    """Raise BadInput if alpha is not between 0 and 1, or the weight of logit pairing is negative."""
    fraction(alpha=alpha or 0.0)
    at_least(0, alp=alp)
