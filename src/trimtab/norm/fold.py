"""Folding batch norm into the convolution before it, while statistics are fixed.

With running statistics a batch-norm layer is a constant affine map per channel, so conv + norm is one
convolution: W' = W gamma / sigma, b' = (b - mu) gamma / sigma + beta. Attacks and certification run
many passes over a fixed network and take this copy. A pair is folded only if tracing proves it: the
convolution feeds only this layer, both run once, and nothing else reads their tensors. By the same
proof the copy's ReLUs work in place on a folded layer's output, or on a sum with one, that only they read.
"""

from __future__ import annotations

import operator
from collections import Counter
from typing import Any

import torch
from torch import Tensor, fx, nn

from trimtab._clone import deep_clone, is_plain
from trimtab._trace import Tracer
from trimtab.norm.layer import Steered, after, understood
from trimtab.norm.moments import widest
from trimtab.norm.setting import MAIN
from trimtab.norm.steering import layers
from trimtab.norm.surgery import is_batch_norm
from trimtab.types import BadInput

_FOLDABLE = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def fold(model: nn.Module, example: Tensor | None = None, logits: Tensor | None = None) -> nn.Module:
    """Return a frozen copy of `model` that computes what the model does in eval mode, with fewer layers.

    Active branches and settings are taken over. Layers that do not normalize with running statistics, and
    pairs that tracing cannot prove, are left as they are.

    Args:
        model: The network; it is not changed.
        example: A batch on which the copy is compared with the model; if they differ beyond rounding, the
            copy is returned unfolded.
        logits: What the model returns for `example`, if that is already known.
    """
    copy = _frozen_copy(model)
    tracer = _FoldTracer(copy)
    graph = tracer.attempt(copy)
    modules = dict(copy.named_modules())
    pairs = foldable(tracer, graph, modules) if graph else []
    if graph is None or not pairs:
        return copy
    if example is not None and (logits is None or torch.is_autocast_enabled(example.device.type)):
        logits = _logits(copy, example)  # before anything is changed
    if all(map(is_plain, modules.values())):  # a hook may store its tensors
        for name in overwriting(graph, modules, {norm for _, norm in pairs}):
            copy.get_submodule(name).inplace = True  # type: ignore[assignment]
    for conv_name, norm_name in pairs:
        _merge(copy, conv_name, norm_name)
    if example is None or logits is None or _agree(copy, example, logits):
        return copy
    return _frozen_copy(model)


def foldable(tracer: _FoldTracer, graph: fx.Graph, modules: dict[str, nn.Module]) -> list[tuple[str, str]]:
    """Return the (convolution, norm layer) pairs that are proved to be one affine map."""
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
        plain = type(conv) in _FOLDABLE and is_plain(conv) and is_plain(norm)
        once = times[conv] == times[norm] == places[conv] == places[norm] == 1
        alone = once and not read & {conv_name, norm_name}
        if plain and alone and tracer.fixed.get(norm):
            pairs.append((conv_name, norm_name))
    return pairs


def overwriting(graph: fx.Graph, modules: dict[str, nn.Module], folded: set[str]) -> list[str]:
    """Return the ReLUs that may overwrite their input: no other node reads it, no gradient needs it."""
    safe: dict[str, bool] = {}
    for node in graph.nodes:
        if node.op == "call_module" and type(modules[node.target]) is nn.ReLU:
            safe[node.target] = safe.get(node.target, True) and _spares(node, modules, folded)
    return [name for name, spare in safe.items() if spare]


def _spares(relu: fx.Node, modules: dict[str, nn.Module], folded: set[str]) -> bool:
    """Whether only this ReLU reads its input, which is a folded layer's output or a sum that begins with one.

    An activation that a norm layer ends in needs its own output.
    """
    source = _sole_input(relu)
    if source is not None and source.target in (operator.add, operator.iadd):
        source = _sole_input(source)
    if source is None or source.op != "call_module":
        return False
    return source.target in folded and not after(modules[str(source.target)])


def _sole_input(node: fx.Node) -> fx.Node | None:
    """The node's first argument, if no other node reads it."""
    argument = node.args[0] if node.args else None
    return argument if isinstance(argument, fx.Node) and len(argument.users) == 1 else None


class _FoldTracer(Tracer):
    """Takes norm layers as leaves, and records which are constant.

    A layer that the forward pass itself steers is not folded: its setting when called differs from its
    setting when folded.
    """

    def __init__(self, root: nn.Module) -> None:
        super().__init__()
        norms = [module for module in root.modules() if is_batch_norm(module)]
        self.fixed = {module: _is_fixed(module) for module in norms}
        self.settings = {module: getattr(module, "setting", None) for module in norms}

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return m in self.fixed or super().is_leaf_module(m, module_qualified_name)

    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        if m in self.fixed and getattr(m, "setting", None) is not self.settings[m]:
            self.fixed[m] = False
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
    scale = (statistics.running_var.to(wide) + getattr(norm, "eps", 1e-5)).rsqrt()
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
    frozen = deep_clone(model)
    for layer, original in zip(layers(frozen).values(), layers(model).values(), strict=True):
        # A copy starts neutral; this one, and copies of it, keep the model's setting, unobserved.
        layer.rest = layer.setting = original.setting._replace(observe=None)
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


def _agree(folded: nn.Module, example: Tensor, logits: Tensor) -> bool:
    try:
        folded_logits = _logits(folded, example)
    except AttributeError:  # the forward pass reads an attribute of a norm layer that is gone
        return False
    scale = float(logits.abs().max().clamp(min=1e-6))
    return bool(((folded_logits - logits).abs().max() <= 1e-3 * scale).item())
