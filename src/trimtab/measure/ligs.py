"""Local input-gradient similarity (LIGS): how much the loss gradient rotates within a small step.

Idea      LIGS = E cos(grad_x l(x, y), grad_x l(x + nu, y)), one value per image
Paper     Benz, Zhang and Kweon, "Batch normalization increases adversarial vulnerability and decreases
          adversarial transferability", sections 4 and B.4: nu ~ N(0, .01^2) in pixels, or uniform in +-.01,
          or the FGSM step of that size, or PGD-7 of that size from the image itself (steps of 2.5 size / 7)
Clipping  x + nu is not clipped to [0, 1] under any probe, as in the paper; `clip=True` clips it under all
Norm      running statistics of the branch in use, not updated
Cost      two input gradients (seven more for PGD)
Careful   LIGS near 1 does not mean robust: constant and linear functions have it. A gradient of exactly
          zero has no direction: such images are NaN, and averages skip them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trimtab import rng
from trimtab.attacks.base import Attack, prepare, refuse_stream
from trimtab.attacks.losses import gradient
from trimtab.norm.moments import widest
from trimtab.runtime import check_images, guard, is_misclassified, unwrap
from trimtab.types import number, one_of

PROBES = ("gaussian", "uniform", "fgsm", "pgd")
PGD_STEPS = 7
_PROBE = rng.purpose("ligs")


def ligs(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    probe: str = "gaussian",
    size: float | str = 0.01,
    seed: int = 0,
    ids: Tensor | Sequence[int] | None = None,
    *,
    clip: bool = False,
) -> Tensor:
    """Return cos(grad l(x, y), grad l(x + nu, y)) for each image; the model is left unchanged.

    Args:
        model: Any classifier.
        x: Images (N, C, H, W).
        y: Labels (N,).
        probe: What nu is: "gaussian", "uniform", "fgsm" or "pgd".
        size: The std of the Gaussian, the half width of the uniform, or eps (l_inf), in pixels.
        seed: Seed of the random probes.
        ids: The images' indices in their set.
        clip: Whether x + nu is clipped to [0, 1]; the paper does not clip.
    """
    one_of(PROBES, probe=probe)
    check_images(x, y)
    refuse_stream(model)
    if len(x) == 0:
        return torch.zeros(0, dtype=widest(x.device), device=x.device)
    model = unwrap(model)
    with guard(model):
        net, *_ = prepare(model, x, y)
        here = input_gradient(net, x, y)
        shifted = _probed(net, x, y, here, probe, number(size), seed, rng.ids_of(x, ids), clip)
        there = input_gradient(net, shifted, y)
    return cosine(here, there)


def input_gradient(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the gradient of each image's own cross-entropy; zero where it does not depend on x."""
    x = x.detach().requires_grad_(True)
    with torch.enable_grad():
        return gradient(F.cross_entropy(net(x), y.long(), reduction="sum"), x)


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """Return the cosine per image, in float64 where the device has it; NaN where a gradient is zero."""
    a, b = (grad.flatten(1).to(widest(grad.device)) for grad in (a, b))
    return (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))


def _probed(
    net: nn.Module,
    x: Tensor,
    y: Tensor,
    gradient: Tensor,
    probe: str,
    size: float,
    seed: int,
    ids: Sequence[int],
    clip: bool,
) -> Tensor:
    """Return the image at which the second gradient is computed; `gradient` is the first."""

    def clipped(x: Tensor) -> Tensor:
        return x.clamp(0, 1) if clip else x

    if probe == "gaussian":
        return clipped(x + size * rng.normal(x, seed, ids, _PROBE))
    if probe == "uniform":
        return clipped(x + size * (2 * rng.uniform(x, seed, ids, _PROBE) - 1))
    if probe == "fgsm":
        return clipped(x + size * gradient.sign())
    shifted = x
    for t in range(PGD_STEPS):
        ascent = gradient if t == 0 else input_gradient(net, shifted, y)
        shifted = shifted + 2.5 * size / PGD_STEPS * ascent.sign()
        shifted = clipped(torch.clamp(shifted, x - size, x + size))
    return shifted


@dataclass(frozen=True)
class Average:
    """A mean that is accumulated in parts and merged exactly; non-finite values are counted separately."""

    total: float = 0.0
    """Sum of the finite values."""
    count: int = 0
    """Number of finite values."""
    left_out: int = 0
    """Number of non-finite values."""

    @classmethod
    def of(cls, values: Tensor) -> Average:
        """Average the finite values of a tensor."""
        finite = values[values.isfinite()]
        return cls(float(finite.to(widest(finite.device)).sum()), len(finite), len(values) - len(finite))

    def __add__(self, other: Average) -> Average:
        return Average(self.total + other.total, self.count + other.count, self.left_out + other.left_out)

    @property
    def mean(self) -> float:
        """The mean of the finite values; NaN without any."""
        return self.total / self.count if self.count else float("nan")


def usefulness(
    images: Any, attack: Attack | None = None, batch_size: int = 256, seed: int = 0
) -> Callable[[Any], dict[str, float] | None]:
    """Return a training callback that measures accuracy and LIGS on `images` after every epoch.

    Args:
        images: An image set.
        attack: If given, robust accuracy is measured, too.
        batch_size: Images per batch.
        seed: Seed of the attack and of the LIGS probe.
    """

    def measure(event: Any) -> dict[str, float] | None:
        if event.kind != "epoch":
            return None
        model = event.model
        correct = robust = n = 0
        similarity = Average()
        for batch in images.batches(batch_size):
            x, y, ids = batch.to_model(model)
            with guard(model), torch.no_grad():
                correct += int((~is_misclassified(model(x), y)).sum())
            similarity += Average.of(ligs(model, x, y, seed=seed, ids=ids))
            if attack is not None:
                robust += int((~attack.outcome(model, x, y, seed, ids).success).sum())
            n += len(y)
        numbers = {"usefulness": correct / n, "ligs": similarity.mean}
        return numbers if attack is None else numbers | {"robust usefulness": robust / n}

    return measure
