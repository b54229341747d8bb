"""Folding batch norm into the convolution before it, while statistics are fixed.

With running statistics a batch-norm layer is a constant affine map per channel, so conv + norm is one
convolution: W' = W gamma / sigma, b' = (b - mu) gamma / sigma + beta. Attacks and certification run
many passes over a fixed network and take this copy. A pair is folded only if tracing proves it: the
convolution feeds this layer and nothing else, both run once, and nobody else reads their tensors. By
the same proof the copy's ReLUs overwrite a folded layer's output, or a sum with one, that only they read.
"""

from __future__ import annotations

import operator
from collections import Counter
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from trimtab.copies import duplicate, unhooked
from trimtab.norm.layer import Steered, after, understood
from trimtab.norm.moments import widest
from trimtab.norm.setting import MAIN
from trimtab.norm.steering import layers
from trimtab.norm.surgery import is_batch_norm
from trimtab.tracing import Tracer
from trimtab.types import BadInput

_FOLDABLE = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def fold(model: nn.Module, example: Tensor | None = None, wanted: Tensor | None = None) -> nn.Module:
    """A frozen copy of `model` that computes what the model does in eval mode, with fewer layers.

    Branches and settings in force are taken over. Layers that do not normalise with running statistics,
    and pairs that tracing cannot prove, are left as they are. With an `example` batch the copy is checked
    against the model, and given unfolded should they differ beyond rounding; if the model's answer to it
    is known already, give it as `wanted`.
    """
    return folded(model, example, wanted)[0]


def folded(
    model: nn.Module, example: Tensor | None = None, wanted: Tensor | None = None
) -> tuple[nn.Module, fx.Graph | None]:
    """As `fold`, and the trace of the copy, if there is one that tells all that the copy does."""
    copied = _frozen_copy(model)
    tracer = _Tracer(copied)
    graph = tracer.attempt(copied)
    modules = dict(copied.named_modules())
    pairs = foldable(tracer, graph, modules) if graph else []
    told = graph if tracer.faithful else None
    if graph is None or not pairs:
        return copied, told
    if example is not None and (wanted is None or torch.is_autocast_enabled(example.device.type)):
        wanted = _logits(copied, example)  # before anything is changed
    if all(map(unhooked, modules.values())):  # a hook may keep what it is shown
        for name in overwriting(graph, modules, {norm for _, norm in pairs}):
            copied.get_submodule(name).inplace = True  # type: ignore[assignment]
    for conv_name, norm_name in pairs:
        _merge(copied, conv_name, norm_name)
    if example is None or wanted is None or _agree(copied, example, wanted):
        return copied, told
    return _frozen_copy(model), None


def is_fixed(model: nn.Module) -> bool:
    """Whether every norm layer of a model in eval mode is a constant map, and none looks at the batch."""
    return all(_is_fixed(module) for module in model.modules() if is_batch_norm(module))


def foldable(tracer: _Tracer, graph: fx.Graph, modules: dict[str, nn.Module]) -> list[tuple[str, str]]:
    """(convolution, norm layer) pairs that are proved to be one affine map."""
    calls = [node for node in graph.nodes if node.op == "call_module"]
    times: dict[nn.Module, int] = {}
    for node in calls:
        module = modules[str(node.target)]
        times[module] = times.get(module, 0) + 1
    places = Counter(child for module in modules.values() for child in module._modules.values())
    read = {str(node.target).rpartition(".")[0] for node in graph.nodes if node.op == "get_attr"}
    pairs = []
    for node in calls:
        before = node.args[0] if node.args else None
        if not isinstance(before, fx.Node) or before.op != "call_module" or len(before.users) != 1:
            continue
        conv_name, norm_name = str(before.target), str(node.target)
        conv, norm = modules[conv_name], modules[norm_name]
        plain = type(conv) in _FOLDABLE and unhooked(conv) and unhooked(norm)
        once = times[conv] == times[norm] == places[conv] == places[norm] == 1
        alone = once and not read & {conv_name, norm_name}
        if plain and alone and tracer.fixed.get(norm):
            pairs.append((conv_name, norm_name))
    return pairs


def overwriting(graph: fx.Graph, modules: dict[str, nn.Module], folded: set[str]) -> list[str]:
    """ReLUs that may overwrite what they are given: nobody else reads it, and no gradient needs it."""
    safe: dict[str, bool] = {}
    for node in graph.nodes:
        if node.op == "call_module" and type(modules[node.target]) is nn.ReLU:
            safe[node.target] = safe.get(node.target, True) and _spares(node, modules, folded)
    return [name for name, spare in safe.items() if spare]


