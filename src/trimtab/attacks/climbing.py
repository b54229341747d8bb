"""The loops of PGD: every image takes all steps (`climb`), or leaves once it has fallen (`pursue`).

x <- P(x + a * direction(grad loss(x))),    P the projection to the ball and the pixel box
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from trimtab.attacks.base import Outcome, Victim, wrong
from trimtab.attacks.geometry import direction, project
from trimtab.attacks.losses import Loss, slope
from trimtab.straight import pulled
from trimtab.types import Budget

Array = np.ndarray


def climb(
    victim: Victim,
    start: Tensor,
    goal: Tensor,
    loss: Loss,
    budget: Budget,
    steps: int,
    step: float,
    marks: Sequence[int] = (),
) -> Outcome:
    """The loop of PGD that scores the last iterate: all images take all steps."""
    x, y = start, victim.y
    broken = torch.zeros(len(x), dtype=torch.bool, device=x.device)
    broken_at = torch.full((len(x),), -1, device=x.device)
    wrong_at: dict[int, Tensor] = {}
    for t in range(steps + 1):
        if t < steps:
            z, _, grad = ascent(victim.net, x, goal, loss)
        elif not victim.judged:
            break
        if t == steps or (t in marks and victim.rough):
            with torch.no_grad():
                z = victim.net(x)
        if victim.judged or t in marks:
            broken = wrong(z, y)
        if victim.judged:
            first = broken & (broken_at < 0)
            asked = t == steps or t in marks
            broken_at[first if asked else misclassified(victim, x, y, first)] = t
        if t in marks:
            wrong_at[t] = broken
        if t < steps:
            x = project(x.add_(direction(grad, budget), alpha=step), victim.x, budget)
    return Outcome(x, broken, broken_at, wrong_at)


def pursue(
    victim: Victim, start: Tensor, goal: Tensor, loss: Loss, budget: Budget, steps: int, step: float
) -> Outcome:
    """The loop of PGD that scores any iterate: who is misclassified leaves, and who waits takes the place.

    Each image has an iteration `t` of its own, and all take turns, so that the working batch is full to the
    end. An image that has fallen needs no gradient, which costs two to three looks: whom the last step should
    have felled (`foreseen`) is looked at first, and climbs on only if it stands.
    """
    x, many = start, victim.at_once
    y, target = _on_host(victim.y), _on_host(goal)
    t, broken_at = np.zeros_like(y), np.full_like(y, -1)
    stands = np.zeros(len(y), dtype=bool)  # looked at where it is, and right
    climbers, suspects = np.split(np.arange(len(y)), [len(y) if steps else 0])
    while left := len(climbers) + len(suspects):
        if len(suspects) >= min(many, left) / 2 or not len(climbers):
            now, suspects = suspects[:many], suspects[many:]
            at = torch.as_tensor(now, device=x.device)
            with torch.no_grad():
                fallen = _on_host(wrong(victim.net(x[at]), victim.y[at]))
            broken_at[now[fallen]] = t[now[fallen]]
            now = now[~fallen]
            stands[now] = True
            climbers = np.concatenate([climbers, now[t[now] < steps]])
            continue
        now, climbers = climbers[:many], climbers[many:]
        at = torch.as_tensor(now, device=x.device)
        before = x[at]
        z, steep, grad = ascent(victim.net, before, goal[at], loss)
        after = project(before.add(direction(grad, budget), alpha=step), victim.x[at], budget)
        gain = ((after - before) * grad).sum(tuple(range(1, x.dim())))
        fallen = _on_host(wrong(z, victim.y[at])) & ~stands[now]
        if victim.rough:  # a guess, then
            suspects = np.concatenate([suspects, now[fallen]])
        else:
            broken_at[now[fallen]] = t[now[fallen]]
        falls = foreseen(_on_host(z), _on_host(steep), _on_host(gain), y[now], target[now])
        if fallen.any():
            stay = ~fallen
            now, falls, kept = now[stay], falls[stay], torch.as_tensor(stay, device=x.device)
            at, after = at[kept], after[kept]
        x[at] = after
        t[now] += 1
        stands[now] = False
        ended = t[now] == steps
        doubtful = np.where(ended, victim.judged, falls)
        suspects = np.concatenate([suspects, now[doubtful]])
        climbers = np.concatenate([climbers, now[~doubtful & ~ended]])
    found = torch.as_tensor(broken_at, device=x.device)
    return Outcome(x, found >= 0, found)


def at_the_standing(victim: Victim, before: Outcome, again: Callable[[Victim, Outcome], Outcome]) -> Outcome:
    """One more try at the images that still stand; the others keep what they have."""
    rows = (~before.broken).nonzero()[:, 0]
    if len(rows) == 0:
        return before
    ids = [victim.ids[i] for i in rows.tolist()]
    rest = replace(victim, x=victim.x[rows], y=victim.y[rows], ids=ids)
    found = again(rest, Outcome(before.x[rows], before.broken[rows], before.broken_at[rows]))
    x, broken, broken_at = before.x.clone(), before.broken.clone(), before.broken_at.clone()
    x[rows], broken[rows], broken_at[rows] = found.x, found.broken, found.broken_at
    return Outcome(x, broken, broken_at)


def foreseen(z: Array, slope: Array, gain: Array, y: Array, goal: Array) -> Array:
    """Whose label falls behind another class if the loss gains as much as its gradient promises.

    To first order, and as if only the label and the target moved, or without one the label and the strongest
    other class, apart by equal shares. `slope` is the loss's gradient for the logits z.
    """
    each, others = np.arange(len(z)), z.copy()
    others[each, y] = -np.inf
    other = np.where(goal == y, others.argmax(1), goal)
    with np.errstate(over="ignore", invalid="ignore"):  # of logits without bounds nothing is foreseen
        ahead, steep = (of[each, y] - of[each, other] for of in (z, slope))
        return (gain > ahead * -steep / 2) & (steep < 0)


def _on_host(values: Tensor) -> Array:
    """For bookkeeping, which NumPy does several times faster than torch; it knows no bfloat16."""
    return (values.float() if values.dtype == torch.bfloat16 else values).numpy(force=True)


def misclassified(victim: Victim, x: Tensor, y: Tensor, likely: Tensor) -> Tensor:
    """Which of the images that are likely misclassified are so: a rough pass may err, the model does not."""
    if victim.rough and bool(likely.any()):
        with torch.no_grad():
            likely[likely.clone()] = wrong(victim.net(x[likely]), y[likely])
    return likely


def ascent(net: nn.Module, x: Tensor, goal: Tensor, loss: Loss) -> tuple[Tensor, Tensor, Tensor]:
    """What the network says of x, the loss's gradient for what it says, and that for x."""
    z, back = pulled(net, x)
    steep = slope(loss, z, goal)
    return z, steep, back(steep)


def gradient(value: Tensor, x: Tensor, along: Tensor | None = None) -> Tensor:
    """Of a sum of losses, or of values `along` a direction; zero where the model lets none through."""
    if not value.requires_grad:
        return torch.zeros_like(x)
    (grad,) = torch.autograd.grad(value, x, along, allow_unused=True)
    return torch.zeros_like(x) if grad is None else grad
