"""Attacks on the statistics themselves: shifts of a steered model's normalization layers.

Each is a frozen dataclass, called `(model, x, y, seed=0) -> shifts`; `norm.use(model, shift=shifts)` applies
them. Radii are relative: every delta is in [-eps, eps].

SignStep        eps times the sign of one batch's gradient at zero: APART's attack (Algorithm 1, line 5)
Ascent          several such steps with projection, in all layers or in some
RandomUniform   uniform in [-eps, eps]: the paper's weakest control
RandomSign      eps or -eps, at random
Scaled          multiply the mean, or the std that the layer divides by, by 1 + eps v with random signs v
                (figure 2); for the std that is the shift delta_sigma = 1/(1 + eps v) - 1

Paper     "Adversarially perturbed batch normalization" (APART), figures 1 and 2
Norm      source "batch" in `groups`, update off; the result is a shift
Cost      one forward/backward pass per gradient step; none for random shifts
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trimtab import norm, rng
from trimtab.runtime import check_images, check_labels, guard
from trimtab.types import BadInput, method_card, number, radius, whole

Shifts = dict[str, norm.Shift]


@method_card(__doc__)
@dataclass(frozen=True)
class Ascent:
    """Sign ascent on the loss of a batch, over the shifts of the normalization layers.

    Args:
        eps: Radius of every delta.
        steps: Sign steps.
        step_size: Length of a step; 2.5 eps / steps if not given.
        layers: Names of the layers to shift; all if None.
        source: Which statistics are shifted: "batch" or "running".
        groups: Number of groups of the batch over which its statistics are computed.
    """

    eps: float | str = 0.1
    steps: int = 6
    step_size: float | str | None = None
    layers: tuple[str, ...] | None = None
    source: str | None = "batch"
    groups: int = 1
    version = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "eps", radius(self.eps))
        whole(self.steps, "steps")
        length = None if self.step_size is None else number(self.step_size)
        object.__setattr__(self, "step_size", length)
        if self.steps < 1 or (length is not None and length <= 0):
            raise BadInput(f"an ascent needs steps >= 1 and step_size > 0, found {self.steps} and {length}")

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, seed: int = 0) -> Shifts:
        """Return the shift of each layer; the model is left as it was.

        Args:
            model: A steered classifier that returns logits (N, classes).
            x: Images (N, C, H, W) with pixels in [0, 1].
            y: Labels (N,).
            seed: Not used: the ascent starts at zero.
        """
        check_images(x, y)
        if len(x) == 0:
            raise BadInput("an ascent needs at least one image, found none")
        eps = float(self.eps)
        step = float(self.step_size or 2.5 * eps / self.steps)
        shifts = self._zero_shifts(model)
        with guard(model):
            check_labels(model, x, y)
        with (
            guard(model, running=False),
            norm.use(model, source=self.source, update=False, groups=self.groups),
        ):
            for _ in range(self.steps):
                shifts = {
                    name: _map(lambda d, g: (d + step * g.sign()).clamp(-eps, eps), shifts[name], grad)
                    for name, grad in gradients(model, x, y, shifts).items()
                }
        return shifts

    def _zero_shifts(self, model: nn.Module) -> Shifts:
        """Return a zero shift for each layer to shift."""
        shifts = norm.zero_shifts(model)
        if self.layers is None:
            return shifts
        unknown = [name for name in self.layers if name not in shifts]
        if unknown:
            raise BadInput(f"there is no steered layer {unknown[0]!r}; norm.layers(model) lists them")
        return {name: shifts[name] for name in self.layers}


@method_card(__doc__)
@dataclass(frozen=True)
class SignStep(Ascent):
    """Take one sign step from zero: every delta becomes eps, -eps or 0 (APART's attack).

    Takes the arguments of `Ascent`, with steps=1 by default.
    """

    steps: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps != 1:
            raise BadInput("SignStep is one step; use Ascent for more")


class RandomShifts:
    """Base class of the random shifts; a subclass defines `shift`."""

    version = 1

    def __call__(
        self, model: nn.Module, x: Tensor | None = None, y: Tensor | None = None, seed: int = 0
    ) -> Shifts:
        """Return random shifts of a steered model's layers; only `model` and `seed` are used."""
        shifts: Shifts = {}
        for index, (name, zero) in enumerate(norm.zero_shifts(model).items()):
            pair = torch.stack([d for d in (zero.mu, zero.sigma) if d is not None])
            u = rng.uniform(pair.float(), seed, [0, 1], index).to(pair)  # the same numbers in any precision
            shifts[name] = self.shift(u)
        return shifts

    def shift(self, u: Tensor) -> norm.Shift:
        """Return the shift of a layer.

        Args:
            u: Uniform random numbers in [0, 1), of shape (2, C): for the mean and for the std.
        """
        raise NotImplementedError


@method_card(__doc__)
@dataclass(frozen=True)
class RandomUniform(RandomShifts):
    """Shift the statistics by deltas that are uniform in [-eps, eps].

    Args:
        eps: Radius of every delta.
    """

    eps: float | str = 0.1

    def shift(self, u: Tensor) -> norm.Shift:
        """Return the shift of a layer from uniform random numbers (2, C)."""
        return norm.Shift(*((2 * u - 1) * radius(self.eps)))


@method_card(__doc__)
@dataclass(frozen=True)
class RandomSign(RandomShifts):
    """Shift the statistics by deltas of size eps with random signs.

    Args:
        eps: Radius of every delta.
    """

    eps: float | str = 0.1

    def shift(self, u: Tensor) -> norm.Shift:
        """Return the shift of a layer from uniform random numbers (2, C)."""
        return norm.Shift(*(_signs(u) * radius(self.eps)))


@method_card(__doc__)
@dataclass(frozen=True)
class Scaled(RandomSign):
    """Scale the mean or the std by 1 + eps or 1 - eps, at random per channel.

    Args:
        eps: The relative size of the change, below 1.
        what: The statistic to scale: "mean", or "sigma", the std that the layer divides by.
    """

    what: str = "mean"

    def __post_init__(self) -> None:
        if number(self.eps) >= 1:
            raise BadInput(f"scaling by 1 - eps needs eps below 1, found {self.eps}")
        if self.what not in ("mean", "sigma"):
            raise BadInput(f'what must be "mean" or "sigma", found {self.what!r}')

    def shift(self, u: Tensor) -> norm.Shift:
        """Return the shift of a layer from uniform random numbers (2, C)."""
        mu, sigma = _signs(u) * radius(self.eps)
        return norm.Shift(mu=mu) if self.what == "mean" else norm.Shift(sigma=1 / (1 + sigma) - 1)


def gradients(model: nn.Module, x: Tensor, y: Tensor, at: Shifts) -> Shifts:
    """Return the gradient of the mean cross-entropy with respect to every delta, at the given shifts."""
    deltas = {
        name: _map(lambda d: d.detach().clone().requires_grad_(True), shift) for name, shift in at.items()
    }
    with norm.use(model, shift=deltas), torch.enable_grad():
        loss = F.cross_entropy(model(x), y.long())
        flat = [delta for shift in deltas.values() for delta in (shift.mu, shift.sigma) if delta is not None]
        grads = torch.autograd.grad(loss, flat, allow_unused=True)  # a layer may not run in this mode
    by_delta = {d: torch.zeros_like(d) if g is None else g for d, g in zip(flat, grads, strict=True)}
    return {name: _map(by_delta.__getitem__, shift) for name, shift in deltas.items()}


def _signs(u: Tensor) -> Tensor:
    """Return -1 or 1 with equal probability, from uniform random numbers."""
    return torch.where(u < 0.5, -1.0, 1.0).to(u)


def _map(change: Callable[..., Tensor], *shifts: norm.Shift) -> norm.Shift:
    """Apply a function to the mu of all these shifts of a layer, and to their sigma; None stays None."""
    mus, sigmas = [s.mu for s in shifts], [s.sigma for s in shifts]
    mu, sigma = (None if deltas[0] is None else change(*deltas) for deltas in (mus, sigmas))
    return norm.Shift(mu, sigma)
