"""The loop of PGD with early stopping: an image leaves the batch once it is misclassified.

Each image has its own iteration `t`, and waiting images take the places of those that left, so that the
working batch is full to the end. A gradient costs two to three forward passes, and a misclassified image
needs none. So an image that the last step has probably flipped (`likely_flipped`) gets a forward pass
first, and a gradient only if it is still classified correctly.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from trimtab.attacks.base import AttackTask, Outcome
from trimtab.attacks.geometry import direction, project
from trimtab.attacks.losses import Loss, input_gradient
from trimtab.runtime import is_misclassified
from trimtab.types import Budget

Array = np.ndarray


def early_stop(
    task: AttackTask, start: Tensor, target: Tensor, loss: Loss, budget: Budget, steps: int, step: float
) -> Outcome:
    """Run PGD from `start`, and keep of each image the first iterate that is misclassified.

    Args:
        task: The network, the clean images and their labels.
        start: Where each image starts; overwritten.
        target: What the loss takes next to the logits: the label, or the target class.
        loss: The loss to ascend.
        budget: The ball around the clean images.
        steps: Gradient steps.
        step: Length of a step.
    """
    x, size, n = start, task.at_once, len(task.y)
    y, host_target = _to_numpy(task.y), _to_numpy(target)
    t, success_at = np.zeros_like(y), np.full_like(y, -1)
    survived = np.zeros(n, dtype=bool)  # known to be classified correctly at the current iterate
    everyone, nobody = np.arange(n), np.arange(0)
    to_ascend, to_judge = (everyone, nobody) if steps else (nobody, everyone)
    while remaining := len(to_ascend) + len(to_judge):
        if len(to_judge) >= min(size, remaining) / 2 or not len(to_ascend):
            batch, to_judge = to_judge[:size], to_judge[size:]
            rows = torch.as_tensor(batch, device=x.device)
            with torch.no_grad():
                flipped = _to_numpy(is_misclassified(task.net(x[rows]), task.y[rows]))
            success_at[batch[flipped]] = t[batch[flipped]]
            batch = batch[~flipped]
            survived[batch] = True
            to_ascend = np.concatenate([to_ascend, batch[t[batch] < steps]])
            continue
        batch, to_ascend = to_ascend[:size], to_ascend[size:]
        rows = torch.as_tensor(batch, device=x.device)
        before = x[rows]
        logits, logits_grad, grad = input_gradient(task.net, before, target[rows], loss)
        after = project(before.add(direction(grad, budget), alpha=step), task.x[rows], budget)
        gain = ((after - before) * grad).sum(tuple(range(1, x.dim())))
        flipped = _to_numpy(is_misclassified(logits, task.y[rows])) & ~survived[batch]
        if task.approximate:  # these logits are not the network's own
            to_judge = np.concatenate([to_judge, batch[flipped]])
        else:
            success_at[batch[flipped]] = t[batch[flipped]]
        likely = likely_flipped(
            _to_numpy(logits), _to_numpy(logits_grad), _to_numpy(gain), y[batch], host_target[batch]
        )
        if flipped.any():
            keep = ~flipped
            batch, likely, keep_rows = batch[keep], likely[keep], torch.as_tensor(keep, device=x.device)
            rows, after = rows[keep_rows], after[keep_rows]
        x[rows] = after
        t[batch] += 1
        survived[batch] = False
        finished = t[batch] == steps
        needs_judging = np.where(finished, task.judged, likely)
        to_judge = np.concatenate([to_judge, batch[needs_judging]])
        to_ascend = np.concatenate([to_ascend, batch[~needs_judging & ~finished]])
    at = torch.as_tensor(success_at, device=x.device)
    return Outcome(x, at >= 0, at)


def likely_flipped(logits: Array, logits_grad: Array, gain: Array, y: Array, target: Array) -> Array:
    """Return which images are misclassified if the loss increases as its gradient predicts.

    To first order, as if only two logits changed, by equal amounts: the label's and the target's, or without
    a target the strongest other class's.

    Args:
        logits: The logits before the step, (N, classes).
        logits_grad: The gradient of the loss with respect to the logits.
        gain: The increase of each loss that its gradient predicts, (N,).
        y: Labels (N,).
        target: The target classes, or the labels.
    """
    rows, others = np.arange(len(logits)), logits.copy()
    others[rows, y] = -np.inf
    other = np.where(target == y, others.argmax(1), target)
    with np.errstate(over="ignore", invalid="ignore"):  # nothing is predicted from infinite logits
        margin, margin_grad = (values[rows, y] - values[rows, other] for values in (logits, logits_grad))
        return (gain > margin * -margin_grad / 2) & (margin_grad < 0)


def _to_numpy(values: Tensor) -> Array:
    """Convert to NumPy, whose bookkeeping is several times faster than torch's; it has no bfloat16."""
    return (values.float() if values.dtype == torch.bfloat16 else values).numpy(force=True)
