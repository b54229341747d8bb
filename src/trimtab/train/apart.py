"""APART: training against adversarially perturbed batch-norm statistics.

Idea      every norm layer computes gamma (1 + d_sigma)(x - (1 + d_mu) mu) / sigma + beta. A first pass over
          the batch of M images at d = 0 gives the gradients for the weights (g) and for all d; then
          d = eps sign(gradient), and a second pass over N of the images, in n groups with separate
          statistics, gives the weights' gradient h at d. The optimizer gets M/(M+N) g + N/(M+N) h
Paper     "Adversarially perturbed batch normalization", Algorithm 1 (whose last line and step 2 print
          g_theta for g_phi); with `sam_rho` APART-SAM, section 3.3: weights and statistics are perturbed
          together, both by the gradient of the first pass
Norm      first pass: no knob, the stock fused kernel; the gradient for d follows from those of gamma
          and beta (`norm.shift_gradients`). Second pass: `shift`, `groups`, and `update` off
Cost      1 + N/M forward and backward passes
Changed   gradients flow through all statistics, as in Eq. 3; the public code stops them at the mean that
          d_mu multiplies (`stop_gradient`). Groups are contiguous (public code: strided). The N images are
          the first of a seeded permutation, or the batch in its order if N = M.
          Where the gradient of a d is zero mathematically (a norm layer whose output another one normalizes
          without an activation between, as in linear bottlenecks; a mean of zero), only a rounding error is
          left, whose sign is arbitrary. Gradients below `zero_below` of the layer's largest count as zero;
          the public code takes the sign of the rounding error
Controls  eps = 0 (groups alone: ghost batch norm), `attack="random"` (random signs)
Beware    at equal cost the paper's own comparison is mixed: on ImageNet APART at twice the budget
          loses to standard training at twice the budget
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from trimtab import norm, rng
from trimtab.attacks import RandomSign
from trimtab.norm.synchronize import gather, local_groups, rank, world_size
from trimtab.train.base import Objective, Parts, Passes, Step, isolated_gradients
from trimtab.train.two_pass import ascent_in_ball, moved_weights
from trimtab.types import BadInput, at_least, method_card, number, one_of, radius

_SUBSET = 12  # purpose of the random permutation


@method_card(__doc__)
@dataclass(frozen=True)
class APART(Objective):
    """APART: train on adversarially perturbed batch-norm statistics as well (Algorithm 1 of its paper).

    Args:
        eps: Radius of the perturbation d: each statistic moves by at most this fraction of itself.
        groups: Number n of groups in the second pass, over all processes; each group has its own statistics.
        samples: Number N of images in the second pass; all M images of the batch if None.
        sam_rho: Also perturb the weights, as SAM does with this radius: APART-SAM.
        attack: How the statistics move: by the "sign" of the gradient, or at "random" as a control.
        stop_gradient: Treat the statistics that d_mu multiplies as constants, as the public code does.
        label_smoothing: Fraction of each label that is spread evenly over all classes.
        zero_below: Gradients of d below this fraction of the layer's largest affine gradient have sign 0. If
            None, 1000 times the precision of the dtype (1.2e-4 in float32); 0 gives every rounding error a
            sign, as the public code does.
    """

    eps: float | str = 0.1
    groups: int = 1
    samples: int | None = None
    sam_rho: float | str | None = None
    attack: str = "sign"
    stop_gradient: bool = False
    label_smoothing: float = 0.0
    zero_below: float | str | None = None
    reads_gradients: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "eps", radius(self.eps))
        for name in ("sam_rho", "zero_below"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, number(getattr(self, name)))
        at_least(0, sam_rho=float(self.sam_rho or 0))
        if self.zero_below is not None and not 0 <= float(self.zero_below) < 1:
            raise BadInput(f"zero_below is a fraction from 0 to below 1, found {self.zero_below}")
        if self.groups < 1 or (self.samples is not None and self.samples < self.groups):
            raise BadInput(
                "the second pass needs at least one group and one image in each, found "
                f"samples={self.samples} and groups={self.groups}"
            )
        one_of(("sign", "random"), attack=self.attack)

    def in_parts(self, parts: int) -> APART:
        """Keep the size of groups (at most one part), and the fraction of images in the second pass."""
        if (self.groups % parts and parts % self.groups) or (self.samples or 0) % parts:
            raise BadInput(
                f"groups={self.groups} and samples={self.samples} cannot be split over {parts} parts"
            )
        groups, samples = max(self.groups // parts, 1), self.samples and self.samples // parts
        return replace(self, groups=groups, samples=samples)

    def check(self, batch: int, running: bool, compiled: bool) -> None:
        self.images(batch)
        if running:
            raise BadInput("APART perturbs batch statistics, so it cannot train with running statistics")

    def images(self, batch: int) -> int:
        """Return N; raise BadInput if it does not fit the batch or the groups.

        Args:
            batch: Images per call, over all processes.
        """
        n = batch if self.samples is None else self.samples
        if n > batch:
            raise BadInput(f"the second pass takes {n} images of the batch, which has only {batch}")
        if n % self.groups:
            raise BadInput(
                f"the {n} images of the second pass cannot be split into {self.groups} equal groups"
            )
        return n

    def passes(self, batch: int) -> Passes:
        return Passes(1, 1).plus((self.samples or batch) / batch)

    def run(self, step: Step) -> Parts:
        _require_batch_statistics(step.model)
        m = len(step.x) * world_size()
        n, groups = self.images(m), self._groups(step.model)
        with isolated_gradients(step.model) as phi:
            loss, logits, statistics = self._first_pass(step, m / (m + n))  # g_phi and g_theta at theta = 0
            theta = self._attack(step, statistics, phi)  # theta = eps sign(g_theta)
            x, y = subset(step.x, step.y, n, step.seed)
            with self._attacked_weights(phi), norm.use(step.model, shift=theta, groups=groups, update=False):
                defended = step.loss(step.model(x), y, self.label_smoothing)
                step.backward(n / (m + n) * defended, True)  # adds h_phi
        loss_weights = {"loss": m / (m + n), "defended_loss": n / (m + n)}
        return Parts({"loss": loss, "defended_loss": defended}, logits, loss_weights)

    def _first_pass(self, step: Step, weight: float) -> tuple[Tensor, Tensor, norm.Observations]:
        with norm.observe(step.model) as statistics:
            logits = step.model(step.x)
            loss = step.loss(logits, step.y, self.label_smoothing)
            calls = statistics.calls.copy()  # activation checkpointing repeats calls in the backward pass
            step.backward(weight * loss, False)
        statistics.calls = calls
        return loss, logits, statistics

    def _attack(
        self, step: Step, statistics: norm.Observations, phi: list[nn.Parameter]
    ) -> dict[str, norm.Shift]:
        """Return each d at the corner of its cube that its gradient points to; 0 where the gradient is 0."""
        if self.attack == "random":
            corners = RandomSign(self.eps)(step.model, seed=step.seed)
        else:
            gradients = {p: p.grad for p in phi if p.grad is not None}
            tolerance = 1e3 * torch.finfo(phi[0].dtype).eps if self.zero_below is None else self.zero_below
            g_theta = norm.shift_gradients(step.model, statistics, gradients, float(tolerance))
            corners = {
                name: norm.Shift(_corner(d.mu, float(self.eps)), _corner(d.sigma, float(self.eps)))
                for name, d in g_theta.items()
            }
        through = not self.stop_gradient
        return {name: norm.Shift(d.mu, d.sigma, through) for name, d in corners.items()}

    def _attacked_weights(self, phi: list[nn.Parameter]) -> AbstractContextManager[None]:
        return moved_weights(phi, ascent_in_ball(phi, float(self.sam_rho))) if self.sam_rho else nullcontext()

    def _groups(self, model: nn.Module) -> int:
        pooled = any(layer.synchronized for layer in norm.layers(model).values())
        return self.groups if pooled else local_groups(self.groups)  # else of this process alone


def _require_batch_statistics(model: nn.Module) -> None:
    layers = norm.layers(model).values()
    if not layers:
        raise BadInput("APART perturbs batch-norm statistics, and this model has no batch-norm layer")
    if not any(layer.source_now() == "batch" for layer in layers):
        raise BadInput(
            "APART perturbs batch statistics, and this model is in eval mode; call model.train() first"
        )


def _corner(gradient: Tensor | None, eps: float) -> Tensor | None:
    return None if gradient is None else eps * gradient.sign()


def subset(x: Tensor, y: Tensor, n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return the part of this process of the first n images of a permutation of the whole batch."""
    processes = world_size()
    if n == len(x) * processes:
        return x, y
    if n % processes:
        raise BadInput(f"samples must be a multiple of the {processes} processes, found {n}")
    size = n // processes
    chosen = rng.permutation(len(x) * processes, seed, _SUBSET)[:n][rank() * size :][:size].to(x.device)
    return gather(x)[chosen], gather(y)[chosen]
