"""D_R and D_NR: images with the features that a network computes for a reference image.

Idea      from a start image x0 of another class, descend ||g(x) - g(x_ref)||_2, g the penultimate feature;
          the result shares with x_ref the features that this network uses. A robust network gives D_R, a
          standard one D_NR
Papers    Ilyas et al. 2019; as in Benz, Zhang and Kweon (LIGS), sections 4.2, B.3 and E
Steps     1000 of 0.1 along the l2-normalized gradient, unbounded, clipped to [0, 1], no random start
Label     that of x_ref (Ilyas et al.), or the network's prediction on the result (the LIGS authors' code)
Gradient  straight-through at the last activation before g, so that a feature that is zero can become
          positive
Norm      running statistics of the active branch, not updated
Cost      `steps` forward/backward passes to the image
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, fx, nn

from trimtab import models, norm, rng
from trimtab._accel import accelerate
from trimtab.attacks.geometry import project, unit
from trimtab.data import Batch, Images
from trimtab.runtime import check_images, guard
from trimtab.types import L2, BadInput, one_of

_PARTNER = rng.purpose("partner")
_LABELS = ("reference", "network")
_STARTS = ("other label", "any")


@dataclass(frozen=True)
class FeatureMatch:
    """Construct D_R or D_NR: images with the penultimate features of other images.

    Args:
        steps: Gradient steps.
        step: Length of a step (l2).
        eps: Largest l2 distance from the start; unbounded if None.
        label: "reference": the label of the image whose feature is matched; "network": the network's
            prediction.
        start: "other label": start from an image whose label differs from the reference's (the papers);
            "any": from any image of the set, the reference itself included.
    """

    steps: int = 1000
    step: float = 0.1
    eps: float | None = None
    label: str = "reference"
    start: str = "other label"
    version: ClassVar[int] = 2

    def __post_init__(self) -> None:
        one_of(_LABELS, label=self.label)
        one_of(_STARTS, start=self.start)
        if self.steps < 0 or self.step <= 0:
            raise BadInput(f"matching needs steps >= 0 and step > 0, found {self.steps} and {self.step}")

    def __call__(
        self, model: nn.Module, batch: Batch, images: Images, seed: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Return images with the features of `batch`, and their labels; the start images are in `images`."""
        check_images(batch.x, batch.y)
        positions = partners(images, batch, seed, self.start == "other label")
        start = images.take(positions).x.to(batch.x)
        with guard(model):
            x = match(model, batch.x, start, self.steps, self.step, self.eps)
            if self.label == "reference":
                return x, batch.y
            with torch.no_grad():
                return x, model(x).argmax(1)


def partners(images: Images, batch: Batch, seed: int, other_label: bool) -> Tensor:
    """Return the position in `images` of the start image of each image of `batch`.

    It is element i mod N of a seeded permutation of the N images, for the image with id i; with
    `other_label`, the next element whose label differs.
    """
    n = len(images)
    order = rng.permutation(n, seed, _PARTNER)
    indices = batch.ids.cpu() % n
    if not other_label:
        return order[indices]
    labels, y = images.labels.cpu(), batch.y.cpu()
    if bool((labels == labels[0]).all()):
        raise BadInput(
            "all images of the set have the same label, so none can start from another; give one of several "
            'classes, or start="any"'
        )
    for _ in range(n):
        same = labels[order[indices]] == y
        if not bool(same.any()):
            break
        indices = torch.where(same, (indices + 1) % n, indices)
    return order[indices]


def match(
    model: nn.Module, reference: Tensor, start: Tensor, steps: int, step: float, eps: float | None
) -> Tensor:
    """Return images that match the penultimate features of `reference`, by gradient descent from `start`.

    The caller guards the model.
    """
    features = accelerate(straight_through(models.penultimate(model)), start)
    with torch.no_grad():
        target = features(reference)
    x = start.detach().clone()
    for _ in range(steps):
        x.requires_grad_(True)
        with torch.enable_grad():
            distance = (features(x) - target).flatten(1).norm(dim=1).sum()
            (grad,) = torch.autograd.grad(distance, x)
        x = x.detach() - step * unit(grad)
        x = x.clamp(0, 1) if eps is None else project(x, start, L2(eps))
    return x


