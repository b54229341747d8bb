"""Projected gradient descent, and what differs from it only in a number.

Idea      climb the loss inside the ball: x <- P(x + a * direction(grad loss(x)))
Papers    Madry et al. 2018; targeted with clean starts as in "Intriguing properties of adversarial
          training" (section 3); step 2.5 eps / steps as in "Batch normalisation increases adversarial
          vulnerability" (LIGS); CW as PGD with Carlini and Wagner's margin, as there
Norm      running statistics of the branch in use, not learning (see `guard`)
Cost      `steps` forward/backward passes to the image per restart, plus one forward pass; an image that is
          scored by any iterate takes fewer, and may take a forward pass more for each
Scoring   "last": the images of the last iteration, as other libraries do. "any": an image that was
          misclassified once is kept and leaves the working batch, which is many times cheaper and reads
          slightly lower. Broken means misclassified, also for a targeted attack. Where images of a batch
          influence each other none can leave, and the last iterate counts whatever `score` says.
Precision "bfloat16" takes gradients in half the digits: 1.3 to 1.6 times as fast (any iterate: 1.0 to 1.4)
          where the processor has instructions for it, slower where not. Images are judged by the model as
          it is, so that the attack can turn out weaker, never a number that is not true: at 8/255 by
          nothing that can be measured, at 1/255, which bfloat16 hardly sees, by half a point. The iteration
          at which an image broke may be noted late. Coupled batches, and models in half precision, are
          attacked as they are.
Changed   the target excludes the true class (the paper draws it from all classes); the clean-start coin
          is tossed per image (the public code: per batch)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from trimtab import draws
from trimtab.attacks.base import PRECISIONS, SCORES, Attack, Outcome, Victim, unusual
from trimtab.attacks.climbing import at_the_standing, climb, pursue
from trimtab.attacks.geometry import random_start
from trimtab.attacks.losses import cw, loss_named, other_class
from trimtab.types import BadInput, Budget, Linf, number, pretty, whole


@dataclass(frozen=True)
class PGD(Attack):
    budget: Budget = field(default_factory=lambda: Linf("8/255"))
    """Where the images may go: Linf(eps) or L2(eps), in pixels."""
    steps: int = 20
    """Gradient steps."""
    step_size: float | str | None = None
    """Length of a step in pixels; 2.5 eps / steps if not given."""
    loss: str = "ce"
    """What to climb: ce, cw (margin) or dlr."""
    targeted: bool = False
    """Pull towards a class drawn uniformly from the others, instead of away from the label."""
    restarts: int = 1
    """Independent tries; the worst for the classifier is kept."""
    random_start: bool = True
    """Begin at a uniform point of the ball, else at the image."""
    clean_start: float = 0.0
    """With a random start: the share of images that begin at the image all the same."""
    score: str = "last"
    """Which image counts: that of the "last" iteration, or "any" that was misclassified (faster)."""
    precision: str = "full"
    """Gradients as the model is ("full"), or rough and fast in "bfloat16"; the model as it is judges."""

    def __post_init__(self) -> None:
        whole(self.steps, "steps")
        whole(self.restarts, "restarts")
        if self.steps < 0:
            raise BadInput(f"an attack cannot take {self.steps} steps; give 0 or more")
        if self.restarts < 1:
            raise BadInput(f"an attack needs at least one try, found restarts={self.restarts}")
        if not 0 <= self.clean_start <= 1:
            raise BadInput(f"clean_start is a share between 0 and 1, found {self.clean_start}")
        if self.score not in SCORES:
            raise BadInput(f"score must be one of {', '.join(SCORES)}, found {self.score!r}")
        if self.precision not in PRECISIONS:
            raise BadInput(f"precision must be one of {', '.join(PRECISIONS)}, found {self.precision!r}")
        loss_named(self.loss, self.targeted)
        if self.step_size is not None:
            object.__setattr__(self, "step_size", number(self.step_size))
            if self.step <= 0:
                raise BadInput(f"a step must be longer than 0, found {self.step:g}")

    @property
    def step(self) -> float:
        """The step size in force."""
        return (
            2.5 * self.budget.radius / max(self.steps, 1) if self.step_size is None else float(self.step_size)
        )

    def __str__(self) -> str:
        kind = f"{'targeted ' if self.targeted else ''}{type(self).__name__}-{self.steps} ({self.loss})"
        tries = f", {self.restarts} restarts" if self.restarts > 1 else ""
        rough = "" if self.precision == "full" else f", {self.precision} gradients (coupled batches: full)"
        said = ("budget", "steps", "step_size", "loss", "targeted", "restarts", "score", "precision")
        rest = unusual(self, *said)
        return f"{kind}, {self.budget}, step {pretty(self.step)}{tries}, {self.score} iterate{rough}{rest}"

    def determined_by(self) -> dict[str, int]:
        """Beside its fields: rough results of any iterate were once judged at fewer of them."""
        return {"judging": 2} if self.score == "any" and self.precision != "full" else {}

    @property
    def refills(self) -> bool:  # type: ignore[override]
        return self.score == "any"

    def run(self, victim: Victim, marks: Sequence[int] = ()) -> Outcome:
        if self.restarts > 1:
            victim = replace(victim, judged=True)  # to choose among them
        best = self._one_try(victim, 0, marks)
        for restart in range(1, self.restarts):
            again = partial(self._one_more_try, restart)
            leave = self.score == "any" and not victim.coupled
            best = at_the_standing(victim, best, again) if leave else again(victim, best)
        return best

    def _one_more_try(self, restart: int, victim: Victim, best: Outcome) -> Outcome:
        return _worse_of(victim, best, self._one_try(victim, restart, ()))

    def _one_try(self, victim: Victim, restart: int, marks: Sequence[int]) -> Outcome:
        start = self._start(victim, restart)
        loss = loss_named(self.loss, self.targeted)
        goal = victim.y
        if self.targeted:
            draw = draws.purpose("target", restart)
            goal = other_class(victim.y, victim.classes, victim.seed, victim.ids, draw)
        if self.score == "any" and not victim.coupled:
            return pursue(victim, start, goal, loss, self.budget, self.steps, self.step)
        return climb(victim, start, goal, loss, self.budget, self.steps, self.step, marks)

    def _start(self, victim: Victim, restart: int) -> Tensor:
        if not self.random_start:
            return victim.x.clone()
        start = random_start(victim.x, self.budget, victim.seed, victim.ids, draws.purpose("start", restart))
        if self.clean_start:
            coins = draws.uniform(
                victim.x.flatten(1)[:, 0], victim.seed, victim.ids, draws.purpose("coin", restart)
            )
            start = torch.where(_column(coins < self.clean_start, start), victim.x, start)
        return start


@dataclass(frozen=True)
class FGSM(PGD):
    """One step to the border of the ball, from the image itself (Goodfellow et al. 2015)."""

    steps: int = 1
    random_start: bool = False

    @property
    def step(self) -> float:
        return self.budget.radius if self.step_size is None else float(self.step_size)


@dataclass(frozen=True)
class CW(PGD):
    """PGD on Carlini and Wagner's margin."""

    loss: str = "cw"


def _worse_of(victim: Victim, first: Outcome, second: Outcome) -> Outcome:
    """Image by image: the outcome that is misclassified, else the one with the smaller margin.

    A batch whose images influence each other is taken as a whole.
    """
    if victim.coupled:
        return max(first, second, key=lambda found: int(found.broken.sum()))
    better = second.broken & ~first.broken
    undecided = ~second.broken & ~first.broken
    if bool(undecided.any()):
        with torch.no_grad():
            margins = [cw(victim.net(o.x), victim.y) for o in (first, second)]
        better |= undecided & (margins[1] > margins[0])
    x = torch.where(_column(better, first.x), second.x, first.x)
    at = torch.where(first.broken_at >= 0, first.broken_at, second.broken_at)
    return Outcome(x, first.broken | second.broken, at, first.marks)


def _column(per_image: Tensor, like: Tensor) -> Tensor:
    return per_image.view(-1, *[1] * (like.dim() - 1))
