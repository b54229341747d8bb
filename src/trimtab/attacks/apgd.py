"""Auto-PGD: projected gradient ascent that sets its own step size.

Idea      start with step 2 eps and momentum; at checkpoints halve the step of an image whose loss no
          longer increases, and continue from its best point so far
Paper     Croce and Hein 2020, "Reliable evaluation of adversarial robustness", algorithm 1
          (alpha .75, rho .75, checkpoints from p = 0, .22, ...)
Norm      running statistics of the active branch, not updated
Cost      steps + 1 forward/backward passes; misclassified images leave the batch at once
Targeted  the targeted variant tries the classes ranked next after the label, one run each, on the images
          that are still classified correctly
Random    a model whose predictions are random is attacked by the mean gradient of `samples` passes. No image
          leaves early, as a lucky sample is no success: the point of largest mean loss is judged once, by the
          mean logits of as many new passes
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from trimtab import rng
from trimtab.attacks.base import Attack, AttackTask, Outcome, non_default
from trimtab.attacks.geometry import direction, project, random_start
from trimtab.attacks.losses import dlr_targeted, gradient, loss_named
from trimtab.runtime import is_misclassified
from trimtab.types import BadInput, Budget, Linf, method_card, whole

_ALPHA, _RHO = 0.75, 0.75

RowLoss = Callable[[Tensor, Tensor], Tensor]
"""(logits, rows) -> one loss per image; `rows` are the images' indices in the task's batch."""


@method_card(__doc__)
@dataclass(frozen=True)
class APGD(Attack):
    """Auto-PGD: projected gradient ascent with momentum, whose step size adapts to each image's progress.

    Args:
        budget: The ball around each image: Linf(eps) or L2(eps), in pixels.
        steps: Gradient steps of one run.
        loss: The loss to ascend: ce, cw (margin) or dlr.
        restarts: Independent runs, each on the images that are still classified correctly.
        samples: Passes whose gradients and logits are averaged in each step, for a model with random
            predictions.
    """

    budget: Budget = field(default_factory=lambda: Linf("8/255"))
    steps: int = 100
    loss: str = "ce"
    restarts: int = 1
    samples: int = 1
    version = 2

    def __post_init__(self) -> None:
        _require_positive(steps=self.steps, restarts=self.restarts, samples=self.samples)
        loss_named(self.loss, False)

    def __str__(self) -> str:
        rest = non_default(self, "budget", "steps", "loss")
        return f"APGD-{self.steps} ({self.loss}), {self.budget}, adaptive step, {self.scored(False)}{rest}"

    def scored(self, coupled: bool) -> str:
        """Return which iterate counts: in a coupled batch the one at which most images are misclassified."""
        return "best iterate" if coupled or self.samples > 1 else "early stopping"

    def run(self, task: AttackTask) -> Outcome:
        """Run Auto-PGD `restarts` times, each time on the images that are still classified correctly."""
        # DLR scales by the third logit.
        loss = loss_named("cw" if self.loss == "dlr" and task.classes < 3 else self.loss, False)
        outcome = judge_clean(task)
        for restart in range(self.restarts):
            outcome = ascend(
                task,
                outcome,
                lambda z, rows: loss(z, task.y[rows]),
                self.budget,
                self.steps,
                restart,
                self.samples,
            )
        return outcome


@method_card(__doc__)
@dataclass(frozen=True)
class TargetedAPGD(Attack):
    """Auto-PGD on the targeted DLR loss, one run for each of the most likely other classes.

    Args:
        budget: The ball around each image: Linf(eps) or L2(eps), in pixels.
        steps: Gradient steps for each target.
        targets: Number of classes to try, most likely first; at most all others.
    """

    budget: Budget = field(default_factory=lambda: Linf("8/255"))
    steps: int = 100
    targets: int = 9
    version = 2

    def __post_init__(self) -> None:
        _require_positive(steps=self.steps, targets=self.targets)

    def __str__(self) -> str:
        rest = non_default(self, "budget", "steps", "targets")
        return (
            f"targeted APGD-{self.steps} (dlr, {self.targets} targets), {self.budget}, early stopping{rest}"
        )

    def scored(self, coupled: bool) -> str:
        """Return which iterate counts: in a coupled batch the one at which most images are misclassified."""
        return "best iterate" if coupled else "early stopping"

    def run(self, task: AttackTask) -> Outcome:
        """Run Auto-PGD towards each target, on the images that are still classified correctly."""
        ranked = ranked_classes(task)
        outcome = judge_clean(task)
        classes = ranked.shape[1]
        for rank in range(min(self.targets, classes - 1)):
            target = ranked[:, rank]

            def target_loss(z: Tensor, rows: Tensor, target: Tensor = target) -> Tensor:
                y, t = task.y[rows], target[rows]
                if classes < 4:  # DLR needs four logits to scale by
                    return z.gather(1, t[:, None]).squeeze(1) - z.gather(1, y[:, None]).squeeze(1)
                return dlr_targeted(z, y, t)

            outcome = ascend(task, outcome, target_loss, self.budget, self.steps, 16 + rank)
        return outcome


@torch.no_grad()
def ranked_classes(task: AttackTask) -> Tensor:
    """Return the classes of each image, most likely first and its label last, (N, classes)."""
    return task.net(task.x).scatter(1, task.y[:, None], -torch.inf).argsort(1, descending=True)


def judge_clean(task: AttackTask) -> Outcome:
    """Return the outcome before any attack: clean images, success where they are misclassified."""
    with torch.no_grad():
        success = is_misclassified(task.net(task.x), task.y)
    return Outcome(task.x.clone(), success, torch.where(success, 0, -1))


def ascend(
    task: AttackTask,
    before: Outcome,
    loss: RowLoss,
    budget: Budget,
    steps: int,
    draw: int,
    samples: int = 1,
) -> Outcome:
    """Run Auto-PGD once, from a random start, on the images that are still classified correctly.

    Args:
        task: The network, the clean images and their labels.
        before: The outcome so far; misclassified images keep theirs.
        loss: The loss to ascend.
        budget: The ball around the clean images.
        steps: Gradient steps.
        draw: Which of the random starts of each image to take.
        samples: Passes whose gradients and logits are averaged.
    """
    rows = (~before.success).nonzero().squeeze(1)
    if task.coupled:
        rows = torch.arange(len(before.x), device=before.x.device)
    if len(rows) == 0:
        return before
    out, success, success_at = before.x.clone(), before.success.clone(), before.success_at.clone()
    ids = [task.ids[i] for i in rows.tolist()]
    start = random_start(task.x[rows], budget, task.seed, ids, rng.purpose("apgd start", draw))

    s = _State(task, rows, start, loss, 2.0 * budget.radius, samples)
    checkpoints = _checkpoints(steps)
    for t in range(steps + 1):
        if t:
            s.move(budget, first=t == 1)
            s.evaluate(last=t == steps)
        if task.coupled:  # the batch is judged as a whole: the iterate at which most are misclassified
            if int(s.wrong.sum()) > int(success.sum()):
                out, success, success_at = s.x.clone(), s.wrong.clone(), torch.where(s.wrong, t, -1)
        elif samples == 1 and bool(s.wrong.any()):
            leaving = s.rows[s.wrong]
            out[leaving], success[leaving], success_at[leaving] = s.x[s.wrong], True, t
            s.keep(~s.wrong)
            if len(s.rows) == 0:
                break
        if t in checkpoints:
            s.adjust(since=t - checkpoints[t])
    if not task.coupled:
        out[s.rows] = s.best_x
    if samples > 1 and not task.coupled:
        s.x = s.best_x
        s.evaluate(last=True)
        success[s.rows], success_at[s.rows] = s.wrong, torch.where(s.wrong, steps, -1)
    return Outcome(out, success, success_at)


class _State:
    """The state of Auto-PGD between steps, one row per image that is still classified correctly."""

    def __init__(
        self, task: AttackTask, rows: Tensor, start: Tensor, loss: RowLoss, step: float, samples: int
    ) -> None:
        self.task, self.loss, self.rows, self.samples = task, loss, rows, samples
        self.center, self.x, self.previous = task.x[rows], start, start
        n = len(rows)
        self.step = torch.full((n, *[1] * (start.dim() - 1)), step, dtype=start.dtype, device=start.device)
        self.value = self.grad = self.wrong = torch.empty(0)
        self.best_value = torch.full((n,), -torch.inf, dtype=start.dtype, device=start.device)
        self.best_x, self.best_grad = start, torch.zeros_like(start)
        self.increases = torch.zeros(n, device=start.device)
        self.reduced = torch.ones(n, dtype=torch.bool, device=start.device)
        self.best_at_check = self.best_value.clone()
        self.evaluate()

    def evaluate(self, last: bool = False) -> None:
        """Compute the loss and its gradient at x; update the best point and count increases."""
        passes = [self._pass(last) for _ in range(self.samples)]
        z, value, self.grad = (sum(parts[1:], parts[0]) / len(parts) for parts in zip(*passes, strict=True))
        self.wrong = is_misclassified(z, self.task.y[self.rows])
        if len(self.value) == len(value):
            self.increases += value > self.value
        self.value = value
        better = value > self.best_value
        column = better.view(self.step.shape)
        self.best_value = torch.where(better, value, self.best_value)
        self.best_x = torch.where(column, self.x, self.best_x)
        self.best_grad = torch.where(column, self.grad, self.best_grad)

    def _pass(self, last: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Return the logits, the loss and its gradient at x."""
        x = self.x.detach().requires_grad_(not last)
        with torch.set_grad_enabled(not last):
            z = self.task.net(x)
            value = self.loss(z, self.rows)
        grad = torch.zeros_like(x) if last else gradient(value.sum(), x)
        return z.detach(), value.detach(), grad

    def move(self, budget: Budget, first: bool) -> None:
        """Take a projected step with momentum, of each image's own length."""
        stepped = project(self.x + self.step * direction(self.grad, budget), self.center, budget)
        alpha = 1.0 if first else _ALPHA
        mixed = self.x + alpha * (stepped - self.x) + (1 - alpha) * (self.x - self.previous)
        self.previous, self.x = self.x, project(mixed, self.center, budget)

    def adjust(self, since: int) -> None:
        """Halve the step where the loss oscillates or the best has stalled, and return to the best point."""
        oscillates = self.increases <= _RHO * since
        stalled = ~self.reduced & (self.best_at_check >= self.best_value)
        self.reduced = oscillates | stalled
        column = self.reduced.view(self.step.shape)
        self.step = torch.where(column, self.step / 2, self.step)
        self.x = torch.where(column, self.best_x, self.x)
        self.grad = torch.where(column, self.best_grad, self.grad)
        self.value = torch.where(self.reduced, self.best_value, self.value)
        self.best_at_check = self.best_value.clone()
        self.increases.zero_()

    def keep(self, rows: Tensor) -> None:
        """Keep only the rows where the mask is true."""
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(self, name, value[rows])


def _checkpoints(steps: int) -> dict[int, int]:
    """Return each checkpoint of a run, with the one before it."""
    before, fraction, gap = 0, 0.22, 0.22
    checkpoints = {}
    while (at := math.ceil(fraction * steps)) < steps:
        if at > before:
            checkpoints[at] = before
            before = at
        gap = max(gap - 0.03, 0.06)
        fraction += gap
    return checkpoints


def _require_positive(**counts: int) -> None:
    for name, count in counts.items():
        if whole(count, name) < 1:
            raise BadInput(f"Auto-PGD needs at least one of its {name}, found {name}={count}")
