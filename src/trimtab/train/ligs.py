"""Training for a linear neighborhood: the local input-gradient similarity (LIGS) as a regularizer.

Idea      loss = CE + weight (1 - LIGS), LIGS = mean over images of cos(grad_x l(x, y), grad_x l(x + nu, y))
          with nu a small random step: where the input gradient keeps its direction, the network is linear
Paper     "Batch normalization increases adversarial vulnerability", section 4 (figure 5); form and weight
          are not stated there: both are our choice
Norm      batch statistics in both passes; `update` off in the pass at x + nu
Cost      two forward passes, two backward passes to the image, and one backward pass through these: on a
          CPU about as much time as ten passes
Beware    a high LIGS does not prove robustness: constant and linear functions have it as well
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from trimtab import rng
from trimtab.train.base import Objective, Parts, Passes, Step, keep_statistics
from trimtab.types import BadInput, at_least, method_card, number

_PROBE = 13  # purpose of the random numbers


@method_card(__doc__)
@dataclass(frozen=True)
class LIGS(Objective):
    """LIGS as a regularizer: CE + weight (1 - LIGS), for a network that is linear around each image.

    Args:
        weight: Weight of 1 - LIGS next to the cross-entropy.
        size: Std of the Gaussian step, in pixel units.
        label_smoothing: Fraction of each label that is spread evenly over all classes.
    """

    weight: float = 1.0
    size: float | str = 0.01
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "size", number(self.size))
        at_least(0, weight=self.weight, size=float(self.size))

    def passes(self, batch: int) -> Passes:
        return Passes(2, 4)

    def run(self, step: Step) -> Parts:
        nu = float(self.size) * rng.normal(step.x, step.seed, step.ids, _PROBE)
        logits, loss, grad_x = self._gradient(step, step.x)
        with keep_statistics(step.model):
            _, _, grad_shifted = self._gradient(step, step.x + nu)
            turned = turn(grad_x.flatten(1), grad_shifted.flatten(1))
            total = loss + self.weight * turned
            with _named_failure():
                step.backward(total, True)
        return Parts({"loss": total, "ce": loss, "turned": turned}, logits)

    def _gradient(self, step: Step, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the logits, the mean loss, and N times its input gradient, with a graph."""
        x = x.detach().requires_grad_(True)
        logits = step.model(x)
        loss = step.loss(logits, step.y, self.label_smoothing)
        with _named_failure():
            (grad,) = torch.autograd.grad(loss, x, create_graph=True)
        return logits, loss, grad * len(x)


@contextmanager
def _named_failure() -> Iterator[None]:
    """Name the operation if torch cannot differentiate its gradient."""
    try:
        yield
    except RuntimeError as error:
        if "derivative for" not in str(error) or "is not implemented" not in str(error):
            raise
        operation = str(error).partition("derivative for ")[2].partition(" ")[0].strip("'")
        raise BadInput(
            f"LIGS differentiates the input gradient, and torch has no second derivative of {operation}; "
            "replace that layer (nn.Hardsigmoid by nn.Sigmoid, say)"
        ) from None


def turn(grad_x: Tensor, grad_shifted: Tensor) -> Tensor:
    """Return the mean of 1 - cos over rows; a gradient of zero (the loss has saturated) counts as 0."""
    nonzero = (grad_x.detach().norm(dim=1) > 1e-12) & (grad_shifted.detach().norm(dim=1) > 1e-12)
    cosine = F.cosine_similarity(grad_x[nonzero], grad_shifted[nonzero], dim=1, eps=1e-12)
    return (1 - cosine).sum() / len(grad_x)
