"""A fast equivalent of a frozen network: norms folded, channels last; built once per model and reused.

The copy is kept next to the model (weakly) with a signature of everything it was made from: the module
tree, modes, plain attributes, settings, and the values of parameters, buffers and other tensors. Values are
compared, not versions: writes through `.data`, and torch's own kernels, do not change a tensor's version.
The same signature of the copy shows whether a forward pass changed it; then it is built anew, so that every
call begins from the state of the model. A model with hooks, or with an attribute whose value cannot be
compared, gets a fresh copy in every call.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from types import BuiltinFunctionType, FunctionType
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn

from trimtab import norm
from trimtab._clone import HOOKS

Signature = list[Any]
"""Atoms, weak references and tensors, in a fixed order."""

_ATOMS = {type(None), bool, int, complex, str, bytes, torch.dtype, torch.device, torch.memory_format}
_OF_EVERY_MODULE = frozenset(vars(nn.Module())) - {"training"}
"""Attributes that torch keeps on every module: the signature looks at those that matter by name."""
_CHECKED = 4
"""Number of images that the folding is checked on."""
SCRIPTED = torch.jit.ScriptModule
_LARGEST = 1 << 28
"""Bytes of parameters of the largest model that is kept: building the copy of a larger one is cheap next to a
pass through it, and the memory is not."""


class _NotComparable(Exception):
    """Raised for a model that holds something whose value cannot be compared."""


@dataclass
class _Entry:
    """An accelerated copy, and what it is valid for."""

    net: nn.Module
    of_model: Signature
    of_net: Signature
    findings: Any = None
    """What the caller found out about the model, which is true as long as the entry is valid."""


_entries: WeakKeyDictionary[nn.Module, _Entry] = WeakKeyDictionary()


def recall(model: nn.Module, x: Tensor) -> tuple[nn.Module, Any] | None:
    """Return the copy that was made of a model in its present state, with the findings on it, or None.

    Args:
        model: The model in eval mode.
        x: Images (N, ...): their size is taken into account.
    """
    entry = _entries.get(model) if type(model).__hash__ is object.__hash__ else None
    if entry is None or entry.findings is None:
        return None
    try:
        signature = [*_signature(model), tuple(x.shape[1:]), str(x.device)]
    except _NotComparable:
        return None
    return (entry.net, entry.findings) if _valid(entry, signature) else None


def note(model: nn.Module, findings: Any) -> None:
    """Keep findings on a model next to its copy, if there is one.

    Args:
        model: The model, as it was just accelerated.
        findings: What `recall` returns until the model changes.
    """
    entry = _entries.get(model) if type(model).__hash__ is object.__hash__ else None
    if entry is not None:
        entry.findings = findings


def accelerate(model: nn.Module, x: Tensor, logits: Tensor | None = None) -> nn.Module:
    """Return the fastest equivalent of a frozen model on images like x.

    Args:
        model: The model in eval mode; it is not changed.
        x: Images (N, ...): their size is taken into account, and the folding is checked on the first few.
        logits: What the model returns for the first few, if that is already known.
    """
    try:
        signature = [*_signature(model), tuple(x.shape[1:]), str(x.device)]
    except _NotComparable:
        return _build(model, x, logits)
    entry = _entries.get(model)
    if entry is not None and _valid(entry, signature):
        return entry.net
    net = _build(model, x, logits)
    _remember(model, signature, net)
    return net


def channels_last(net: nn.Module) -> nn.Module:
    """Convert the network in place to channels last, unless it has tensors of volumes (5 axes)."""
    if any(tensor.dim() == 5 for tensor in (*net.parameters(), *net.buffers())):
        return net
    return net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def _build(model: nn.Module, x: Tensor, logits: Tensor | None) -> nn.Module:
    return channels_last(norm.fold(model, x[: _CHECKED if logits is None else len(logits)], logits))


def _remember(model: nn.Module, signature: Signature, net: nn.Module) -> None:
    _entries.pop(model, None)
    modules = {id(module) for module in model.modules()}
    if any(map(modules.__contains__, map(id, net.modules()))):  # an entry must not keep its model alive
        return
    try:
        _entries[model] = _Entry(net, _snapshot(signature), _snapshot(_signature(net, copy=True)))
    except _NotComparable:
        return


def _valid(entry: _Entry, signature: Signature) -> bool:
    try:
        return _equal(entry.of_model, signature) and _equal(entry.of_net, _signature(entry.net, copy=True))
    except _NotComparable:
        return False


def _signature(net: nn.Module, copy: bool = False) -> Signature:
    """Return all that a frozen copy depends on. Of a `copy`, parameters count by identity and version."""
    if type(net).__hash__ is not object.__hash__:
        raise _NotComparable
    modules = list(net.modules())
    index = {id(module): i for i, module in enumerate(modules)}
    parts: Signature = []
    size = 0
    for module in modules:
        state = vars(module)
        if any(map(state.get, HOOKS)) or module._compiled_call_impl or isinstance(module, SCRIPTED):
            raise _NotComparable
        parts.append(ref(type(module)))
        for name, child in module._modules.items():
            parts += name, child if child is None else index[id(child)]
        for name, parameter in module._parameters.items():
            if copy and parameter is not None:
                parts += name, id(parameter), parameter._version
            else:
                _add(name, parameter, parts)
                size += 0 if parameter is None else parameter.nbytes
        for name, buffer in module._buffers.items():
            _add(name, buffer, parts)
        for name, value in state.items():
            if name not in _OF_EVERY_MODULE:
                _add(name, value, parts)
    if size > _LARGEST:
        raise _NotComparable
    return parts


def _add(name: Any, value: Any, parts: Signature) -> None:
    """Append a name and what its value consists of."""
    kind = type(value)
    parts += name, kind
    if kind in _ATOMS:
        parts.append(value)
    elif kind is float:
        parts.append(value.hex())  # which differs for 0 and -0, and is equal for NaN
    elif kind in (Tensor, nn.Parameter, nn.Buffer):
        if value.layout is not torch.strided or value.is_meta or value.is_quantized:
            raise _NotComparable
        parts.append(value)
    elif kind is list or isinstance(value, tuple):
        parts.append(len(value))
        for item in value:
            _add(None, item, parts)
    elif kind.__name__ in ("dict", "OrderedDict") and isinstance(value, dict):
        parts.append(len(value))
        for key, item in value.items():
            if type(key) not in _ATOMS:
                raise _NotComparable
            _add(key, item, parts)
    elif is_dataclass(kind):
        for field in fields(value):
            _add(field.name, getattr(value, field.name), parts)
    elif isinstance(value, type | BuiltinFunctionType) or (kind is FunctionType and not value.__closure__):
        parts.append(ref(value))
    else:
        raise _NotComparable


def _snapshot(signature: Signature) -> Signature:
    return [part.detach().clone() if isinstance(part, Tensor) else part for part in signature]


def _equal(before: Signature, now: Signature) -> bool:
    if len(before) != len(now):
        return False
    for a, b in zip(before, now, strict=True):
        if isinstance(a, Tensor):
            same = isinstance(b, Tensor) and a.dtype == b.dtype and a.device == b.device
            if not same or a.shape != b.shape or not torch.equal(a, b):
                return False
        elif isinstance(b, Tensor) or a != b:
            return False
    return True
