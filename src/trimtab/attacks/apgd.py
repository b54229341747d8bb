"""Auto-PGD: projected gradient ascent that sets its own step size.

Idea      start with step 2 eps and momentum; at checkpoints halve the step of an image whose loss no
          longer climbs, and let it go on from its best point so far
Paper     Croce and Hein 2020, "Reliable evaluation of adversarial robustness", algorithm 1
          (alpha .75, rho .75, checkpoints from p = 0, .22, ...)
Norm      running statistics of the branch in use, not learning
Cost      steps + 1 forward/backward passes; images that break leave the batch at once ("any" iterate)
Targeted  the targeted variant goes through the classes ranked next after the label, one run each, on
          the images that still stand
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from trimtab import draws
from trimtab.attacks.base import Attack, Outcome, Victim, unusual, wrong
from trimtab.attacks.climbing import gradient
from trimtab.attacks.geometry import direction, project, random_start
from trimtab.attacks.losses import dlr_targeted, loss_named
from trimtab.types import BadInput, Budget, Linf, whole

_ALPHA, _RHO = 0.75, 0.75

Ascended = Callable[[Tensor, Tensor], Tensor]
"""(logits, rows) -> one loss per image; `rows` are the images' places in the victim's batch."""


@dataclass(frozen=True)
class APGD(Attack):
    budget: Budget = field(default_factory=lambda: Linf("8/255"))
    """Where the images may go: Linf(eps) or L2(eps), in pixels."""
    steps: int = 100
    """Gradient steps of one run."""
    loss: str = "ce"
    """What to climb: ce, cw (margin) or dlr."""
    restarts: int = 1
    """Independent runs, each on the images that still stand."""
    version = 2

    def __post_init__(self) -> None:
        _at_least_one(steps=self.steps, restarts=self.restarts)
        loss_named(self.loss, False)

    def __str__(self) -> str:
        rest = unusual(self, "budget", "steps", "loss")
        return f"APGD-{self.steps} ({self.loss}), {self.budget}, adaptive step, any iterate{rest}"

    def scored(self, coupled: bool) -> str:
        return "best iterate" if coupled else "any iterate"

    def run(self, victim: Victim) -> Outcome:
        loss = loss_named(self.loss, False)
        found = standing(victim)
        for restart in range(self.restarts):
            found = ascend(
                victim, found, lambda z, rows: loss(z, victim.y[rows]), self.budget, self.steps, restart
            )
        return found


@dataclass(frozen=True)
class TargetedAPGD(Attack):
    budget: Budget = field(default_factory=lambda: Linf("8/255"))
    """Where the images may go: Linf(eps) or L2(eps), in pixels."""
    steps: int = 100
    """Gradient steps for each target."""
    targets: int = 9
    """How many classes to try, most likely first; at most all others."""
    version = 2

    def __post_init__(self) -> None:
        _at_least_one(steps=self.steps, targets=self.targets)

    def __str__(self) -> str:
        rest = unusual(self, "budget", "steps", "targets")
        return f"targeted APGD-{self.steps} (dlr, {self.targets} targets), {self.budget}, any iterate{rest}"

    def scored(self, coupled: bool) -> str:
        return "best iterate" if coupled else "any iterate"

    def run(self, victim: Victim) -> Outcome:
        with torch.no_grad():
            ranked = (
                victim.net(victim.x).scatter(1, victim.y[:, None], -torch.inf).argsort(1, descending=True)
            )
        found = standing(victim)
        classes = ranked.shape[1]
        for rank in range(min(self.targets, classes - 1)):
            target = ranked[:, rank]

            def towards(z: Tensor, rows: Tensor, target: Tensor = target) -> Tensor:
                y, t = victim.y[rows], target[rows]
                if classes < 4:  # DLR needs four logits to scale by
                    return z.gather(1, t[:, None]).squeeze(1) - z.gather(1, y[:, None]).squeeze(1)
                return dlr_targeted(z, y, t)

            found = ascend(victim, found, towards, self.budget, self.steps, 16 + rank)
        return found


def standing(victim: Victim) -> Outcome:
    """Before any attack: the clean images, broken where the classifier errs already."""
    with torch.no_grad():
        broken = wrong(victim.net(victim.x), victim.y)
    return Outcome(victim.x.clone(), broken, torch.where(broken, 0, -1))


def ascend(victim: Victim, before: Outcome, loss: Ascended, budget: Budget, steps: int, draw: int) -> Outcome:
    """One run of Auto-PGD on the images that still stand, from a random start in the ball."""
    rows = (~before.broken).nonzero().squeeze(1)
    if victim.coupled:
        rows = torch.arange(len(before.x), device=before.x.device)
    if len(rows) == 0:
        return before
    out, broken, broken_at = before.x.clone(), before.broken.clone(), before.broken_at.clone()
    ids = [victim.ids[i] for i in rows.tolist()]
    start = random_start(victim.x[rows], budget, victim.seed, ids, draws.purpose("apgd start", draw))

    s = _State(victim, rows, start, loss, 2.0 * budget.radius)
    checkpoints = _checkpoints(steps)
    for t in range(steps + 1):
        if t:
            s.move(budget, first=t == 1)
            s.evaluate(last=t == steps)
        if victim.coupled:  # the batch counts as a whole: the iterate at which most are misclassified
            if int(s.wrong.sum()) > int(broken.sum()):
                out, broken, broken_at = s.x.clone(), s.wrong.clone(), torch.where(s.wrong, t, -1)
        elif bool(s.wrong.any()):
            leaving = s.rows[s.wrong]
            out[leaving], broken[leaving], broken_at[leaving] = s.x[s.wrong], True, t
            s.keep(~s.wrong)
            if len(s.rows) == 0:
                break
        if t in checkpoints:
            s.adjust(since=t - checkpoints[t])
    if not victim.coupled:
        out[s.rows] = s.best_x
    return Outcome(out, broken, broken_at)


class _State:
    """What Auto-PGD carries from step to step, one row per image that still stands."""

    def __init__(self, victim: Victim, rows: Tensor, start: Tensor, loss: Ascended, step: float) -> None:
        self.victim, self.loss, self.rows = victim, loss, rows
        self.centre, self.x, self.previous = victim.x[rows], start, start
        n = len(rows)
        self.step = torch.full((n, *[1] * (start.dim() - 1)), step, dtype=start.dtype, device=start.device)
        self.value = self.grad = self.wrong = torch.empty(0)
        self.best_value = torch.full((n,), -torch.inf, dtype=start.dtype, device=start.device)
        self.best_x, self.best_grad = start, torch.zeros_like(start)
        self.climbs = torch.zeros(n, device=start.device)
        self.reduced = torch.ones(n, dtype=torch.bool, device=start.device)
        self.best_at_check = self.best_value.clone()
        self.evaluate()

    def evaluate(self, last: bool = False) -> None:
        """Loss and gradient at x; remember the best point and count climbs."""
        x = self.x.detach().requires_grad_(not last)
        with torch.set_grad_enabled(not last):
            z = self.victim.net(x)
            value = self.loss(z, self.rows)
        self.grad = torch.zeros_like(x) if last else gradient(value.sum(), x)
        self.x, value = x.detach(), value.detach()
        self.wrong = wrong(z.detach(), self.victim.y[self.rows])
        if len(self.value) == len(value):
            self.climbs += value > self.value
        self.value = value
        better = value > self.best_value
        column = better.view(self.step.shape)
        self.best_value = torch.where(better, value, self.best_value)
        self.best_x = torch.where(column, self.x, self.best_x)
        self.best_grad = torch.where(column, self.grad, self.best_grad)

    def move(self, budget: Budget, first: bool) -> None:
        """A projected step of this image's own length, with momentum."""
        stepped = project(self.x + self.step * direction(self.grad, budget), self.centre, budget)
        alpha = 1.0 if first else _ALPHA
        mixed = self.x + alpha * (stepped - self.x) + (1 - alpha) * (self.x - self.previous)
        self.previous, self.x = self.x, project(mixed, self.centre, budget)

    def adjust(self, since: int) -> None:
        """Halve the step where the loss oscillates or the best has stalled, and go back to the best point."""
        oscillates = self.climbs <= _RHO * since
        stalled = ~self.reduced & (self.best_at_check >= self.best_value)
        self.reduced = oscillates | stalled
        column = self.reduced.view(self.step.shape)
        self.step = torch.where(column, self.step / 2, self.step)
        self.x = torch.where(column, self.best_x, self.x)
        self.grad = torch.where(column, self.best_grad, self.grad)
        self.value = torch.where(self.reduced, self.best_value, self.value)
        self.best_at_check = self.best_value.clone()
        self.climbs.zero_()

    def keep(self, rows: Tensor) -> None:
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(self, name, value[rows])


def _checkpoints(steps: int) -> dict[int, int]:
    """Each checkpoint of a run, with the one before it."""
    before, share, gap = 0, 0.22, 0.22
    found = {}
    while (at := math.ceil(share * steps)) < steps:
        if at > before:
            found[at] = before
            before = at
        gap = max(gap - 0.03, 0.06)
        share += gap
    return found


def _at_least_one(**counts: int) -> None:
    for name, count in counts.items():
        if whole(count, name) < 1:
            raise BadInput(f"Auto-PGD needs at least one of its {name}, found {name}={count}")
