"""Attacks on the statistics themselves: shifts of a steered model's normalisation layers.

Each is a frozen dataclass, called `(model, x, y, seed=0) -> shifts`, to be put into force with
`norm.use(model, shift=shifts)`. Radii are relative: every delta lies in [-eps, eps].

SignStep        eps times the sign of the gradient at zero, of one batch: APART's attack (Algorithm 1, line 5)
Ascent          several such steps with projection, at all layers or at those named
RandomUniform   uniform in the cube: the paper's weakest control
RandomSign      random corners of the cube
Scaled          the mean or the deviation that *divides*, times 1 + eps v with random signs v (figure 2):
                as a shift, delta_sigma = 1/(1 + eps v) - 1

Paper     "Adversarially perturbed batch normalization" (APART), figures 1 and 2
Norm      source "batch" in `groups`, update off, shift as found
Cost      one forward/backward pass per gradient step; the random ones cost nothing
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trimtab import draws, norm
from trimtab.attacks.base import check_images, check_labels
from trimtab.attacks.guard import guard
from trimtab.types import BadInput, number, radius, whole

Shifts = dict[str, norm.Shift]


@dataclass(frozen=True)
class Ascent:
    eps: float | str = 0.1
    """Radius of every delta."""
    steps: int = 6
    """Sign steps."""
    step_size: float | str | None = None
    """Length of a step; 2.5 eps / steps if not given."""
    layers: tuple[str, ...] | None = None
    """Which layers to shift, by name; all if None."""
    source: str | None = "batch"
    """Which statistics are shifted: the batch's, or the running ones."""
    groups: int = 1
    """Groups that batch statistics are taken over."""
    version = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "eps", radius(self.eps))
        whole(self.steps, "steps")
        length = None if self.step_size is None else number(self.step_size)
        object.__setattr__(self, "step_size", length)
        if self.steps < 1 or (length is not None and length <= 0):
            raise BadInput(f"an ascent needs steps, longer than 0, found {self.steps} of {length}")

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, seed: int = 0) -> Shifts:
        check_images(x, y)
        if len(x) == 0:
            raise BadInput("an ascent needs images to climb on, found none")
        r = float(self.eps)
        step = float(self.step_size or 2.5 * r / self.steps)
        found = norm.zero_shifts(model)
        if self.layers is not None:
            unknown = [name for name in self.layers if name not in found]
            if unknown:
                raise BadInput(f"there is no steered layer {unknown[0]!r}; norm.layers(model) lists them")
            found = {name: found[name] for name in self.layers}
        with guard(model):
            check_labels(model, x, y)
        with (
            guard(model, running=False),
            norm.use(model, source=self.source, update=False, groups=self.groups),
        ):
            for _ in range(self.steps):
                found = {
                    name: _map(lambda d, g: (d + step * g.sign()).clamp(-r, r), found[name], grad)
                    for name, grad in gradients(model, x, y, found).items()
                }
        return found


@dataclass(frozen=True)
class SignStep(Ascent):
    """One step from zero to a corner of the cube."""

    steps: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps != 1:
            raise BadInput("SignStep is one step; take Ascent for more")


@dataclass(frozen=True)
class RandomUniform:
    eps: float | str = 0.1
    """Radius of every delta."""
    version = 1

    def __call__(
        self, model: nn.Module, x: Tensor | None = None, y: Tensor | None = None, seed: int = 0
    ) -> Shifts:
        r = radius(self.eps)
        return _random(model, seed, lambda u: (2 * u - 1) * r)


@dataclass(frozen=True)
class RandomSign:
    eps: float | str = 0.1
    """Radius of every delta."""
    version = 1

    def __call__(
        self, model: nn.Module, x: Tensor | None = None, y: Tensor | None = None, seed: int = 0
    ) -> Shifts:
        r = radius(self.eps)
        return _random(model, seed, lambda u: torch.where(u < 0.5, -1.0, 1.0).to(u) * r)


@dataclass(frozen=True)
class Scaled:
    eps: float | str = 0.1
    """How far the statistic is scaled: by 1 + eps or 1 - eps, at random per channel."""
    what: str = "mean"
    """"mean", or "sigma", the deviation that divides."""
    version = 1

    def __call__(
        self, model: nn.Module, x: Tensor | None = None, y: Tensor | None = None, seed: int = 0
    ) -> Shifts:
        if number(self.eps) >= 1:
            raise BadInput(f"scaling by 1 - eps needs eps below 1, found {self.eps}")
        corners = RandomSign(self.eps)(model, seed=seed)
        if self.what == "mean":
            return {name: norm.Shift(mu=shift.mu) for name, shift in corners.items()}
        if self.what != "sigma":
            raise BadInput(f'what is scaled is "mean" or "sigma", found {self.what!r}')
        return {
            name: norm.Shift(sigma=1 / (1 + shift.sigma) - 1)
            for name, shift in corners.items()
            if shift.sigma is not None
        }


def gradients(model: nn.Module, x: Tensor, y: Tensor, at: Shifts) -> Shifts:
    """The gradient of the mean cross-entropy with respect to every delta, at the shifts given."""
    deltas = {
        name: _map(lambda d: d.detach().clone().requires_grad_(True), shift) for name, shift in at.items()
    }
    with norm.use(model, shift=deltas), torch.enable_grad():
        loss = F.cross_entropy(model(x), y.long())
        flat = [delta for shift in deltas.values() for delta in (shift.mu, shift.sigma) if delta is not None]
        found = torch.autograd.grad(loss, flat, allow_unused=True)  # a layer may not run in this mode
        grads = iter(torch.zeros_like(d) if g is None else g for d, g in zip(flat, found, strict=True))
    return {name: _map(lambda _: next(grads), shift) for name, shift in deltas.items()}


def _map(change: Callable[..., Tensor], *shifts: norm.Shift) -> norm.Shift:
    """Apply a function to the deltas of one layer (of several shifts in step)."""
    mu, sigma = (
        None if part[0] is None else change(*part)
        for part in ([s.mu for s in shifts], [s.sigma for s in shifts])
    )
    return norm.Shift(mu, sigma)


def _random(model: nn.Module, seed: int, shape: Callable[[Tensor], Tensor]) -> Shifts:
    found: Shifts = {}
    for index, (name, zero) in enumerate(norm.zero_shifts(model).items()):
        pair = torch.stack([d for d in (zero.mu, zero.sigma) if d is not None])
        mu, sigma = shape(draws.uniform(pair.float(), seed, [0, 1], index).to(pair))  # alike in any precision
        found[name] = norm.Shift(mu, sigma)
    return found
