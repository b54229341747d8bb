"""D_R and D_NR: images that a network cannot tell from others, made from images that show something else.

Idea      from an independent image x0, walk down ||g(x) - g(x_ref)||_2, g the penultimate feature; the result
          shows the features of x_ref that this network uses. A robust network gives D_R, a standard one D_NR.
Papers    Ilyas et al. 2019; as in Benz, Zhang and Kweon (LIGS), section 6
Steps     1000 of 0.1 along the l2-normalised gradient, unbounded, clipped to [0, 1], no random start
Label     that of x_ref (Ilyas et al.), or what the network says of the result (the LIGS authors' code)
ReLU      at the last ReLU gradients pass straight through: a dead feature must be able to come alive
Norm      running statistics of the branch in use, not learning
Cost      `steps` forward/backward passes to the image
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from trimtab import draws, models
from trimtab.attacks.geometry import norms, project
from trimtab.attacks.guard import fast, guard
from trimtab.data import Batch, Images
from trimtab.types import L2, BadInput

_PARTNER = 41  # what the random draw is for


@dataclass(frozen=True)
class FeatureMatch:
    steps: int = 1000
    """Gradient steps."""
    step: float = 0.1
    """Length of a step (l2)."""
    eps: float | None = None
    """How far (l2) from the start the image may go; anywhere if None."""
    label: str = "reference"
    """"reference": that of the image whose feature is matched; "network": what the network says."""
    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if self.label not in ("reference", "network"):
            raise BadInput(f'label must be "reference" or "network", found {self.label!r}')
        if self.steps < 0 or self.step <= 0:
            raise BadInput(f"matching needs steps >= 0 and step > 0, found {self.steps} and {self.step}")

    def __call__(
        self, model: nn.Module, batch: Batch, images: Images, seed: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Images with the features of `batch`, started from other images of the set, and their labels."""
        order = draws.permutation(len(images), seed, _PARTNER)
        start = images.take(order[batch.ids % len(images)]).x
        with guard(model):
            made = match(model, batch.x, start, self.steps, self.step, self.eps)
            if self.label == "reference":
                return made, batch.y
            with torch.no_grad():
                return made, model(made).argmax(1)


def match(
    model: nn.Module, reference: Tensor, start: Tensor, steps: int, step: float, eps: float | None
) -> Tensor:
    """Walk from `start` to an image whose penultimate feature is that of `reference`. `model` is guarded."""
    features = straight_through(models.penultimate(model), start[:1])
    features = fast(features, start)
    with torch.no_grad():
        goal = features(reference)
    x = start.detach().clone()
    for _ in range(steps):
        x.requires_grad_(True)
        with torch.enable_grad():
            distance = (features(x) - goal).flatten(1).norm(dim=1).sum()
            (grad,) = torch.autograd.grad(distance, x)
        x = x.detach() - step * grad / norms(grad).clamp(min=1e-12)
        x = x.clamp(0, 1) if eps is None else project(x, start, L2(eps))
    return x


class StraightThrough(nn.Module):
    """A ReLU whose gradient is that of the identity."""

    def forward(self, x: Tensor) -> Tensor:
        return x + (x.relu() - x).detach()


def straight_through(features: nn.Module, example: Tensor) -> nn.Module:
    """A copy whose last ReLU module lets gradients through; as it is, if it has none."""
    copied = copy.deepcopy(features)
    ran: list[str] = []
    hooks = [
        module.register_forward_hook(lambda m, i, o, name=name: ran.append(name))
        for name, module in copied.named_modules()
        if isinstance(module, nn.ReLU)
    ]
    with torch.no_grad():
        copied(example)
    for hook in hooks:
        hook.remove()
    if ran:
        parent, _, name = ran[-1].rpartition(".")
        setattr(copied.get_submodule(parent), name, StraightThrough())
    return copied