def _spares(relu: fx.Node, modules: dict[str, nn.Module], folded: set[str]) -> bool:
    """Whether its input is a folded layer's output, or a sum that begins with one, and is read by it alone.

    An activation that a norm layer ends in needs its own output.
    """
    given = _made_for(relu)
    if given is not None and given.target in (operator.add, operator.iadd):
        given = _made_for(given)
    if given is None or given.op != "call_module":
        return False
    return given.target in folded and not after(modules[str(given.target)])


def _made_for(node: fx.Node) -> fx.Node | None:
    """The first thing that a node is given, if nobody else is given it."""
    given = node.args[0] if node.args else None
    return given if isinstance(given, fx.Node) and len(given.users) == 1 else None


class _Tracer(Tracer):
    """Takes norm layers as leaves, and notes which are constant.

    A layer that the forward pass itself steers is left alone: it has another setting when called than
    when it is folded.
    """

    def __init__(self, root: nn.Module) -> None:
        super().__init__()
        found = [module for module in root.modules() if is_batch_norm(module)]
        self.fixed = {module: _is_fixed(module) for module in found}
        self.settings = {module: getattr(module, "setting", None) for module in found}

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return m in self.fixed or super().is_leaf_module(m, module_qualified_name)

    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        if m in self.fixed and getattr(m, "setting", None) is not self.settings[m]:
            self.fixed[m] = self.faithful = False
        return super().call_module(m, forward, args, kwargs)


def _is_fixed(norm: nn.Module) -> bool:
    """Whether this layer (in eval mode) is a constant affine map in its setting."""
    if not isinstance(norm, Steered):
        return is_batch_norm(norm) and understood(type(norm)) and norm.running_mean is not None
    setting = norm.setting
    routed = not isinstance(setting.branch or MAIN, str)
    idle = norm.update_now() is False and setting.shift is None
    return norm.source_now() == "running" and idle and not routed


@torch.no_grad()
def _merge(model: nn.Module, conv_name: str, norm_name: str) -> None:
    conv: Any = model.get_submodule(conv_name)
    norm: Any = model.get_submodule(norm_name)
    statistics = affine = norm
    if isinstance(norm, Steered):
        branch = str(norm.setting.branch or MAIN)
        statistics, affine = norm.statistics_holder(branch), norm.affine_holder(branch)
    wide = widest(conv.weight.device)
    scale = (statistics.running_var.to(wide) + norm.eps).rsqrt()
    if affine.weight is not None:
        scale = scale * affine.weight.to(wide)
    offset = -statistics.running_mean.to(wide) * scale
    if affine.bias is not None:
        offset = offset + affine.bias.to(wide)
    if conv.bias is not None:
        offset = offset + conv.bias.to(wide) * scale
    weight = conv.weight.to(wide) * scale.view([-1] + [1] * (conv.weight.dim() - 1))
    form = torch.channels_last if conv.weight.dim() == 4 else torch.contiguous_format
    conv.weight = nn.Parameter(
        weight.to(conv.weight.dtype).contiguous(memory_format=form), requires_grad=False
    )
    conv.bias = nn.Parameter(offset.to(conv.weight.dtype), requires_grad=False)
    parent, _, name = norm_name.rpartition(".")
    setattr(model.get_submodule(parent), name, nn.Sequential(*after(norm)) if after(norm) else nn.Identity())


def _frozen_copy(model: nn.Module) -> nn.Module:
    frozen = duplicate(model)
    for layer, original in zip(layers(frozen).values(), layers(model).values(), strict=True):
        # A copy starts at rest; this one rests where the model is, unobserved, and so do copies of it.
        layer.rest = layer.setting = replace(original.setting, observe=None)
    for parameter in frozen.parameters():
        parameter.requires_grad_(False)
    return frozen.eval()


@torch.no_grad()
def _logits(model: nn.Module, example: Tensor) -> Tensor:
    """In full precision: narrow rounding would hide a wrong fold, or show one where there is none."""
    with torch.autocast(example.device.type, enabled=False):
        z: Tensor = model(example)
    if not isinstance(z, Tensor):
        raise BadInput(f"the model must return logits of shape (N, classes), found a {type(z).__name__}")
    return z


def _agree(folded: nn.Module, example: Tensor, wanted: Tensor) -> bool:
    try:
        got = _logits(folded, example)
    except AttributeError:  # the forward pass asks a norm layer that is gone
        return False
    scale = float(wanted.abs().max().clamp(min=1e-6))
    return bool(((got - wanted).abs().max() <= 1e-3 * scale).item())
