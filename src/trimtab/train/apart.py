"""APART: training against adversarially perturbed batch-norm statistics.

Idea      every norm layer computes gamma (1 + d_sigma)(x - (1 + d_mu) mu) / sigma + beta. A first pass over
          the batch of M images at d = 0 gives the gradients for the weights (g) and for all d; then
          d = eps sign(gradient), and a second pass over N of the images, in n groups with statistics of
          their own, gives the gradient h of the defence. The step is M/(M+N) g + N/(M+N) h
Paper     "Adversarially perturbed batch normalization", Algorithm 1 (whose last line and step 2 print
          g_theta for g_phi); with `sam_rho` APART-SAM, section 3.3: weights and statistics are moved
          together, both as the first pass says
Norm      first pass: none turned, the stock fused kernel; the gradient for d follows from those of gamma
          and beta (`norm.shift_gradients`). Second pass: shift, groups, update off
Cost      1 + N/M forward and backward passes
Changed   gradients flow through the statistics everywhere, as Eq. 3 is printed; the public code stops them at
          the mean that d_mu multiplies (`stop_gradient`). Groups are contiguous (there: strided). The N
          images are the first of a seeded permutation, in their own order when N = M
Controls  eps = 0 (groups alone: ghost batch norm), `attack="random"` (random signs)
Beware    at equal cost the paper's own comparison is mixed: on ImageNet APART at twice the budget
          loses to standard training at twice the budget
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from torch import Tensor, nn

from trimtab import draws, norm
from trimtab.attacks import RandomSign
from trimtab.norm.synchronise import local_groups, world_size
from trimtab.train.base import Objective, Parts, Passes, Step, check_smoothing, cross_entropy
from trimtab.train.processes import gather, rank
from trimtab.train.two_player import Attacker, climb_weights, play
from trimtab.types import BadInput

_SUBSET = 12  # what the random draw is for


@dataclass(frozen=True)
class Apart(Objective):
    eps: float = 0.1
    """Radius of every d: statistics move by up to this share of themselves."""
    groups: int = 1
    """n, groups of the second pass (over all processes), each with statistics of its own."""
    samples: int | None = None
    """N, images of the second pass; all M if not given."""
    sam_rho: float | None = None
    """Also move the weights, as SAM does with this radius: APART-SAM."""
    attack: str = "sign"
    """How statistics move: by the gradient's "sign", or at "random" as a control."""
    stop_gradient: bool = False
    """Take the statistics that d_mu multiplies as constants, as the public code does."""
    label_smoothing: float = 0.0
    """Share of each label spread evenly over all classes."""
    reads_gradients: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_smoothing(self.label_smoothing)
        if self.eps < 0 or (self.sam_rho or 0) < 0:
            raise BadInput(f"radii must not be negative, found eps={self.eps}, sam_rho={self.sam_rho}")
        if self.groups < 1 or (self.samples is not None and self.samples < self.groups):
            raise BadInput(
                "the second pass needs at least one group, and an image in each, found "
                f"samples={self.samples} and groups={self.groups}"
            )
        if self.attack not in ("sign", "random"):
            raise BadInput(f'attack must be "sign" or "random", found {self.attack!r}')

    def in_parts(self, parts: int) -> Apart:
        """Groups keep their size, or are the parts where these are smaller; N keeps its share."""
        if (self.groups % parts and parts % self.groups) or (self.samples or 0) % parts:
            raise BadInput(
                f"groups={self.groups} and samples={self.samples} cannot be shared out among {parts} parts"
            )
        groups, samples = max(self.groups // parts, 1), self.samples and self.samples // parts
        return replace(self, groups=groups, samples=samples)

    def check(self, batch: int, running: bool, compiled: bool) -> None:
        self.images(batch)
        if running:
            raise BadInput("APART perturbs batch statistics, so it cannot train with running ones")

    def images(self, batch: int) -> int:
        """N of a batch of so many images, if the batch has them and the groups come out even."""
        n = batch if self.samples is None else self.samples
        if n > batch:
            raise BadInput(f"the second pass is over {n} of the batch's images, but there are only {batch}")
        if n % self.groups:
            raise BadInput(f"the second pass's {n} images cannot be split into {self.groups} equal groups")
        return n

    def passes(self, batch: int) -> Passes:
        return Passes(1, 1).plus((self.samples or batch) / batch)

    def run(self, step: Step) -> Parts:
        if not norm.layers(step.model):
            raise BadInput("APART perturbs batch-norm statistics, and this model has no batch-norm layer")
        if not any(layer.source_now() == "batch" for layer in norm.layers(step.model).values()):
            raise BadInput("APART perturbs batch statistics, and this model is in eval mode: model.train()")
        m = len(step.x) * world_size()
        n = self.images(m)
        observed: list[norm.Seen] = []

        def first() -> Parts:
            with norm.observe(step.model) as seen:
                loss = cross_entropy(step.model(step.x), step.y, self.label_smoothing)
                calls = seen.calls.copy()
                step.backward(m / (m + n) * loss, False)
            seen.calls = calls  # activation checkpointing repeats them in the backward pass
            observed.append(seen)
            return {"loss": loss}

        def second() -> Parts:
            x, y = some_of(step.x, step.y, n, step.seed)
            loss = cross_entropy(step.model(x), y, self.label_smoothing)
            step.backward(n / (m + n) * loss, True)
            return {"loss": loss}

        attackers: list[Attacker] = [partial(self._shift, step, observed)]
        if self.sam_rho:
            attackers.append(climb_weights(self.sam_rho))
        return play(step.model, first, attackers, second, keep_first=True)

    def _shift(
        self, step: Step, observed: Sequence[norm.Seen], trained: Sequence[nn.Parameter]
    ) -> AbstractContextManager[None]:
        """The attacker of the statistics: each d goes to a corner of its cube."""
        if self.attack == "random":
            corners = RandomSign(self.eps)(step.model, seed=step.seed)
        else:
            gradients = {p: p.grad for p in trained if p.grad is not None}
            slopes = norm.shift_gradients(step.model, observed[0], gradients)
            corners = {
                name: norm.Shift(_corner(d.mu, self.eps), _corner(d.sigma, self.eps))
                for name, d in slopes.items()
            }
        through = not self.stop_gradient
        shift = {name: norm.Shift(d.mu, d.sigma, through) for name, d in corners.items()}
        pooled = any(layer.synchronised for layer in norm.layers(step.model).values())
        groups = self.groups if pooled else local_groups(self.groups)  # else no layer counts them out
        return norm.use(step.model, shift=shift, groups=groups)


def _corner(slope: Tensor | None, eps: float) -> Tensor | None:
    return None if slope is None else eps * slope.sign()


def some_of(x: Tensor, y: Tensor, n: int, seed: int) -> tuple[Tensor, Tensor]:
    """This process's part of n images: the first n of a permutation of the whole batch, split in order."""
    processes = world_size()
    if n == len(x) * processes:
        return x, y
    if n % processes:
        raise BadInput(f"samples must be a multiple of the {processes} processes, found {n}")
    mine = n // processes
    chosen = draws.permutation(len(x) * processes, seed, _SUBSET)[:n][rank() * mine :][:mine].to(x.device)
    return gather(x)[chosen], gather(y)[chosen]
