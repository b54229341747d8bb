"""Model-based adversarial training: the scheme that APART, SAM and APART-SAM are instances of.

    min over phi  of  E [ R(phi) + max over theta of L(theta, phi) ]          (APART paper, Eq. 2)

The attacker owns theta, which perturbs the model itself; the defender owns the weights phi. Two passes:

    1  at rest (theta = 0): one backward pass gives the gradients for both players
    2  every attacker moves as the first gradient says; the gradient for phi *there* is the defence

                  attacker moves               the defender descends
    SAM           all weights, l2 ball         the second gradient
    APART         norm statistics, a cube      both, weighted by their numbers of images
    APART-SAM     both of them                 both, weighted

Running statistics learn from the first pass only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager

import torch
from torch import Tensor, nn

from trimtab.train.base import Backward, Parts, own_gradients, quiet

Attacker = Callable[[Sequence[nn.Parameter]], AbstractContextManager[None]]
"""Reads the first pass's gradients when called; its move lasts as long as the context it returns."""


def play(
    model: nn.Module,
    first: Callable[[], Parts],
    attackers: Sequence[Attacker],
    second: Callable[[], Parts],
    keep_first: bool,
) -> Parts:
    """Run both passes; `.grad` gains the second gradient, and the first if it is kept."""
    with own_gradients(model) as trained, ExitStack() as moves:
        parts = first()
        for move in [attacker(trained) for attacker in attackers]:  # all read before any moves
            moves.enter_context(move)
        if not keep_first:
            for p in trained:
                p.grad = None
        moves.enter_context(quiet(model))
        defended = {f"defended_{name}": value for name, value in second().items()}
        return parts | defended


def climb_weights(rho: float) -> Attacker:
    """SAM's attacker: delta = rho g / |g|_2 over all weights, the steepest ascent in an l2 ball."""

    def attack(trained: Sequence[nn.Parameter]) -> AbstractContextManager[None]:
        moved = [p for p in trained if p.grad is not None]
        grads = [p.grad.detach() for p in moved if p.grad is not None]
        size = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in grads]))
        scale = rho / size.clamp(min=1e-12)
        return _added(moved, [g * scale for g in grads])

    return attack


@contextmanager
def _added(parameters: Sequence[nn.Parameter], deltas: Sequence[Tensor]) -> Iterator[None]:
    """The parameters plus deltas; afterwards their own values again, bit for bit.

    Autocast keeps narrow copies of weights and does not see them move: it must forget them both times.
    """
    before = [p.detach().clone() for p in parameters]
    with torch.no_grad():
        torch._foreach_add_(list(parameters), list(deltas))
    torch.clear_autocast_cache()
    try:
        yield
    finally:
        with torch.no_grad():
            for p, value in zip(parameters, before, strict=True):
                p.copy_(value)
        torch.clear_autocast_cache()


def not_last(backward: Backward) -> Backward:
    """A backward pass whose gradient will be read, whatever the objective inside takes it for."""
    return lambda loss, last: backward(loss, False)
