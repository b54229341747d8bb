"""What determines a result, as one hash: a model (weights, structure, constants, source) or a method.

A method is a frozen dataclass with an integer `version`; it is hashed by class, version and the fields that
differ from their defaults, so that an option added with a default leaves every key as it was. A default that
changes needs a new version. Paths, times, devices and batch sizes are in no key (unless the images of a batch
influence each other).

A model is hashed by its tensors, its module tree, the plain attributes of its modules, and the source files
of its own code: every file outside of installed packages that one of its classes or functions comes from,
and what these files import. Code without a file (a notebook's, `exec`'s) gets a new hash every time, so that
none of its results is reused. An object may define `__fingerprint__()`, which returns the class and the
attributes to hash.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import partial
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from trimtab.io import canonical, digest
from trimtab.runtime.source import is_installed, source_hashes
from trimtab.runtime.torchscript import script_hashes
from trimtab.types import BadInput

_COMPILED = {"_compiled_call_impl", "_is_torch_compile", "_compile_kwargs"}
_NO_CONSTANT = {*vars(nn.Module()), *_COMPILED, "process_group"}
"""Attributes that are torch's book-keeping: training mode, hooks, compiled copies, processes."""
_DESCRIPTIVE = {"provenance", "origin", "classes"}
"""Attributes that describe a network and do not change what it computes."""
_BY_TYPE = (
    *(torch.Generator, np.random.Generator, np.random.BitGenerator, np.random.RandomState),
    *(logging.Logger, PurePath, Iterator, torch.UntypedStorage, torch.TypedStorage),
)
"""Of these only the type counts: not their state, nor where a file is."""
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


# ---- methods ------------------------------------------------------------------------------------------


