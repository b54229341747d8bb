"""Copies of networks: as `copy.deepcopy` makes them, several times faster, or with shared parameters.

`copy.deepcopy` takes a millisecond for every five modules, most of it for the dozen empty dictionaries that
each module has for hooks. Here modules are copied attribute by attribute; only values go through `deepcopy`.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

_IMMUTABLE = (type(None), bool, int, float, complex, str, bytes)
_COPY_METHODS = ("__new__", "__deepcopy__", "__reduce_ex__", "__reduce__", "__getstate__", "__setstate__")
_CONTAINERS = (dict, OrderedDict, list, set)
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@torch.no_grad()  # else copies of scripted parameters keep a graph to the originals
def fast_deepcopy(net: nn.Module, memo: dict[int, Any] | None = None) -> nn.Module:
    """Return `copy.deepcopy(net, memo)`, several times faster."""
    memo = {} if memo is None else memo
    modules = list(net.modules())
    types = {kind for kind in {type(module) for module in modules} if _copies_by_attribute(kind)}
    plain = [module for module in modules if type(module) in types and not module._compiled_call_impl]
    for module in plain:
        memo[id(module)] = type(module).__new__(type(module))
    for module in reversed(plain):  # inner modules first: a module with its own way to copy may read them
        vars(memo[id(module)]).update({name: _copy(value, memo) for name, value in vars(module).items()})
    return copy.deepcopy(net, memo)


def shallow_clone(net: nn.Module) -> nn.Module:
    """Return a copy that shares the parameters; everything else is its own."""
    return fast_deepcopy(net, {id(parameter): parameter for parameter in net.parameters()})


@contextmanager
def restored_attributes(net: nn.Module) -> Iterator[None]:
    """Restore every module's attributes and buffers on exit.

    A trace runs the forward pass with proxies instead of tensors; a forward pass that stores a feature on its
    module would leave a proxy there.
    """
    before = [(module, dict(vars(module)), dict(module._buffers)) for module in net.modules()]
    values = [
        (buffer, buffer.clone(), buffer._version) for buffer in net.buffers() if not buffer.is_inference()
    ]
    try:
        yield
    finally:
        for module, attributes, buffers in before:
            vars(module).clear()
            vars(module).update(attributes)
            module._buffers.clear()
            module._buffers.update(buffers)
        with torch.no_grad():
            for buffer, value, version in values:
                if buffer._version != version:
                    buffer.copy_(value)


def has_hooks(module: nn.Module) -> bool:
    """Whether hooks observe this module's passes."""
    state = vars(module)
    return any(map(state.get, HOOKS))


def is_plain(module: nn.Module) -> bool:
    """Whether no hook observes this module's passes, and no parametrization computes its parameters."""
    return not has_hooks(module) and not hasattr(module, "parametrizations")


def _copies_by_attribute(kind: type) -> bool:
    """Whether modules of a class leave copying to torch and Python, which copy attribute by attribute."""
    owners = [next((base for base in kind.__mro__ if name in vars(base)), object) for name in _COPY_METHODS]
    return all(owner is object or owner.__module__.startswith("torch.nn.modules.") for owner in owners)


def _copy(value: Any, memo: dict[int, Any]) -> Any:
    if type(value) in _CONTAINERS and not value:  # most attributes of a module
        return memo.setdefault(id(value), type(value)())
    if isinstance(value, _IMMUTABLE):
        return value
    if isinstance(value, torch.Tensor) and not value.is_leaf:  # stored by a pass: deepcopy refuses it
        return memo.setdefault(id(value), value.detach().clone())
    if type(value) is tuple:
        return tuple(_copy(item, memo) for item in value)
    if type(value) in (dict, OrderedDict) and id(value) not in memo:
        mapping = memo[id(value)] = type(value)()
        mapping.update((copy.deepcopy(name, memo), _copy(item, memo)) for name, item in value.items())
    if type(value) is list and id(value) not in memo:  # several modules may hold the same list
        items = memo[id(value)] = []
        items.extend(_copy(item, memo) for item in value)
    return copy.deepcopy(value, memo)
