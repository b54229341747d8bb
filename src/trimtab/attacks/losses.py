"""The losses that attacks ascend: one value per image, larger is worse for the classifier.

Untargeted, with z the logits and y the label:
    ce    cross-entropy
    cw    margin: max_{j != y} z_j - z_y (Carlini and Wagner)
    dlr   margin / (z_(1) - z_(3)), the largest logit minus the third (Croce and Hein); needs 3 classes
Targeted losses descend towards a class t instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trimtab import rng
from trimtab.types import BadInput

Loss = Callable[[Tensor, Tensor], Tensor]


def ce(z: Tensor, y: Tensor) -> Tensor:
    """Return the cross-entropy of each image."""
    return F.cross_entropy(z, y, reduction="none")


def cw(z: Tensor, y: Tensor) -> Tensor:
    """Return the margin by which the best other logit exceeds the label's."""
    return _best_other(z, y) - _logit_of(z, y)


def dlr(z: Tensor, y: Tensor) -> Tensor:
    """Return the margin divided by the difference between the largest and the third logit."""
    if z.shape[1] < 3:
        raise BadInput(f"dlr compares three logits, this model has {z.shape[1]}; use the margin, cw")
    top = z.sort(dim=1, descending=True).values
    return (_best_other(z, y) - _logit_of(z, y)) / (top[:, 0] - top[:, 2] + 1e-12)


def ce_targeted(z: Tensor, t: Tensor) -> Tensor:
    """Return the negative cross-entropy to the target."""
    return -ce(z, t)


def cw_targeted(z: Tensor, t: Tensor) -> Tensor:
    """Return the margin of the target over the best other logit."""
    return -cw(z, t)


def dlr_targeted(z: Tensor, y: Tensor, t: Tensor) -> Tensor:
    """Return the targeted DLR loss of AutoAttack, which needs both the label and the target."""
    top = z.sort(dim=1, descending=True).values
    return (_logit_of(z, t) - _logit_of(z, y)) / (top[:, 0] - 0.5 * (top[:, 2] + top[:, 3]) + 1e-12)


LOSSES: dict[tuple[str, bool], Loss] = {
    ("ce", False): ce,
    ("cw", False): cw,
    ("dlr", False): dlr,
    ("ce", True): ce_targeted,
    ("cw", True): cw_targeted,
}


def input_gradient(net: nn.Module, x: Tensor, target: Tensor, loss: Loss) -> tuple[Tensor, Tensor, Tensor]:
    """Return the logits of x, and the gradients of the summed loss with respect to the logits and to x."""
    with torch.enable_grad():
        inputs = x.detach().requires_grad_(True)
        logits = net(inputs)
    grad = logits_gradient(loss, logits.detach(), target)
    return logits.detach(), grad, gradient(logits, inputs, grad)


def logits_gradient(loss: Loss, z: Tensor, target: Tensor) -> Tensor:
    """Return the gradient of the summed loss with respect to the logits."""
    if loss is ce and z.dtype in (torch.float32, torch.float64):  # closed form, bit-identical to autograd
        one_hot = torch.zeros_like(z).scatter_(1, target[:, None], -1.0)
        grad: Tensor = torch.ops.aten._log_softmax_backward_data(one_hot, z.log_softmax(1), 1, z.dtype)
        return grad
    with torch.enable_grad():
        inputs = z.detach().requires_grad_(True)
        value = loss(inputs, target).sum()
    return gradient(value, inputs)


def gradient(value: Tensor, x: Tensor, vector: Tensor | None = None) -> Tensor:
    """Return the gradient (or vector-Jacobian product) with respect to x; zero if x has no influence."""
    if not value.requires_grad:
        return torch.zeros_like(x)
    (grad,) = torch.autograd.grad(value, x, vector, allow_unused=True)
    return torch.zeros_like(x) if grad is None else grad


def loss_named(name: str, targeted: bool) -> Loss:
    """Return the loss of this name; raise BadInput if there is none."""
    if (name, targeted) not in LOSSES:
        known = ", ".join(sorted(n for n, t in LOSSES if t == targeted))
        raise BadInput(f"there is no {'targeted ' if targeted else ''}loss {name!r}; use one of {known}")
    return LOSSES[name, targeted]


def other_class(y: Tensor, classes: int, seed: int, ids: Sequence[int], draw: int = 0) -> Tensor:
    """Return a target for each image, uniform over all classes but its own."""
    offset = rng.integers(1, classes, seed, ids, draw).to(y.device)
    return (y + offset) % classes


def _logit_of(z: Tensor, y: Tensor) -> Tensor:
    return z.gather(1, y[:, None]).squeeze(1)


def _best_other(z: Tensor, y: Tensor) -> Tensor:
    return z.scatter(1, y[:, None], -torch.inf).amax(1)