def describe(value: Any) -> Any:
    """Return a method as JSON values: class, version and non-default fields, all the way down.

    Where fields do not determine what a method does (a path), its `cache_key()` returns what replaces them.
    Of a class outside of installed packages the source counts, too.

    >>> from trimtab.types import L2
    >>> describe(L2("1/2"))
    {'is': 'L2', 'eps': 0.5}
    """
    if is_dataclass(value) and not isinstance(value, type):
        kind = type(value)
        about = {"is": kind.__name__} | ({"version": value.version} if hasattr(value, "version") else {})
        if not is_installed(kind.__module__):
            about["source"] = source_hashes([kind.__module__])
        compared = [field for field in fields(value) if field.compare]  # the others are caches
        given = {field.name: described for field in compared if (described := _given(value, field))}
        replaced = value.cache_key() if hasattr(value, "cache_key") else {}
        kept = {name: described[0] for name, described in given.items() if name not in replaced}
        return about | kept | {name: describe(item) for name, item in replaced.items() if item is not None}
    if isinstance(value, Mapping):
        return {str(name): describe(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [describe(item) for item in value]
    if isinstance(value, Tensor):
        return {"is": "Tensor", "digest": _of_tensor(value)}
    if isinstance(value, nn.Module):
        return {"is": "Module", "digest": of_model(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise BadInput(f"{value!r} has no fingerprint: an evaluation needs methods that are frozen dataclasses")


def _given(owner: Any, field: Field[Any]) -> list[Any]:
    """Return the description of a field, in a list; empty at its default, unless that has a version."""
    described = describe(getattr(owner, field.name))
    default = _default(field)
    same = default is not MISSING and canonical(describe(default)) == canonical(described)
    return [] if same and '"version"' not in canonical(described) else [described]


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


# ---- models -------------------------------------------------------------------------------------------


def of_model(model: nn.Module) -> str:
    """Return the hash of a model: its tensors (all branches), module tree, attributes and source."""
    return digest(_Reader().model(model))


class _Reader:
    """Turn what a model holds into JSON values, and collect the modules that its code comes from."""

    def __init__(self) -> None:
        self.code: dict[str, None] = {}
        self.open: set[int] = set()
        """The ids of the objects that are being read; inside of themselves, only their class counts."""
        self.inside_pickled = False
        """Whether an object is read as pickle does: such objects may refer to each other without end."""

    def model(self, model: nn.Module) -> Any:
        """Return the module tree, the tensors and the source of a model."""
        model = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
        self.open |= {id(module) for module in model.modules()}
        tree = [
            [_plain(name), self._module(module)]
            for name, module in model.named_modules(remove_duplicate=False)
            if "_orig_mod" not in module._modules  # torch.compile's wrapper
        ]
        tensors: dict[str, Any] = {} if isinstance(model, torch.jit.ScriptModule) else model.state_dict()
        tensors |= {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers())}
        values = sorted([_plain(name), self.value(value)] for name, value in tensors.items())
        return [tree, values, source_hashes(list(self.code))]

    def _module(self, module: nn.Module) -> Any:
        if isinstance(module, torch.jit.ScriptModule):
            return script_hashes(module)
        kind, attributes = self._known_by(module)
        attributes = {k: v for k, v in attributes.items() if k not in _NO_CONSTANT and not _describes(k, v)}
        hooks = [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]
        shown = _ADDRESS.sub("", module.extra_repr())
        return [self._class(kind), shown, self.value(attributes), [self.value(hook) for hook in hooks]]

    def value(self, value: Any) -> Any:
        """Return the JSON value of anything that a module may hold."""
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, float | complex | bytes | slice | range | torch.dtype | torch.device):
            return repr(value)
        if isinstance(value, Tensor):
            return _of_tensor(value)
        if isinstance(value, np.ndarray | np.generic):
            return [str(value.dtype), value.shape, hashlib.sha256(value.tobytes()).hexdigest()]
        if isinstance(value, _BY_TYPE):
            return _name(type(value))
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, ModuleType):
            self.code[value.__name__] = None
            return value.__name__
        if id(value) in self.open:
            return _name(type(value))
        self.open.add(id(value))
        try:
            return self._compound(value)
        finally:
            self.open.discard(id(value))

    def _compound(self, value: Any) -> Any:
        if isinstance(value, torch.jit.ScriptFunction | torch.jit.ScriptModule):
            return script_hashes(value)
        if isinstance(value, nn.Module):
            return self.model(value)
        if isinstance(value, set | frozenset):
            return sorted(canonical(self.value(item)) for item in value)
        if isinstance(value, Mapping):
            return [[self.value(name), self.value(item)] for name, item in value.items()]
        if isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        if isinstance(value, fx.Graph):
            called = [self.value(node.target) for node in value.nodes if node.op == "call_function"]
            return [_ADDRESS.sub("", str(value)), called]
        if isinstance(value, partial):
            return [self.value(item) for item in (value.func, value.args, value.keywords)]
        if isinstance(value, MethodType):
            return [self.value(value.__func__), self.value(value.__self__)]
        if isinstance(value, FunctionType):
            return self._function(value)
        if isinstance(value, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
            return str(value)
        if hasattr(value, "__qualname__"):  # a built-in function, or one that a decorator such as cache wraps
            return [_name(value), self.value(getattr(value, "__wrapped__", None))]
        kind, attributes = self._known_by(value)
        if attributes or self.inside_pickled:
            return [self._class(kind), self.value(attributes)]
        self.inside_pickled = True
        try:
            return [self._class(kind), self.value(_pickled(value))]
        finally:
            self.inside_pickled = False

    def _known_by(self, value: Any) -> tuple[type, dict[str, Any]]:
        """Return the class and the attributes of an object to hash; of a dataclass the non-default ones."""
        if hasattr(type(value), "__fingerprint__"):
            kind, attributes = value.__fingerprint__()
            return kind, attributes
        attributes = dict(getattr(value, "__dict__", {}))
        for field in fields(value) if is_dataclass(value) else ():
            default = _default(field)
            known = default is not MISSING and field.name in attributes
            if known and self.value(default) == self.value(attributes[field.name]):
                del attributes[field.name]
        return type(value), attributes

    def _class(self, kind: type) -> Any:
        """Return a class's name, its version and, if it is the user's, the values that it holds."""
        bases = [base for base in kind.__mro__ if not is_installed(base.__module__)]
        self.code |= dict.fromkeys(base.__module__ for base in kind.__mro__)
        version = getattr(kind, "version", None)
        about: list[Any] = [_name(kind), version if isinstance(version, int) else None]
        if id(kind) in self.open or not bases:
            return about
        self.open.add(id(kind))
        members = [(name, _bare(item)) for base in bases for name, item in vars(base).items()]
        members = [(name, item) for name, item in members if _counts(item, name)]
        about += [[name, self.value(item)] for name, item in members]
        self.open.discard(id(kind))
        return about

    def _function(self, function: FunctionType) -> Any:
        """Return a function's name, position, closure and defaults, and the globals that it uses."""
        module = function.__module__ or "<unknown>"
        self.code[module] = None
        if is_installed(module):
            return _name(function)
        code, scope = function.__code__, function.__globals__
        cells = [cell.cell_contents for cell in function.__closure__ or () if cell != type(cell)()]
        named = [[name, scope[name]] for name in code.co_names if name in scope and _counts(scope[name])]
        about = [cells, function.__defaults__, function.__kwdefaults__, named]
        about += [getattr(function, "__wrapped__", None)]
        return [_name(function), digest(list(code.co_positions())), self.value(about)]


def _describes(name: str, value: Any) -> bool:
    """Whether an attribute only describes: where weights come from, what classes are called."""
    listed = value if isinstance(value, list | tuple) else [value]
    return name in _DESCRIPTIVE and (
        name != "classes" or all(isinstance(item, str | None) for item in listed)
    )


def _counts(value: Any, name: str = "") -> bool:
    """Whether a value in a class or a file may differ while the source is the same."""
    plain = bool | int | float | str | bytes | list | tuple | set | frozenset | dict | slice | range
    if isinstance(value, FunctionType):
        return True
    return isinstance(value, plain | Tensor | np.ndarray | BuiltinFunctionType) and not name.startswith("__")


def _bare(value: Any) -> Any:
    """Return the function inside a property, a static method or a class method."""
    return value.fget if isinstance(value, property) else getattr(value, "__func__", value)


def _pickled(value: Any) -> Any:
    """Return what pickle would store of an object without attributes; nothing if it cannot be pickled."""
    try:
        return [list(item) if isinstance(item, Iterator) else item for item in value.__reduce_ex__(2)]
    except Exception:  # any object may refuse, and in any way
        return []


def _of_tensor(tensor: Tensor) -> str:
    value = tensor.detach().cpu()
    value = (value.dequantize() if value.is_quantized else value.to_dense()).contiguous()
    content = hashlib.sha256(f"{tensor.dtype} {tuple(value.shape)}".encode())
    content.update(value.reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b"")
    return content.hexdigest()


def _plain(name: str) -> str:
    """Return a module's name without what torch.compile puts into it."""
    return ".".join(part for part in name.split(".") if part != "_orig_mod")


def _name(value: Any) -> str:
    kind = value if hasattr(value, "__qualname__") else type(value)
    return f"{kind.__module__}.{kind.__qualname__}"