class StraightThrough(nn.Module):
    """Apply an activation with the gradient of the identity."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """Return activation(x); its backward pass returns the gradient unchanged."""
        y: Tensor = x + (self.activation(x.clone()) - x).detach()  # x.clone(): it may be in-place
        return y


class _Call(nn.Module):
    """A module that applies a function or method call of a traced graph to one tensor."""

    def __init__(self, node: fx.Node) -> None:
        super().__init__()
        self.node = node

    def forward(self, x: Tensor) -> Tensor:
        """Return the result of the call with x as its first argument."""
        args, kwargs = self.node.args[1:], self.node.kwargs
        if self.node.op == "call_method":
            y: Tensor = getattr(x, str(self.node.target))(*args, **kwargs)
        else:
            y = self.node.target(x, *args, **kwargs)  # type: ignore[operator]
        return y


def straight_through(features: nn.Module) -> nn.Module:
    """Return a copy of a traced network whose last activation has the straight-through gradient.

    This is the last activation, of any class, that lies on every path from the image to the output: neither
    a gate of a squeeze-excite block nor an activation inside a residual branch. A network without one is
    returned unchanged, with a warning.
    """
    copied = norm.clone(features)
    graphs = [module for module in copied.modules() if isinstance(module, fx.GraphModule)]
    replaced = [_replace_last(module) for module in graphs]  # a list: replace in every graph
    if not any(replaced):
        warnings.warn(
            "no activation is on every path to the penultimate feature, so there is no straight-through "
            "gradient; features that are zero at the start may stay zero",
            stacklevel=2,
        )
    return copied


def _replace_last(module: fx.GraphModule) -> bool:
    """Replace the last activation that dominates the output of a graph; return False if there is none."""
    output = next(node for node in reversed(module.graph.nodes) if node.op == "output")
    for node in reversed(module.graph.nodes):
        activation = _activation(module, node)
        if activation is None or not _dominates(node, output):
            continue
        parent, name, layer = activation
        if parent is not None:  # inside a layer, such as timm's BatchNormAct2d
            setattr(parent, name, StraightThrough(layer))
            return True
        module.add_submodule("straight_through", StraightThrough(layer))
        with module.graph.inserting_after(node):
            replacement = module.graph.call_module("straight_through", (node.args[0],))
        node.replace_all_uses_with(replacement)
        module.graph.erase_node(node)
        module.recompile()
        return True
    return False


def _activation(module: fx.GraphModule, node: fx.Node) -> tuple[nn.Module | None, str, nn.Module] | None:
    """Return the activation that a node computes or ends with, as (parent, its name there, layer)."""
    if node.op in ("call_function", "call_method"):
        one_input = len(node.all_input_nodes) == 1 and node.args[:1] == (node.all_input_nodes[0],)
        layer: nn.Module = _Call(node)
        return (None, "", layer) if one_input and is_activation(layer) else None
    if node.op != "call_module":
        return None
    layer = module.get_submodule(str(node.target))
    if is_activation(layer):
        return None, "", layer
    if isinstance(layer, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
        return None  # its activation is inside a residual branch
    inside = [(layer, name, child) for name, child in layer.named_children() if is_activation(child)]
    return inside[0] if len(inside) == 1 else None


def is_activation(layer: nn.Module) -> bool:
    """Return whether a layer is elementwise and nonlinear, by applying it to a few values."""
    if isinstance(layer, nn.PReLU):  # elementwise, with one parameter per channel
        return True
    if next(layer.parameters(), None) is not None:
        return False
    x = torch.linspace(-4, 4, 64).view(2, 4, 2, 4)
    order = rng.permutation(x.numel(), 0)
    try:
        with torch.no_grad():
            y, shuffled = layer(x.clone()), layer(x.flatten()[order].view_as(x))
    except Exception:  # not a function of one feature map: it may raise anything
        return False
    if not isinstance(y, Tensor) or y.shape != x.shape or not y.is_floating_point():
        return False
    differences = y.flatten().diff()
    elementwise = torch.allclose(shuffled.flatten(), y.flatten()[order])
    return elementwise and bool((differences - differences.mean()).abs().max() > 1e-4)


def _dominates(node: fx.Node, output: fx.Node) -> bool:
    """Return whether every path from an input of the graph to its output goes through `node`."""
    stack, seen = [output], {node, output}
    while stack:  # everything that `output` depends on other than through `node`
        current = stack.pop()
        if current.op == "placeholder":
            return False
        new = set(current.all_input_nodes) - seen
        seen |= new
        stack += new
    return True
