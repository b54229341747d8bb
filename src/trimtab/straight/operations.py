"""What a straight line is made of: operations, each with the gradient for what it was given.

An operation is Python in a few words: {a} and {b} are given, {y} is made of them, {g} is the gradient for
what was made; {kept} is what it keeps beside them, in a {new} place; any other name is a constant of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from trimtab.layout import LaidOut


class Unclear(Exception):
    """A network of which a trace does not tell what it does."""


@dataclass(frozen=True)
class Operation:
    ahead: str
    back: tuple[str, ...]
    """A gradient for each value given."""
    constants: Mapping[str, Any] = field(default_factory=dict)
    overwriting: str = ""
    """As `ahead`, in the memory of {a}."""
    back_overwriting: str = ""
    """As `back`, in the memory of {g}."""
    fresh: bool = True
    """Whether its gradients are nobody else's memory."""
    spares: bool = True
    """Whether what it makes is nobody else's memory, and no gradient needs it."""
    same_shape: bool = False
    """Whether its gradients are right only if all that it is given has the shape of what it makes."""
    many: bool = False
    """Whether it makes any number of values, and its gradients, where there are any, come all at once."""


@dataclass(frozen=True)
class Held:
    """Stands for what a module holds, which may be moved or converted after it was traced."""

    owner: nn.Module
    name: str


def value(constant: Any) -> Any:
    """A constant, or what a module holds now."""
    return getattr(constant.owner, constant.name) if isinstance(constant, Held) else constant


def convolution(conv: nn.Conv2d) -> Operation:
    how = (conv.stride, conv.padding, conv.dilation)
    constants = {
        "weight": Held(conv, "weight"),
        "bias": Held(conv, "bias"),
        "how": (*how, conv.groups),
        "back": (*how, False, (0, 0), conv.groups, (True, False, False)),
    }
    slope = "convolution_backward({g}, {a}, {weight}, None, *{back})[0]"
    return Operation("conv2d({a}, {weight}, {bias}, *{how})", (slope,), constants)


def rectifier() -> Operation:
    return Operation(
        "{a}.relu()",
        ("threshold_backward({g}, {y}, 0)",),
        overwriting="{a}.relu_()",
        back_overwriting="threshold_backward_into({g}, {y}, 0, grad_input={g})",
        spares=False,
    )


def total() -> Operation:
    return Operation("{a} + {b}", ("{g}", "{g}"), overwriting="{a}.add_({b})", fresh=False, same_shape=True)


def arithmetic(sign: str, constant: Any) -> Operation:
    """x + c, x - c, x * c or x / c."""
    slope = "{g}" if sign in "+-" else f"{{g}} {sign} {{c}}"
    ahead, fresh = f"{{a}} {sign} {{c}}", sign in "*/"
    return Operation(ahead, (slope,), {"c": constant}, fresh=fresh, same_shape=True)


def linear(layer: nn.Linear) -> Operation:
    constants = {"weight": Held(layer, "weight"), "bias": Held(layer, "bias")}
    return Operation("linear({a}, {weight}, {bias})", ("{g} @ {weight}",), constants)


def flat() -> Operation:
    return Operation("{a}.flatten(1)", ("{g}.reshape({a}.shape)",), fresh=False, spares=False)


def written(function: type[LaidOut], *rest: Any) -> Operation:
    """A function of a feature and constants that brings a gradient of its own."""
    return Operation(
        "{function}.forward({new}, {a}, *{rest})",
        ("first({function}.backward({kept}, {g}))",),
        {"function": function, "rest": rest},
    )


@dataclass(frozen=True)
class Row:
    """Calls in a row that have no rule: they are left to autograd."""

    calls: tuple[Call, ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    overwritten: frozenset[int]
    """What it makes and the network overwrites later: that must not be memory of what it was given."""

    def operation(self) -> Operation:
        ahead, back = "{row}.ahead({new}, {given})", "{row}.back({kept}, {g})"
        return Operation(ahead, (back,), {"row": self}, fresh=False, spares=False, many=True)

    def ahead(self, kept: Kept, *given: Any) -> list[Any]:
        with torch.set_grad_enabled(kept.graded):
            leaves = [_leaf(one) if kept.graded else one for one in given]
            values = dict(zip(self.reads, leaves, strict=True))
            for call in self.calls:
                values[call.writes] = call(values)
        made = [values[i] for i in self.writes]
        memory = {_memory(one) for one in given if isinstance(one, Tensor)}
        if not all(map(_crosses, made)) or memory & {_memory(values[i]) for i in self.overwritten}:
            raise Unclear("a network that hands on more than tensors, or overwrites what it views")
        if kept.graded:
            kept.leaves, kept.made = leaves, made
        return [one.detach() if isinstance(one, Tensor) else one for one in made]

    def back(self, kept: Kept, *slopes: Tensor | None) -> list[Tensor | None]:
        ends = [(y, g) for y, g in zip(kept.made, slopes, strict=True) if g is not None and _graded(y)]
        asked = [one for one in kept.leaves if _graded(one)]
        if not ends or not asked:
            return [torch.zeros_like(one) if _graded(one) else None for one in kept.leaves]
        results, along = zip(*ends, strict=True)
        # A pass may be asked for its gradient twice; what it keeps goes with it.
        how = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
        found = iter(torch.autograd.grad(results, asked, along, **how))
        return [next(found) if _graded(one) else None for one in kept.leaves]


@dataclass(frozen=True)
class Call:
    """A module, a function or a method that is called with values, constants and what modules hold."""

    target: Callable[..., Any] | str
    args: Any
    kwargs: Any
    writes: int

    def __call__(self, values: dict[int, Any]) -> Any:
        args, kwargs = (_filled(told, values) for told in (self.args, self.kwargs))
        if isinstance(self.target, str):
            return getattr(args[0], self.target)(*args[1:], **kwargs)
        return self.target(*args, **kwargs)


class Kept:
    """What a pass keeps of an operation for its gradient, if it is to be `graded`."""

    leaves: list[Any]
    made: list[Any]

    def __init__(self, graded: bool) -> None:
        self.graded = graded


@dataclass(frozen=True)
class Place:
    """Stands for a value, by its number."""

    number: int


def _filled(told: Any, values: dict[int, Any]) -> Any:
    """Arguments, with what their stand-ins stand for."""
    return fx.node.map_aggregate(
        told, lambda one: values[one.number] if isinstance(one, Place) else value(one)
    )


def first(found: Any) -> Any:
    return found[0] if isinstance(found, tuple) else found


def plus(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """Gradients from rows, where what is no tensor has none."""
    return b if a is None else a if b is None else a + b


def same_shape(*values: Tensor) -> None:
    if len({value.shape for value in values}) > 1:
        raise Unclear("a network that spreads a feature over another")


def _crosses(value: Any) -> bool:
    """Whether a row may hand this on: numbers, and tensors whose gradients are theirs."""
    if isinstance(value, Tensor):
        return type(value) in (Tensor, nn.Parameter) and not value.is_complex()
    return value is None or isinstance(value, (int, float, torch.Size, torch.dtype, torch.device))


def _memory(value: Tensor) -> int:
    return value.untyped_storage().data_ptr()


def _leaf(given: Any) -> Any:
    floats = isinstance(given, Tensor) and given.is_floating_point()
    return given.detach().requires_grad_(True) if floats else given


def _graded(given: Any) -> bool:
    return isinstance(given, Tensor) and given.requires_grad
