"""Model-based adversarial training: the two-pass scheme of APART, SAM, APART-SAM and AWP.

    min over phi  of  E [ R(phi) + max over theta of L(theta, phi) ]          (APART paper, Eq. 2)

The attacker chooses theta, a perturbation of the model; the defender trains the weights phi. Two passes:

    1  at theta = 0 one backward pass gives the gradients for theta and for phi
    2  theta takes a step along its gradient; the gradient for phi is computed at that theta

                  attacker moves               defender descends
    SAM           all weights, one l2 ball     the second gradient
    AWP           weights, a ball per layer    the second gradient
    APART         norm statistics, a cube      both gradients, weighted by their numbers of images
    APART-SAM     both                         both gradients, weighted by their numbers of images

Running statistics are updated by the first pass only. `WeightAttack` runs the passes where the attacker moves
weights alone; those of APART are in its own `run`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from trimtab.train.base import Backward, Objective, Parts, Passes, Step, isolated_gradients, keep_statistics


class WeightAttack(Objective):
    """Base class of SAM and AWP: descend the gradient of an inner objective at attacked weights.

    Subclasses are frozen dataclasses with a field `inner`, and say in `ascent` how the weights move.
    """

    inner: Objective
    reads_gradients: ClassVar[bool] = True

    def ascent(self, weights: Sequence[nn.Parameter]) -> list[Tensor | None]:
        """Return by how much each weight moves.

        Args:
            weights: The parameters that train, with the gradient in `.grad`.
        """
        raise NotImplementedError

    def setup(self, model: nn.Module) -> nn.Module:
        return self.inner.setup(model)

    def in_parts(self, parts: int) -> Self:
        return replace(self, inner=self.inner.in_parts(parts))  # type: ignore[type-var]

    def nested(self) -> Iterator[Objective]:
        yield self
        yield from self.inner.nested()

    def passes(self, batch: int) -> Passes:
        return self.inner.passes(batch).doubled_except(self.attack_passes())

    def attack_passes(self) -> Passes:
        return self.inner.attack_passes()

    def run(self, step: Step) -> Parts:
        with isolated_gradients(step.model) as w:
            parts = self.inner.run(replace(step, backward=not_last(step.backward)))  # g at w
            delta = self.ascent(w)
            for p in w:
                p.grad = None
            with moved_weights(w, delta), keep_statistics(step.model):
                defended = self.inner.run(step)  # the gradient at w + delta
        losses = parts | {f"defended_{name}": value for name, value in defended.items()}
        loss_weights = {f"defended_{name}": weight for name, weight in defended.loss_weights.items()}
        return Parts(losses, parts.logits, loss_weights)


def ascent_in_ball(weights: Sequence[nn.Parameter], rho: float) -> list[Tensor | None]:
    """Return SAM's delta = rho g / |g|_2 over all weights, with g from their `.grad`."""
    gradients = [p.grad.detach() for p in weights if p.grad is not None]
    if not gradients:
        return [None] * len(weights)
    size = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in gradients]))
    scale = rho / size.clamp(min=1e-12)
    return [None if p.grad is None else p.grad.detach() * scale for p in weights]


@contextmanager
def moved_weights(weights: Sequence[nn.Parameter], deltas: Sequence[Tensor | None]) -> Iterator[None]:
    """Add deltas to the weights inside; afterwards the weights are restored bit for bit.

    Autocast caches low-precision copies of weights and does not notice the change, so its cache is cleared
    both times.
    """
    pairs = [(p, delta) for p, delta in zip(weights, deltas, strict=True) if delta is not None]
    if not pairs:
        yield
        return
    before = [p.detach().clone() for p, _ in pairs]
    with torch.no_grad():
        torch._foreach_add_([p for p, _ in pairs], [delta for _, delta in pairs])
    torch.clear_autocast_cache()
    try:
        yield
    finally:
        with torch.no_grad():
            for (p, _), value in zip(pairs, before, strict=True):
                p.copy_(value)
        torch.clear_autocast_cache()


def not_last(backward: Backward) -> Backward:
    """Return `backward` with `last` always False: its gradient is read afterwards by the outer objective."""
    return lambda loss, last: backward(loss, False)
