"""Local input-gradient similarity: does the loss slope the same way one small step aside?

Idea      LIGS = E cos(grad_x l(x, y), grad_x l(x + nu, y)), one value per image
Paper     Benz, Zhang and Kweon, "Batch normalisation increases adversarial vulnerability and decreases
          adversarial transferability", section 4: nu ~ N(0, .01^2), in pixels, not clipped; or uniform in
          +-.01, or the FGSM or PGD-7 step of that size
Norm      running statistics of the branch in use, not learning
Cost      two input gradients (one more for FGSM, seven for PGD)
Careful   LIGS near 1 does not mean robust: constant and linear functions have it. A gradient of exactly
          zero has no direction: such images are NaN, and averages leave them out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trimtab import draws
from trimtab.attacks import FGSM, PGD, Linf
from trimtab.attacks.base import Attack, check_images, ready, wrong
from trimtab.attacks.climbing import gradient
from trimtab.attacks.guard import bare, guard, refuse_stream
from trimtab.norm.moments import widest
from trimtab.types import BadInput, number

PROBES = ("gaussian", "uniform", "fgsm", "pgd")
_PROBE = draws.purpose("ligs")


def ligs(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    probe: str = "gaussian",
    size: float | str = 0.01,
    seed: int = 0,
    ids: Tensor | Sequence[int] | None = None,
) -> Tensor:
    """cos(grad l(x, y), grad l(x + nu, y)) for each image; the model is left as it was."""
    check_images(x, y)
    refuse_stream(model)
    if len(x) == 0:
        return torch.zeros(0, dtype=widest(x.device), device=x.device)
    model = bare(model)
    step = _step(model, x, y, probe, number(size), seed, draws.ids_of(x, ids))
    with guard(model):
        net, *_ = ready(model, x, y)
        here, there = input_gradient(net, x, y), input_gradient(net, x + step, y)
    return cosine(here, there)


def input_gradient(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The gradient of each image's own cross-entropy; zero where the network lets none through."""
    x = x.detach().requires_grad_(True)
    with torch.enable_grad():
        return gradient(F.cross_entropy(net(x), y.long(), reduction="sum"), x)


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """Of each image, in float64 where there is one; NaN where one of them is zero."""
    a, b = (one.flatten(1).to(widest(one.device)) for one in (a, b))
    return (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))


def _step(
    model: nn.Module, x: Tensor, y: Tensor, probe: str, size: float, seed: int, ids: Sequence[int]
) -> Tensor:
    if probe == "gaussian":
        return size * draws.normal(x, seed, ids, _PROBE)
    if probe == "uniform":
        return size * (2 * draws.uniform(x, seed, ids, _PROBE) - 1)
    if probe == "fgsm":
        return FGSM(Linf(size))(model, x, y, seed, ids) - x
    if probe == "pgd":
        return PGD(Linf(size), steps=7)(model, x, y, seed, ids) - x
    raise BadInput(f"there is no probe {probe!r}; take one of {', '.join(PROBES)}")


@dataclass(frozen=True)
class Average:
    """A mean that can be taken in pieces and merged exactly; values that are not finite are counted apart."""

    total: float = 0.0
    count: int = 0
    left_out: int = 0

    @classmethod
    def of(cls, values: Tensor) -> Average:
        finite = values[values.isfinite()]
        return cls(float(finite.to(widest(finite.device)).sum()), len(finite), len(values) - len(finite))

    def __add__(self, other: Average) -> Average:
        return Average(self.total + other.total, self.count + other.count, self.left_out + other.left_out)

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else float("nan")


def usefulness(
    images: Any, attack: Attack | None = None, batch_size: int = 256, seed: int = 0
) -> Callable[[Any], dict[str, float] | None]:
    """A training callback: accuracy, LIGS and robust accuracy of the model after every epoch.

    Usefulness, robustness and robust usefulness of what was learnt so far, on `images`, a set of ours.
    """

    def told(event: Any) -> dict[str, float] | None:
        if event.kind != "epoch":
            return None
        model = event.model
        right = stands = n = 0
        similarity = Average()
        for batch in images.batches(batch_size):
            x, y, ids = batch.beside(model)
            with guard(model), torch.no_grad():
                right += int((~wrong(model(x), y)).sum())
            similarity += Average.of(ligs(model, x, y, seed=seed, ids=ids))
            if attack is not None:
                stands += int((~attack.outcome(model, x, y, seed, ids).broken).sum())
            n += len(y)
        found = {"usefulness": right / n, "ligs": similarity.mean}
        return found if attack is None else found | {"robust usefulness": stands / n}

    return told
