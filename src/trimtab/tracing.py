"""Traces of networks, and whether they tell all that a network does.

A trace runs a forward pass with stand-ins for tensors and notes what is done to them. It does not see
everything: a switched-off gradient, an `autograd.Function` whose gradient is its own, a question that was
asked of numbers, something kept for the next pass. Where it meets one of these it is not `faithful`.
"""

from __future__ import annotations

import operator
import random
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from trimtab.copies import untouched

_APPLY = torch.autograd.Function.apply.__func__.__code__  # type: ignore[attr-defined]
_STOCK = frozenset(vars(nn.Module())) - {"_buffers", "_parameters"}
"""What torch keeps on every module, and no forward pass touches."""
_CHANCE = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)
"""From which a network may draw for itself."""
IN_PLACE = {
    operator.iadd: operator.add,
    operator.isub: operator.sub,
    operator.imul: operator.mul,
    operator.itruediv: operator.truediv,
}
"""Operators that overwrite what stands at their left, and what they compute."""


class Tracer(fx.Tracer):
    proxy_buffer_attributes = True  # so that a forward pass that reads statistics itself is noticed

    def __init__(self) -> None:
        super().__init__()
        self.faithful = True
        self.modes = _modes()

    def attempt(self, model: nn.Module) -> fx.Graph | None:
        """The graph of the model; none if it cannot be traced."""
        held = [(module, _held(module)) for module in model.modules()]
        self.faithful &= not any(isinstance(one, _CHANCE) for _, own in held for one, _ in own.values())
        # A trace begins at the forward pass of the model's kind.
        self.faithful &= "forward" not in vars(model) and type(model).__call__ is nn.Module.__call__
        try:
            with untouched(model):
                graph = self.trace(model)
                self.faithful &= all(_keeps_only_features(*one) for one in held)
                return graph
        except Exception:  # tracing runs the user's own forward pass, which may raise anything at all
            return None

    def create_node(self, *told: Any, **how: Any) -> fx.Node:
        self.faithful &= _modes() == self.modes and not _in_own_function()
        return super().create_node(*told, **how)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _StandIn(node, self)

    def to_bool(self, obj: fx.Proxy) -> bool:
        self.faithful = False  # the answer is an exception, which a forward pass may catch
        return super().to_bool(obj)


class _StandIn(fx.Proxy):
    """A proxy that does not take `a += b` for `a + b`, and notices when it is asked for a number."""

    tracer: Tracer

    def __float__(self) -> float:
        self.tracer.faithful = False
        raise TypeError("a trace knows no numbers")

    __int__ = __index__ = __float__


def _in_place(how: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda self, other: self.tracer.create_proxy("call_function", how, (self, other), {})


for _how in IN_PLACE:
    setattr(_StandIn, f"__{_how.__name__}__", _in_place(_how))


def _modes() -> tuple[bool, ...]:
    narrow = (torch.is_autocast_enabled(device) for device in ("cpu", "cuda"))
    return (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), *narrow)


def _in_own_function() -> bool:
    """Whether an `autograd.Function` is running, whose gradient a trace of its forward pass does not know."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code is not Tracer.attempt.__code__:
        if frame.f_code is _APPLY:
            return True
        frame = frame.f_back
    return False


def _held(module: nn.Module) -> dict[str, tuple[Any, Any]]:
    """What a module holds, and what is in it."""
    return {name: (held, _inside(held)) for name, held in vars(module).items() if name not in _STOCK}


def _inside(held: Any) -> Any:
    values = held.items() if isinstance(held, dict) else held if isinstance(held, (list, set)) else ()
    return [
        (id(one[0]), id(one[1])) if isinstance(one, tuple) and len(one) == 2 else id(one) for one in values
    ]


def _keeps_only_features(module: nn.Module, before: dict[str, tuple[Any, Any]]) -> bool:
    """Whether nothing that a module holds was changed, but by a feature that it keeps."""
    nothing = (None, None)
    return all(
        isinstance(held, fx.Proxy) or (before.get(name, nothing)[0] is held and before[name][1] == inside)
        for name, (held, inside) in _held(module).items()
    )
