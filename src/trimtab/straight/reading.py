"""From a trace to the steps of a straight line.

A step is an operation with a rule of its own, or several in a row that have none. Values are numbered. One
that is read once, by an operation that can, is overwritten; what the network itself overwrites must be such.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch import fx, nn
from torch.nn import functional as F

from trimtab.copies import unhooked
from trimtab.layout import LaidOut
from trimtab.straight import operations
from trimtab.straight.operations import Call, Held, Operation, Place, Row, Unclear
from trimtab.tracing import IN_PLACE

_SUMS = (operator.add, torch.add)
_SIGNS = {operator.add: "+", operator.sub: "-", operator.mul: "*", operator.truediv: "/"}
_RECTIFIERS = (F.relu, torch.relu, torch.relu_, "relu", "relu_")
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


@dataclass(frozen=True)
class Step:
    does: Operation
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    overwrites: bool = False
    """The first value that it reads, which nobody else does."""


def read(trace: fx.Graph, net: nn.Module) -> tuple[list[Step], int]:
    """The steps of a network, and the number of its answer. Number 0 are the images."""
    if any(not unhooked(module) or hasattr(module, "__deepcopy__") for module in net.modules()):
        raise Unclear("a network that somebody listens to, or that copies itself in its own way")
    modules = dict(net.named_modules())
    if any(node.op == "call_module" and node.target not in modules for node in trace.nodes):
        raise Unclear("a network that calls what was folded away")
    reader = _Reader(modules, trace)
    for node in trace.nodes:
        reader.take(node)
    return reader.steps, reader.answer


class _Reader:
    def __init__(self, modules: dict[str, nn.Module], trace: fx.Graph) -> None:
        self.modules = modules
        self.steps: list[Step] = []
        self.row: list[fx.Node] = []  # that have no rule and are not yet a step
        self.stands: dict[fx.Node, Place | Held] = {}
        self.makers: dict[int, Operation] = {}
        self.readers: dict[fx.Node, list[fx.Node]] = {node: [] for node in trace.nodes}
        self.source: dict[fx.Node, fx.Node] = {}  # of nodes that hand on what they are given
        self.answer = 0
        for node in trace.nodes:
            given = [self.source.get(one, one) for one in node.all_input_nodes]
            if self._hands_on(node):
                self.source[node] = given[0]
                continue
            for one in given:
                self.readers[one].append(node)

    def take(self, node: fx.Node) -> None:
        if node.op == "placeholder":
            if self.stands and self.readers[node]:
                raise Unclear("a network with more than one input")
            self.stands[node] = Place(0)
        elif node.op == "get_attr":
            owner, _, name = str(node.target).rpartition(".")
            if not hasattr(self.modules.get(owner), name):
                raise Unclear("a network that makes tensors of its own")
            self.stands[node] = Held(self.modules[owner], name)
        elif node.op == "output":
            self._end_row()
            answer = self._told(node.args[0])
            if not isinstance(answer, Place):
                raise Unclear("a network that answers with anything but a tensor")
            self.answer = answer.number
        elif self._hands_on(node):
            self.stands[node] = self._told(node.args[0])
        elif (does := self._rule(node)) is None:
            self._check_in_place(node)
            self.row.append(node)
            self.stands[node] = Place(len(self.stands))
        else:
            self._end_row()
            self._check_in_place(node)
            reads = tuple(one.number for one in self._told(node.args) if isinstance(one, Place))
            place = self.stands[node] = Place(len(self.stands))
            self._add(Step(does, reads, (place.number,), bool(does.overwriting) and self._spare(node)))

    def _add(self, step: Step) -> None:
        self.makers.update(dict.fromkeys(step.writes, step.does))
        self.steps.append(step)

    def _end_row(self) -> None:
        """Make a step of the nodes that wait for one."""
        if not self.row:
            return
        inside = set(self.row)
        calls = [self._call(node) for node in self.row]
        made = {call.writes for call in calls}
        told = [self.stands[one] for node in self.row for one in node.all_input_nodes]
        reads = dict.fromkeys(one.number for one in told if isinstance(one, Place))
        ends = [node for node in self.row if not inside.issuperset(self.readers[node])]
        writes = tuple(self.stands[node].number for node in ends)  # type: ignore[union-attr]
        outside = tuple(i for i in reads if i not in made)
        over = {self.stands[node].number for node in ends if any(map(self._in_place, self.readers[node]))}  # type: ignore[union-attr]
        row = Row(tuple(calls), outside, writes, frozenset(over))
        if writes:  # else nobody reads it
            self._add(Step(row.operation(), outside, writes))
        self.row = []

    def _check_in_place(self, node: fx.Node) -> None:
        """What the network itself overwrites must be read by nobody else, and be nobody else's memory."""
        if not self._in_place(node):
            return
        place = self._told(node.args[0]) if self._alone(node) else None
        maker = self.makers.get(place.number) if isinstance(place, Place) else None
        if maker is None or not (maker.spares or maker.many or maker.overwriting):
            raise Unclear("a network that overwrites what somebody else reads")

    def _in_place(self, node: fx.Node) -> bool:
        if node.op == "call_module":
            return bool(getattr(self.modules[str(node.target)], "inplace", False))
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        writes = name.endswith("_") and not name.endswith("__")
        return node.target in IN_PLACE or writes or bool(node.kwargs.get("inplace")) or "out" in node.kwargs

    def _alone(self, node: fx.Node) -> bool:
        """Whether nobody else reads the first thing that a node is given, nor it a second time."""
        given = node.args[0] if node.args else None
        if not isinstance(given, fx.Node) or given in node.args[1:]:
            return False
        return self.readers[self.source.get(given, given)] == [node]

    def _call(self, node: fx.Node) -> Call:
        target = self.modules[str(node.target)] if node.op == "call_module" else node.target
        number = self.stands[node].number  # type: ignore[union-attr]
        return Call(target, self._told(node.args), self._told(node.kwargs), number)

    def _told(self, given: Any) -> Any:
        """Arguments, with stand-ins for what is known only in a pass."""
        return fx.node.map_arg(given, lambda node: self.stands[node])  # type: ignore[arg-type, return-value]

    def _hands_on(self, node: fx.Node) -> bool:
        module = self._module(node) if node.args and isinstance(node.args[0], fx.Node) else None
        return type(module) is nn.Identity or (type(module) in _DROPOUTS and not module.training)  # type: ignore[union-attr]

    def _module(self, node: fx.Node) -> nn.Module | None:
        """The module that is called with one value, if its pass is its kind's."""
        if node.op != "call_module" or len(node.args) != 1 or node.kwargs:
            return None
        module = self.modules[str(node.target)]
        if type(module) is nn.Sequential:  # what a folded norm layer ended in
            kinds = [child for child in module if type(child) is not nn.Identity]
            module = kinds[0] if len(kinds) == 1 else module
        return None if "forward" in vars(module) else module

    def _rule(self, node: fx.Node) -> Operation | None:
        told = self._told(node.args)
        if not told or not isinstance(told[0], Place):
            return None
        if node.op == "call_module":
            return self._rule_of_module(self._module(node))
        return self._rule_of_function(node, told[1:])

    def _rule_of_module(self, module: nn.Module | None) -> Operation | None:
        function = getattr(type(module), "function", None)
        if type(module) is nn.Conv2d:
            usual = module.padding_mode == "zeros" and not isinstance(module.padding, str)
            return operations.convolution(module) if usual else None
        if type(module) is nn.ReLU:
            return operations.rectifier()
        if type(module) is nn.Linear:
            return operations.linear(module)
        if type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1):
            return operations.flat()
        return operations.written(function) if _is_laid_out(function) else None

    def _rule_of_function(self, node: fx.Node, rest: tuple[Any, ...]) -> Operation | None:
        what: Any = node.target
        what = IN_PLACE.get(what, what)
        if what in _RECTIFIERS and not rest and node.kwargs.keys() <= {"inplace"}:
            return operations.rectifier()
        if node.kwargs:
            return None
        if what in (torch.flatten, "flatten") and rest == (1,):
            return operations.flat()
        if what in _SUMS and len(rest) == 1 and isinstance(rest[0], Place):
            return operations.total()
        if what in _SIGNS and isinstance(rest[0], (Held, int, float)):
            return operations.arithmetic(_SIGNS[what], rest[0])
        function, constant = getattr(what, "function", None), not any(map(_stands, rest))
        return operations.written(function, *rest) if _is_laid_out(function) and constant else None

    def _spare(self, node: fx.Node) -> bool:
        """Whether a node may overwrite the first thing that it is given."""
        maker = self.makers.get(self._told(node.args[0]).number)
        return self._alone(node) and maker is not None and maker.spares


def _stands(told: Any) -> bool:
    return isinstance(told, (Place, Held))


def _is_laid_out(function: Any) -> TypeGuard[type[LaidOut]]:
    return isinstance(function, type) and issubclass(function, LaidOut)
