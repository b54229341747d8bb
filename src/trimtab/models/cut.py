"""Splitting a network at a named place: `tail(front(x)) == model(x)`, bit for bit.

`cut(model, name)` cuts after the module of that name (its last call, should there be several). The
network is traced into its steps, in the order in which they run; `front` is what runs up to there,
`tail` the rest. Both hold the network's own layers under the network's own names: training either
trains the model, and `norm.use(tail, ...)` steers the model's layers. If more than the named feature
crosses the cut (a shortcut, DenseNet's features), `front` returns a tuple that starts with it, and
`tail` takes that tuple:

    z, *others = front(x);  y = tail((perturbed(z), *others))

`cuts(model)` lists the places that only one tensor crosses. Every torch.nn layer, every class derived
from one and every module without children is one step; functions in between belong to the side they
run on. Tracing needs a forward pass whose course does not depend on the values in it.
"""

from __future__ import annotations

import difflib
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn

from trimtab import norm
from trimtab._clone import restored_attributes
from trimtab._mode import restored_modes
from trimtab.models.pixels import Pixels
from trimtab.types import BadInput


def cut(model: nn.Module, name: str) -> tuple[nn.Module, nn.Module]:
    """Front and tail of `model`, cut after the module `name`. The front of a `Pixels` is one, too."""
    if isinstance(model, Pixels):
        front, tail = cut(model.net, name.removeprefix("net."))
        return Pixels(front, model.spec), tail
    traced = _Traced(model)
    place = traced.place(name)
    crossing = traced.crossing(place)
    return traced.front(place, crossing), traced.tail(place, crossing)


def cuts(model: nn.Module) -> list[str]:
    """The names, in the order of running, after which nothing but the module's own output crosses."""
    traced = _Traced(model.net if isinstance(model, Pixels) else model)
    places = sorted((traced.index[node], name) for name, node in traced.returned.items())
    return [name for place, name in places if len(traced.crossing(place)) == 1]


def penultimate(model: nn.Module) -> nn.Module:
    """The feature that the last linear layer classifies, as a function of the image: (N, features)."""
    if isinstance(model, Pixels):
        return Pixels(penultimate(model.net), model.spec)
    traced = _Traced(model)
    for step in reversed(traced.steps):
        if step.op == "call_module" and isinstance(traced.layer(step), nn.Linear):
            feature = step.all_input_nodes[0]
            return traced.front(traced.index[feature], [feature])
    raise BadInput(f"{type(model).__name__} has no linear layer, so there is no feature before it")


def drop_norm(model: nn.Module, names: Sequence[str]) -> nn.Module:
    """Replace the batch-norm layers of these names by nothing, in place, and return the model.

    A `Pixels` records it, so that it is saved and read back so. A layer that was dropped before is skipped.
    """
    pixels = model if isinstance(model, Pixels) else None
    net = model if pixels is None else pixels.net
    names = [name.removeprefix("net.") if pixels is not None else name for name in names]
    modules = dict(net.named_modules())
    present = [name for name in names if not _dropped(modules.get(name))]
    norm.swap(net, "none", only=present)
    if pixels is not None and pixels.origin is not None and present:
        before = str(pixels.origin.arguments.get("drop_norm", ""))
        dropped = ";".join(dict.fromkeys([*filter(None, before.split(";")), *present]))
        arguments = {**pixels.origin.arguments, "drop_norm": dropped}
        pixels.origin = replace(pixels.origin, arguments=arguments)
    return model


def _dropped(module: nn.Module | None) -> bool:
    """Whether `norm.swap` left nothing here, or nothing but the activation of a fused layer."""
    return isinstance(next(iter(module), None) if isinstance(module, nn.Sequential) else module, nn.Identity)


