"""Copies of networks, with their own parameters or with shared ones, and what a trace leaves behind."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@torch.no_grad()  # else copies of scripted parameters keep a graph to the originals
def deep_clone(net: nn.Module, memo: dict[int, Any] | None = None) -> nn.Module:
    """Return `copy.deepcopy(net, memo)`, also of a network on which a forward pass left tensors with a graph.

    `copy.deepcopy` refuses those; the copy gets their values.
    """
    memo = {} if memo is None else memo
    for value in _tensors([vars(module) for module in net.modules()], set()):
        if not value.is_leaf:
            memo[id(value)] = value.detach().clone()
    return copy.deepcopy(net, memo)


def shallow_clone(net: nn.Module) -> nn.Module:
    """Return a copy that shares the parameters; everything else is its own."""
    return deep_clone(net, {id(parameter): parameter for parameter in net.parameters()})


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


def _tensors(value: Any, seen: set[int]) -> Iterator[Tensor]:
    """Every tensor in nested containers, which may hold themselves."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict | list | tuple) and id(value) not in seen:
        seen.add(id(value))
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors(item, seen)
