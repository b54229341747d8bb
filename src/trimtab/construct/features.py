"""D_R and D_NR: images that a network cannot tell from others, made from images that show something else.

Idea      from another image x0, walk down ||g(x) - g(x_ref)||_2, g the penultimate feature; the result
          shows the features of x_ref that this network uses. A robust network gives D_R, a standard one D_NR.
Papers    Ilyas et al. 2019; as in Benz, Zhang and Kweon (LIGS), section 6
Steps     1000 of 0.1 along the l2-normalised gradient, unbounded, clipped to [0, 1], no random start
Label     that of x_ref (Ilyas et al.), or what the network says of the result (the LIGS authors' code)
ReLU      at the last ReLU gradients pass straight through: a dead feature must be able to come alive
Norm      running statistics of the branch in use, not learning
Cost      `steps` forward/backward passes to the image
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from trimtab import draws, models, norm
from trimtab.attacks.base import check_images
from trimtab.attacks.geometry import project, unit
from trimtab.attacks.guard import fast, guard
from trimtab.data import Batch, Images
from trimtab.types import L2, BadInput

_PARTNER = draws.purpose("partner")


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
        """Images with the features of `batch`, and their labels. They start from the set's images in another
        order, in which one or two may keep their place."""
        check_images(batch.x, batch.y)
        order = draws.permutation(len(images), seed, _PARTNER)
        start = images.take(order[batch.ids % len(images)]).x.to(batch.x)
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
    features = fast(straight_through(models.penultimate(model)), start)
    with torch.no_grad():
        goal = features(reference)
    x = start.detach().clone()
    for _ in range(steps):
        x.requires_grad_(True)
        with torch.enable_grad():
            distance = (features(x) - goal).flatten(1).norm(dim=1).sum()
            (grad,) = torch.autograd.grad(distance, x)
        x = x.detach() - step * unit(grad)
        x = x.clamp(0, 1) if eps is None else project(x, start, L2(eps))
    return x


class StraightThrough(nn.Module):
    """A ReLU whose gradient is that of the identity."""

    def forward(self, x: Tensor) -> Tensor:
        return x + (x.relu() - x).detach()


def straight_through(features: nn.Module) -> nn.Module:
    """A copy of a traced network in which the last ReLU, wherever it stands, lets gradients through."""
    copied = norm.copied(features)
    graphs = [module for module in copied.modules() if isinstance(module, fx.GraphModule)]
    for module in graphs:
        layers = dict(module.named_modules())
        relus = [
            node
            for node in module.graph.nodes
            if (node.op == "call_module" and isinstance(layers[str(node.target)], nn.ReLU))
            or (node.op == "call_function" and node.target in (torch.relu, F.relu))
            or (node.op == "call_method" and node.target in ("relu", "relu_"))
        ]
        if relus:
            last = relus[-1]
            module.add_submodule("straight_through", StraightThrough())
            with module.graph.inserting_after(last):
                instead = module.graph.call_module("straight_through", (last.args[0],))
            last.replace_all_uses_with(instead)
            module.graph.erase_node(last)
            module.recompile()
    return copied
