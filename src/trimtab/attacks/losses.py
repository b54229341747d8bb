"""What an attack ascends: one value per image, larger is worse for the classifier.

Untargeted, with z the logits and y the label:
    ce    cross-entropy
    cw    margin, max over others of z_j, minus z_y (Carlini and Wagner)
    dlr   the margin over the spread z_(1) - z_(3) of the sorted logits (Croce and Hein); from 4 classes
Targeted losses pull towards a class t instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from trimtab import draws
from trimtab.types import BadInput

Loss = Callable[[Tensor, Tensor], Tensor]


def ce(z: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(z, y, reduction="none")


def cw(z: Tensor, y: Tensor) -> Tensor:
    return _best_other(z, y) - _of(z, y)


def dlr(z: Tensor, y: Tensor) -> Tensor:
    if z.shape[1] < 3:
        raise BadInput(f"dlr compares three logits, this model has {z.shape[1]}; take the margin, cw")
    top = z.sort(dim=1, descending=True).values
    return (_best_other(z, y) - _of(z, y)) / (top[:, 0] - top[:, 2] + 1e-12)


def ce_targeted(z: Tensor, t: Tensor) -> Tensor:
    return -ce(z, t)


def cw_targeted(z: Tensor, t: Tensor) -> Tensor:
    return -cw(z, t)


def dlr_targeted(z: Tensor, y: Tensor, t: Tensor) -> Tensor:
    """AutoAttack's targeted loss: it needs both the label and the target."""
    top = z.sort(dim=1, descending=True).values
    return (_of(z, t) - _of(z, y)) / (top[:, 0] - 0.5 * (top[:, 2] + top[:, 3]) + 1e-12)


LOSSES: dict[tuple[str, bool], Loss] = {
    ("ce", False): ce,
    ("cw", False): cw,
    ("dlr", False): dlr,
    ("ce", True): ce_targeted,
    ("cw", True): cw_targeted,
}


def slope(loss: Loss, z: Tensor, goal: Tensor) -> Tensor:
    """The gradient of the loss's sum for the logits."""
    if loss is ce and z.dtype in (torch.float32, torch.float64):  # not through autograd, and equal to the bit
        away = torch.zeros_like(z).scatter_(1, goal[:, None], -1.0)
        found: Tensor = torch.ops.aten._log_softmax_backward_data(away, z.log_softmax(1), 1, z.dtype)
        return found
    with torch.enable_grad():
        at = z.detach().requires_grad_(True)
        value = loss(at, goal).sum()
    return torch.autograd.grad(value, at)[0] if value.requires_grad else torch.zeros_like(z)


def loss_named(name: str, targeted: bool) -> Loss:
    if (name, targeted) not in LOSSES:
        known = ", ".join(sorted(n for n, t in LOSSES if t == targeted))
        raise BadInput(f"there is no {'targeted ' if targeted else ''}loss {name!r}; take one of {known}")
    return LOSSES[name, targeted]


def other_class(y: Tensor, classes: int, seed: int, ids: Sequence[int], draw: int = 0) -> Tensor:
    """A target for each image, uniform over all classes but its own."""
    offset = draws.integers(1, classes, seed, ids, draw).to(y.device)
    return (y + offset) % classes


def _of(z: Tensor, y: Tensor) -> Tensor:
    return z.gather(1, y[:, None]).squeeze(1)


def _best_other(z: Tensor, y: Tensor) -> Tensor:
    return z.scatter(1, y[:, None], -torch.inf).amax(1)
