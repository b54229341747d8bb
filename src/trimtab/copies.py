"""Copies of networks, made often: once for every attack, which in training means once for every step.

`copy.deepcopy` takes a millisecond for every five modules, most of it for the dozen empty dictionaries that
each of them has for hooks. Here modules are copied by hand and only what they hold goes through `deepcopy`.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

_AS_IS = (type(None), bool, int, float, complex, str, bytes)
_WAYS = ("__new__", "__deepcopy__", "__reduce_ex__", "__reduce__", "__getstate__", "__setstate__")
_HOLDERS = (dict, OrderedDict, list, set)


@torch.no_grad()  # else copies of scripted parameters remember what they were copied from
def duplicate(net: nn.Module, memo: dict[int, Any] | None = None) -> nn.Module:
    """`copy.deepcopy(net, memo)`, several times faster."""
    memo = {} if memo is None else memo
    kinds = {kind for kind in {type(module) for module in net.modules()} if _by_the_book(kind)}
    plain = [module for module in net.modules() if type(module) in kinds and not module._compiled_call_impl]
    for module in plain:
        memo[id(module)] = type(module).__new__(type(module))
    for module in reversed(plain):  # the inner ones first: a module that copies itself may look at them
        vars(memo[id(module)]).update({name: _copied(value, memo) for name, value in vars(module).items()})
    return copy.deepcopy(net, memo)


def twin(net: nn.Module) -> nn.Module:
    """A copy with the same parameters: all else is its own."""
    return duplicate(net, {id(parameter): parameter for parameter in net.parameters()})


@contextmanager
def untouched(net: nn.Module) -> Iterator[None]:
    """For tracing: on the way out every module has its attributes and buffers again, with the same values.

    A trace runs the forward pass with stand-ins for tensors, and one that keeps a feature keeps a stand-in.
    """
    held = [(module, dict(vars(module)), dict(module._buffers)) for module in net.modules()]
    values = [(one, one.clone(), one._version) for one in net.buffers() if not one.is_inference()]
    try:
        yield
    finally:
        for module, attributes, buffers in held:
            vars(module).clear()
            vars(module).update(attributes)
            module._buffers.clear()
            module._buffers.update(buffers)
        with torch.no_grad():
            for one, before, version in values:
                if one._version != version:
                    one.copy_(before)


def unhooked(module: nn.Module) -> bool:
    """Whether nobody listens to its passes, or computes its parameters."""
    hooks = ("forward_hooks", "forward_pre_hooks", "backward_hooks", "backward_pre_hooks")
    return not any(getattr(module, f"_{name}") for name in hooks) and not hasattr(module, "parametrizations")


def _by_the_book(kind: type) -> bool:
    """Whether modules of a kind leave it to torch and Python how they are copied: attribute by attribute."""
    owners = [next((base for base in kind.__mro__ if way in vars(base)), object) for way in _WAYS]
    return all(owner is object or owner.__module__.startswith("torch.nn.modules.") for owner in owners)


def _copied(value: Any, memo: dict[int, Any]) -> Any:
    if type(value) in _HOLDERS and not value:  # most of what modules hold
        return memo.setdefault(id(value), type(value)())
    if isinstance(value, _AS_IS):
        return value
    if isinstance(value, torch.Tensor) and not value.is_leaf:  # kept from a pass: deepcopy refuses it
        return memo.setdefault(id(value), value.detach().clone())
    if type(value) is tuple:
        return tuple(_copied(one, memo) for one in value)
    if type(value) in (dict, OrderedDict) and id(value) not in memo:
        kept = memo[id(value)] = type(value)()
        kept.update((copy.deepcopy(name, memo), _copied(one, memo)) for name, one in value.items())
    if type(value) is list and id(value) not in memo:  # one list may be held by several modules
        made = memo[id(value)] = []
        made.extend(_copied(one, memo) for one in value)
    return copy.deepcopy(value, memo)