class _CutTracer(fx.Tracer):
    """Remembers what each module, at any depth, returned last."""

    def __init__(self) -> None:
        super().__init__()
        self.returned: dict[str, fx.Node] = {}
        self.constants: dict[str, Any] = {}
        """What the forward pass makes by itself, as a trace calls it."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return _is_layer(m) or next(m.children(), None) is None

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        out = super().call_module(m, forward, args, kwargs)
        if isinstance(out, fx.Proxy):
            self.returned[self.path_of_module(m)] = out.node
        return out


_CONTAINERS = (nn.Module, nn.Sequential, nn.ModuleList, nn.ModuleDict)


def _is_layer(module: nn.Module) -> bool:
    kinds = type(module).__mro__
    return any(kind.__module__.startswith("torch.nn.") and kind not in _CONTAINERS for kind in kinds)


class _Traced:
    """A network as the sequence of its steps."""

    def __init__(self, net: nn.Module):
        tracer = _CutTracer()
        self.net = net
        self.steps: Sequence[fx.Node] = list(_trace(tracer, net).nodes)
        self.returned, self.constants = tracer.returned, tracer.constants
        self.index = {step: index for index, step in enumerate(self.steps)}
        self.only_mode = None if same_in_both_modes(net) else net.training

    def place(self, name: str) -> int:
        if name in self.returned:
            return self.index[self.returned[name]]
        if name in dict(self.net.named_modules()):
            raise BadInput(f"cannot cut at {name!r}: it does not run on its own, or returns no tensor")
        near = difflib.get_close_matches(name, self.returned, 3) or list(self.returned)[:3]
        raise BadInput(f"there is no module {name!r} to cut at; did you mean {', '.join(near)}?")

    def layer(self, step: fx.Node) -> nn.Module:
        return self.net.get_submodule(str(step.target))

    def crossing(self, place: int) -> list[fx.Node]:
        """What the steps after `place` need from those before: the named feature first."""
        named = self.steps[place]
        others = [
            step
            for step in self.steps[:place]
            if step.op != "get_attr" and any(self.index[user] > place for user in step.users)
        ]
        return [named, *others]

    def front(self, place: int, crossing: list[fx.Node]) -> nn.Module:
        graph = fx.Graph()
        copied: dict[fx.Node, fx.Node] = {}
        for step in self.steps[: place + 1]:
            copied[step] = graph.node_copy(step, copied.__getitem__)
        given = tuple(copied[step] for step in crossing)
        graph.output(given if len(given) > 1 else given[0])
        return self._module(graph, "Front")

    def tail(self, place: int, crossing: list[fx.Node]) -> nn.Module:
        graph = fx.Graph()
        copied: dict[fx.Node, fx.Node] = {}
        taken = graph.placeholder("crossing")
        for number, step in enumerate(crossing):
            value = graph.call_function(operator.getitem, (taken, number)) if len(crossing) > 1 else taken
            if not all(_only_reads(self.net, user, step) for user in step.users if self.index[user] > place):
                value = graph.call_function(_own, (value,))
            copied[step] = value
        for step in self.steps[: place + 1]:
            if step.op == "get_attr":
                copied[step] = graph.node_copy(step)
        for step in self.steps[place + 1 :]:
            copied[step] = graph.node_copy(step, copied.__getitem__)
        return self._module(graph, "Tail")

    def _module(self, graph: fx.Graph, name: str) -> nn.Module:
        with restored_attributes(self.net):
            vars(self.net).update(self.constants)
            part = fx.GraphModule(self.net, graph, name)
        if self.only_mode is not None:
            part.register_forward_pre_hook(partial(_require_mode, self.only_mode))
        return part


def _trace(tracer: _CutTracer, net: nn.Module) -> fx.Graph:
    try:
        with restored_attributes(net):
            graph = tracer.trace(net)
            read = {str(step.target) for step in graph.nodes if step.op == "get_attr"}
            tracer.constants = {name: value for name, value in vars(net).items() if name in read}
            return graph
    except Exception as error:  # tracing runs the user's own forward pass, which may raise anything at all
        why = next(iter(str(error).splitlines()), type(error).__name__)
        raise BadInput(f"{type(net).__name__} cannot be cut, tracing it failed: {why}") from error


def same_in_both_modes(net: nn.Module) -> bool:
    """Whether the steps are the same in training as in evaluation (layers look at their own mode)."""
    if isinstance(net, Pixels):
        return same_in_both_modes(net.net)
    with restored_modes(net):
        return str(_trace(_CutTracer(), net.train())) == str(_trace(_CutTracer(), net.eval()))


def _require_mode(mode: bool, part: nn.Module, inputs: Any) -> None:
    if part.training != mode:
        was, now = ("train", "eval") if mode else ("eval", "train")
        raise BadInput(
            f"this network runs other steps in training than in evaluation, and was cut in {was} mode: "
            f"cut it again in {now} mode"
        )


def _own(value: Any) -> Any:
    """A copy to write into: the caller's tensor stays as it is."""
    return value.clone() if isinstance(value, Tensor) else value


_READERS = (
    nn.modules.conv._ConvNd, nn.Linear, nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm,
    nn.modules.pooling._MaxPoolNd, nn.modules.pooling._AvgPoolNd, nn.modules.pooling._AdaptiveAvgPoolNd,
)  # fmt: skip
_READING_FUNCTIONS = {operator.add, operator.sub, operator.mul, operator.truediv, torch.add, torch.cat}
_WRITERS_TO_FIRST = {operator.iadd, operator.imul, operator.isub, operator.itruediv}


def _only_reads(net: nn.Module, step: fx.Node, value: fx.Node) -> bool:
    """Whether a step is known to leave `value` alone and to return other memory than its."""
    if step.op == "call_module":
        return isinstance(net.get_submodule(str(step.target)), _READERS)
    if step.target in _WRITERS_TO_FIRST:
        return step.args[0] is not value
    return step.op == "output" or step.target in _READING_FUNCTIONS
