"""Projected gradient descent, and the attacks that differ from it only in a number.

Idea      ascend the loss inside the ball: x <- P(x + a * direction(grad loss(x)))
Papers    Madry et al. 2018; targeted with clean starts as in "Intriguing properties of adversarial
          training" (section 3); step 2.5 eps / steps as in "Batch normalization increases adversarial
          vulnerability" (LIGS); CW as PGD with Carlini and Wagner's margin, as there
Norm      running statistics of the active branch, not updated (see `runtime.guard`)
Cost      `steps` forward/backward passes to the image per restart, plus one forward pass; with early stopping
          fewer, but up to one forward pass more per image
Stopping  Without early stopping the last iterate counts, as in other libraries. With it, an image leaves the
          batch with its first misclassified iterate: several times faster, and the robust accuracy is
          slightly lower. Success means misclassified, also for a targeted attack. If the images of a batch
          influence each other none can leave, and the last iterate counts.
Precision "bfloat16" takes gradients through a bfloat16 copy: 1.4 to 1.9 times as fast for ResNets on a CPU
          with bfloat16 instructions (docs/results/engine-room.md), slower on other CPUs and for depthwise
          convolutions. The model itself judges the images, so the attack may be weaker but no accuracy is
          wrong: at 8/255 no difference is significant; at 1/255, which bfloat16 hardly resolves, it is half
          a point. `success_at` may be late. Coupled batches, and models in half precision, are attacked
          without the copy.
Changed   the target excludes the true class (the paper draws it from all classes); the clean-start coin
          is tossed per image (the public code: per batch)
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from trimtab import rng
from trimtab.attacks.base import Attack, AttackTask, Outcome, non_default, retry_survivors
from trimtab.attacks.early_stop import early_stop
from trimtab.attacks.geometry import column, direction, project, random_start
from trimtab.attacks.judge import Judge
from trimtab.attacks.losses import Loss, cw, input_gradient, loss_named, other_class
from trimtab.types import L2, BadInput, Budget, Linf, method_card, number, pretty, whole

PRECISIONS = {"full": "full", "bfloat16": "bfloat16", "bf16": "bfloat16"}


@method_card(__doc__)
@dataclass(frozen=True)
class PGD(Attack):
    """Projected gradient descent on the loss of each image, inside a ball around it.

    x <- P(x + a * direction(grad loss(x))), from a random start; called as `attack(model, x, y, seed=0)`.

    Args:
        budget: The ball around each image: Linf(eps) or L2(eps), in pixels.
        steps: Gradient steps.
        step_size: Length of a step in pixels; 2.5 eps / steps if not given.
        loss: The loss to ascend: ce (cross-entropy), cw (margin) or dlr.
        targeted: Descend towards a class drawn uniformly from the others, not away from the label.
        restarts: Independent runs; of each image the worst result for the classifier is kept.
        random_start: Start at a uniform point of the ball, else at the image.
        clean_start: With a random start: the fraction of images that start at the image all the same.
        early_stop: Drop an image from the batch once it is misclassified (faster), instead of taking the last
            iterate of all images.
        precision: Gradients in full precision ("full") or from a bfloat16 copy ("bfloat16", "bf16"); the
            model itself judges.
        score: Deprecated: "any" is early_stop=True, "last" is early_stop=False.
        eps: With `norm`, another way to give the budget.
        norm: "linf" (default) or "l2"; the norm of `eps`.
    """

    budget: Budget = field(default_factory=lambda: Linf("8/255"))
    steps: int = 20
    step_size: float | str | None = None
    loss: str = "ce"
    targeted: bool = False
    restarts: int = 1
    random_start: bool = True
    clean_start: float = 0.0
    early_stop: bool = False
    precision: str = "full"
    score: InitVar[str | None] = None
    eps: InitVar[float | str | None] = None
    norm: InitVar[str | None] = None

    def __post_init__(self, score: str | None, eps: float | str | None, norm: str | None) -> None:
        self._read_aliases(score, eps, norm)
        whole(self.steps, "steps")
        whole(self.restarts, "restarts")
        if self.steps < 0:
            raise BadInput(f"an attack cannot take {self.steps} steps; give 0 or more")
        if self.restarts < 1:
            raise BadInput(f"an attack needs at least one run, found restarts={self.restarts}")
        if not 0 <= self.clean_start <= 1:
            raise BadInput(f"clean_start is a fraction between 0 and 1, found {self.clean_start}")
        if not isinstance(self.early_stop, bool):
            raise BadInput(f"early_stop is True or False, found {self.early_stop!r}")
        if self.precision not in PRECISIONS:
            raise BadInput(f"precision must be one of full, bfloat16, found {self.precision!r}")
        object.__setattr__(self, "precision", PRECISIONS[self.precision])
        loss_named(self.loss, self.targeted)
        if self.step_size is not None:
            object.__setattr__(self, "step_size", number(self.step_size))
            if self.step <= 0:
                raise BadInput(f"a step must be longer than 0, found {self.step:g}")

    def _read_aliases(self, score: str | None, eps: float | str | None, norm: str | None) -> None:
        if score is not None:
            if score not in ("any", "last"):
                raise BadInput(f"score must be one of last, any, found {score!r}; early_stop replaces it")
            message = f"score={score!r} is now early_stop={score == 'any'}"
            warnings.warn(message, DeprecationWarning, stacklevel=4)
            object.__setattr__(self, "early_stop", score == "any")
        if norm is not None and (eps is None or norm.lower() not in ("linf", "l2")):
            raise BadInput(f'norm is "linf" or "l2" and comes with eps, found norm={norm!r}, eps={eps!r}')
        if eps is not None:
            kind = L2 if norm is not None and norm.lower() == "l2" else Linf
            object.__setattr__(self, "budget", kind(eps))

    @property
    def step(self) -> float:
        """Return the step size, in pixels."""
        return (
            2.5 * self.budget.radius / max(self.steps, 1) if self.step_size is None else float(self.step_size)
        )

    def __str__(self) -> str:
        kind = f"{'targeted ' if self.targeted else ''}{type(self).__name__}-{self.steps} ({self.loss})"
        restarts = f", {self.restarts} restarts" if self.restarts > 1 else ""
        gradients = (
            "" if self.precision == "full" else f", {self.precision} gradients (coupled batches: full)"
        )
        named = ("budget", "steps", "step_size", "loss", "targeted", "restarts", "early_stop", "precision")
        rest = non_default(self, *named)
        step = f"step {pretty(self.step)}"
        return f"{kind}, {self.budget}, {step}{restarts}, {self.scored(False)}{gradients}{rest}"

    def cache_key(self) -> dict[str, int]:
        """Return an extra key for bfloat16 gradients with early stopping, once judged at fewer iterates."""
        return {"judging": 2} if self.early_stop and self.precision != "full" else {}

    @property
    def refills(self) -> bool:  # type: ignore[override]
        """Whether `run` itself takes `at_once` images at a time, as early stopping does."""
        return self.early_stop

    def run(self, task: AttackTask, marks: Sequence[int] = ()) -> Outcome:
        """Run PGD `restarts` times and keep the worst result for the classifier.

        Args:
            task: The network, the clean images and their labels.
            marks: Iterations whose iterates are judged as well.
        """
        if self.restarts > 1:
            task = replace(task, judged=True)  # to choose among them
        best = self._attempt(task, 0, marks)
        for restart in range(1, self.restarts):
            attempt = partial(self._attempt_again, restart)
            stop = self.early_stop and not task.coupled
            best = retry_survivors(task, best, attempt) if stop else attempt(task, best)
        return best

    def _attempt_again(self, restart: int, task: AttackTask, best: Outcome) -> Outcome:
        return keep_worst(task, best, self._attempt(task, restart, ()))

    def _attempt(self, task: AttackTask, restart: int, marks: Sequence[int]) -> Outcome:
        loss, target, start = loss_named(self.loss, self.targeted), task.y, self._start(task, restart)
        if self.targeted:
            purpose = rng.purpose("target", restart)
            target = other_class(task.y, task.classes, task.seed, task.ids, purpose)
        if self.early_stop and not task.coupled:
            return early_stop(task, start, target, loss, self.budget, self.steps, self.step)
        return fixed_steps(task, start, target, loss, self.budget, self.steps, self.step, marks)

    def _start(self, task: AttackTask, restart: int) -> Tensor:
        if not self.random_start:
            return task.x.clone()
        start = random_start(task.x, self.budget, task.seed, task.ids, rng.purpose("start", restart))
        if self.clean_start:
            coins = rng.uniform(task.x.flatten(1)[:, 0], task.seed, task.ids, rng.purpose("coin", restart))
            start = torch.where(column(coins < self.clean_start, start), task.x, start)
        return start


def fixed_steps(
    task: AttackTask,
    start: Tensor,
    target: Tensor,
    loss: Loss,
    budget: Budget,
    steps: int,
    step: float,
    marks: Sequence[int] = (),
) -> Outcome:
    """Run PGD from `start`: all images take all steps, and the last iterate counts.

    Args:
        task: The network, the clean images and their labels.
        start: Where each image starts; overwritten.
        target: What the loss takes next to the logits: the label, or the target class.
        loss: The loss to ascend.
        budget: The ball around the clean images.
        steps: Gradient steps.
        step: Length of a step.
        marks: Iterations whose iterates are judged as well.
    """
    x, judge = start, Judge(task, marks)
    for t in range(steps):
        logits, _, grad = input_gradient(task.net, x, target, loss)
        judge.record(t, x, logits)
        x = project(x.add_(direction(grad, budget), alpha=step), task.x, budget)
    return judge.outcome(steps, x)


@method_card(__doc__)
@dataclass(frozen=True)
class FGSM(PGD):
    """One step to the border of the ball, from the image itself (Goodfellow et al. 2015).

    Takes the arguments of `PGD`, with steps=1 and random_start=False by default.
    """

    steps: int = 1
    random_start: bool = False

    @property
    def step(self) -> float:
        """Return the step size, in pixels: the radius, if not given."""
        return self.budget.radius if self.step_size is None else float(self.step_size)


@method_card(__doc__)
@dataclass(frozen=True)
class CW(PGD):
    """PGD on Carlini and Wagner's margin. Takes the arguments of `PGD`, with loss="cw" by default."""

    loss: str = "cw"


def keep_worst(task: AttackTask, first: Outcome, second: Outcome) -> Outcome:
    """Keep for each image the outcome that is misclassified, else the one with the smaller margin.

    A batch whose images influence each other is taken as a whole.
    """
    if task.coupled:
        return max(first, second, key=lambda outcome: int(outcome.success.sum()))
    better = second.success & ~first.success
    undecided = ~second.success & ~first.success
    if bool(undecided.any()):
        with torch.no_grad():
            margins = [cw(task.net(outcome.x), task.y) for outcome in (first, second)]
        better |= undecided & (margins[1] > margins[0])
    x = torch.where(column(better, first.x), second.x, first.x)
    at = torch.where(first.success_at >= 0, first.success_at, second.success_at)
    return Outcome(x, first.success | second.success, at, first.marks)
