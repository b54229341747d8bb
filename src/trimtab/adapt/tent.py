"""TENT: adapt gamma and beta to each batch by a gradient step on the entropy of its predictions.

Idea      normalize with the batch's own statistics, and descend

              L(x) = mean_i H(softmax f(x_i)),   H(p) = -sum_k p_k log p_k

          in gamma and beta of every batch-norm layer; the pass that gives L also gives the predictions, so
          a batch is predicted before it changes the model
Paper     Wang et al. 2021, "Tent: fully test-time adaptation by entropy minimization"; Adam with 1e-3 on
          CIFAR (batches of 200), SGD with momentum 0.9 and 2.5e-4 on ImageNet (batches of 64)
Norm      source "batch", update off; gamma and beta are replaced by adapted copies
Cost      one forward and one backward pass per step
Careful   entropy is also minimal when every image is assigned the same class: with large steps, small or
          class-sorted batches TENT collapses, and looks ever more confident. `alarm` reports falling entropy
          with concentrating predictions; `reset` returns to the source parameters. A prediction depends on
          the other images of the batch and on all batches before it: attack it with `attacks.ThroughBatch`
          and `attacks.CoBatch`. A pass whose input requires gradients (an attack's) uses the current gamma
          and beta and updates nothing. The attacker's gradient is exact, since the update comes after the
          prediction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from trimtab import norm
from trimtab.adapt.per_batch import Adapting, steered_copy
from trimtab.runtime import require_logits
from trimtab.types import BadInput, number

WINDOW = 256
"""Number of predictions on each side of the collapse alarm: the first since a reset, and the latest."""
OPTIMIZERS = ("adam", "sgd")


class TentSnapshot(NamedTuple):
    """The state of an adapted model, to roll back to."""

    affine: list[Tensor]
    optimizer: dict[str, Any]
    first: list[tuple[float, int]]
    latest: list[tuple[float, int]]


class Tent(Adapting):
    """A copy of a model that minimizes the entropy of its predictions on each batch.

    Args:
        model: A model with batch norm; it is not changed.
        lr: Learning rate.
        optimizer: "adam", or "sgd" with momentum 0.9.
        steps: Gradient steps per batch.
        episodic: Start every batch from the source parameters.
    """

    def __init__(self, model: nn.Module, lr: float | str, optimizer: str, steps: int, episodic: bool) -> None:
        super().__init__()
        lr = number(lr)
        if optimizer not in OPTIMIZERS:
            raise BadInput(f"optimizer must be one of {', '.join(OPTIMIZERS)}, found {optimizer!r}")
        if lr <= 0 or steps < 1:
            raise BadInput(f"TENT needs a positive lr and 1 step or more, found {lr:g} and {steps}")
        self.model = steered_copy(model).requires_grad_(False)
        layers = {id(parameter) for parameter in norm.affine_parameters(self.model)}
        self._names = [name for name, p in self.model.named_parameters() if id(p) in layers]
        if not self._names:
            raise BadInput("this model's batch-norm layers have no gamma and beta to adapt")
        for k, name in enumerate(self._names):  # as buffers, so that `runtime.guard` restores them
            value = self.model.get_parameter(name).detach().clone()
            self.register_buffer(f"affine{k}", value.requires_grad_(True))
        self.steps, self.episodic = steps, episodic
        adam = torch.optim.Adam(self._affine(), lr)
        self._optimizer = adam if optimizer == "adam" else torch.optim.SGD(self._affine(), lr, momentum=0.9)
        self._first: list[tuple[float, int]] = []
        self._latest: list[tuple[float, int]] = []
        self._classes = 0
        self._source = self.snapshot()

    @property
    def provenance(self) -> str:
        """Where the statistics come from, for trust cards."""
        return "re-estimated on every batch, gamma and beta adapted by entropy (TENT)"

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of a batch, then learn from it."""
        if torch.is_grad_enabled() and x.requires_grad:
            return self._logits(x)
        if self.episodic:
            self.reset()
        with torch.inference_mode(False), torch.enable_grad():
            x = x.detach().clone() if x.is_inference() else x.detach()
            for _ in range(self.steps):
                z = self._logits(x)
                if not isinstance(z, Tensor):
                    require_logits(z, "; nothing was adapted")
                entropy = torch.special.entr(z.softmax(1)).sum(1)  # (N,)
                self._step(entropy.mean())
        self._record(entropy.detach(), z.detach())
        return z.detach()

    def _affine(self) -> list[Tensor]:
        return [self.get_buffer(f"affine{k}") for k in range(len(self._names))]

    def _logits(self, x: Tensor) -> Tensor:
        adapted = dict(zip(self._names, self._affine(), strict=True))
        with norm.use(self.model, source="batch", update=False):
            z: Tensor = functional_call(self.model, adapted, (x,))
        return z

    def _step(self, loss: Tensor) -> None:
        gradients = torch.autograd.grad(loss, self._affine())
        if not all(bool(gradient.isfinite().all()) for gradient in gradients):
            raise BadInput("the entropy of these images has no finite gradient; nothing was adapted")
        for value, gradient in zip(self._affine(), gradients, strict=True):
            value.grad = gradient
        self._optimizer.step()
        self._optimizer.zero_grad()

    # ---- collapse -------------------------------------------------------------------------------------

    def _record(self, entropy: Tensor, z: Tensor) -> None:
        """Store the entropy and the class of each prediction, which `alarm` compares."""
        self._classes = z.shape[1]
        pairs = list(zip(entropy.tolist(), z.argmax(1).tolist(), strict=True))
        self._first += pairs[: max(WINDOW - len(self._first), 0)]
        self._latest = [*self._latest, *pairs][-WINDOW:]

    @property
    def alarm(self) -> str | None:
        """A warning if entropy fell while predictions concentrated on fewer classes, else None."""
        if len(self._first) < WINDOW or self._classes < 2:
            return None
        (entropy0, classes0), (entropy, classes) = _summary(self._first), _summary(self._latest)
        if entropy > entropy0 / 2 or classes > classes0 / 2:
            return None
        return (
            f"collapse: over the last {WINDOW} images mean entropy is {entropy:.2f} nats (at first "
            f"{entropy0:.2f}), and predictions concentrate on {classes:.1f} classes (at first {classes0:.1f})"
        )

    # ---- state ----------------------------------------------------------------------------------------

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Tent:
        """Move or convert the module; the optimizer follows."""
        state = self._optimizer.state_dict()
        super()._apply(fn, recurse)
        for k, value in enumerate(self._affine()):
            setattr(self, f"affine{k}", value.detach().requires_grad_(True))
        self._optimizer.param_groups[0]["params"] = self._affine()
        self._optimizer.state.clear()
        self._optimizer.load_state_dict(state)
        return self

    def snapshot(self) -> TentSnapshot:
        """Return the current state, for `rollback`."""
        affine = [value.detach().clone() for value in self._affine()]
        return TentSnapshot(affine, deepcopy(self._optimizer.state_dict()), [*self._first], [*self._latest])

    @torch.no_grad()
    def rollback(self, snapshot: TentSnapshot) -> None:
        """Restore the state of a `snapshot`."""
        for value, saved in zip(self._affine(), snapshot.affine, strict=True):
            value.copy_(saved)
        self._optimizer.load_state_dict(deepcopy(snapshot.optimizer))
        self._first, self._latest = [*snapshot.first], [*snapshot.latest]

    def reset(self) -> None:
        """Return to the source parameters, such as when the domain changes."""
        source = self._source
        if self.episodic:  # every batch starts with a reset, which the collapse alarm must outlast
            source = source._replace(first=self._first, latest=self._latest)
        self.rollback(source)


def _summary(window: Sequence[tuple[float, int]]) -> tuple[float, float]:
    """Mean entropy, and the effective number of predicted classes: the exponential of their entropy."""
    counts = torch.bincount(torch.tensor([label for _, label in window])).double()
    class_entropy = float(torch.special.entr(counts / counts.sum()).sum())
    return sum(entropy for entropy, _ in window) / len(window), math.exp(class_entropy)


def tent(
    model: nn.Module,
    lr: float | str = 1e-3,
    optimizer: str = "adam",
    steps: int = 1,
    episodic: bool = False,
) -> Tent:
    """Return a copy of `model` that adapts gamma and beta to each batch by minimizing entropy.

    Args:
        model: A model with batch norm; it is not changed.
        lr: Learning rate.
        optimizer: "adam", or "sgd" with momentum 0.9.
        steps: Gradient steps per batch.
        episodic: Start every batch from the source parameters.
    """
    return Tent(model, lr, optimizer, steps, episodic)
