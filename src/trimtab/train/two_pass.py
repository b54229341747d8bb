"""Model-based adversarial training: the two-pass scheme of APART, SAM and APART-SAM.

    min over phi  of  E [ R(phi) + max over theta of L(theta, phi) ]          (APART paper, Eq. 2)

The attacker chooses theta, a perturbation of the model; the defender trains the weights phi. Two passes:

    1  at theta = 0 one backward pass gives the gradients for theta and for phi
    2  theta takes a step along its gradient; the gradient for phi is computed at that theta

                  attacker moves               defender descends
    SAM           all weights, l2 ball         the second gradient
    APART         norm statistics, a cube      both gradients, weighted by their numbers of images
    APART-SAM     both                         both gradients, weighted by their numbers of images

Running statistics are updated by the first pass only. The passes are in the `run` of each method.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from trimtab.train.base import Backward


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
