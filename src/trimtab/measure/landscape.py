"""How smooth the loss is along the gradient step of training.

Idea      from the weights w with gradient g, evaluate the loss at w - eta g for several eta:
            loss range           lowest and highest loss
            gradient change      largest ||grad(w - eta g) - g||
            effective beta       largest ||grad(w - eta g) - g|| / ||eta g||
Paper     Santurkar et al. 2018, as measured in Benz et al., figures 14 to 17
Norm      batch statistics, as in training, without updates; layers that cannot be steered use their
          running statistics
Cost      one forward/backward pass per eta; on a copy of the model
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trimtab import norm
from trimtab.norm.moments import widest
from trimtab.norm.state import images_for
from trimtab.runtime import check_labels, check_pairs, unwrap
from trimtab.types import BadInput


@dataclass(frozen=True)
class Landscape:
    """The loss along a gradient step."""

    losses: tuple[float, ...]
    """The loss at each eta, the first of which is 0."""
    gradient_change: float
    """Largest l2 norm of the change of the gradient."""
    beta: float
    """Effective smoothness: the largest change of the gradient per length of the step."""

    @property
    def loss_range(self) -> tuple[float, float]:
        """The lowest and the highest loss; NaN if one is NaN."""
        return _ends(self.losses)


def landscape(
    model: nn.Module, x: Tensor, y: Tensor, etas: Sequence[float] = (0.05, 0.1, 0.2, 0.3, 0.4)
) -> Landscape:
    """Evaluate the loss along the negative gradient of the mean cross-entropy at the model's weights.

    Args:
        model: Any classifier; it is not modified.
        x: One training batch of images (N, C, H, W).
        y: Labels (N,).
        etas: Step sizes.
    """
    if not etas or min(etas) <= 0:
        raise BadInput(f"etas must be given and be positive, found {tuple(etas)}")
    probe = norm.clone(unwrap(model)).eval()  # no dropout noise
    for parameter in probe.parameters():
        parameter.requires_grad_(True)
    for part in probe.modules():
        if norm.steerable(part):
            norm.steer(part)
    check_pairs(x, y)
    x = images_for(probe, x)
    y = y.to(x.device)
    if torch.is_inference_mode_enabled():
        raise BadInput("gradients cannot be taken inside torch.inference_mode(); leave it")
    check_labels(probe, x, y)
    with norm.use(probe, source="batch", update=False) if norm.layers(probe) else nullcontext():
        parameters = list(probe.parameters())
        start = [p.detach().clone() for p in parameters]
        loss, g = _loss_and_gradient(probe, parameters, x, y)
        losses, changes, betas = [loss], [], []
        for eta in etas:
            with torch.no_grad():
                for p, w, grad in zip(parameters, start, g, strict=True):
                    p.copy_(w - eta * grad)
            loss, there = _loss_and_gradient(probe, parameters, x, y)
            change = _norm([a - b for a, b in zip(there, g, strict=True)])
            losses.append(loss)
            changes.append(change)
            betas.append(change / max(eta * _norm(g), 1e-300))
    return Landscape(tuple(losses), _ends(changes)[1], _ends(betas)[1])


def _loss_and_gradient(
    model: nn.Module, parameters: list[nn.Parameter], x: Tensor, y: Tensor
) -> tuple[float, list[Tensor]]:
    with torch.enable_grad():
        loss = F.cross_entropy(model(x), y.long())
        grads = torch.autograd.grad(loss, parameters, allow_unused=True)
    return float(loss.detach()), [
        torch.zeros_like(p) if g is None else g for p, g in zip(parameters, grads, strict=True)
    ]


def _ends(values: Sequence[float]) -> tuple[float, float]:
    """Return the lowest and the highest value, NaN if there is one (`min` and `max` may miss it)."""
    low, high = torch.tensor(values, dtype=torch.float64).aminmax()
    return float(low), float(high)


def _norm(tensors: list[Tensor]) -> float:
    return float(torch.stack([t.to(widest(t.device)).square().sum() for t in tensors]).sum().sqrt())
