"""What determines a result, as one hash: weights, data, method, version, parameters, seed, norm state.

Methods are frozen dataclasses with an integer `version`: their class, version and fields are what is hashed,
whatever their order in the file. Nothing that leaves results alone is in a key: no paths, times, devices or
batch sizes (unless the images of a batch influence each other).
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from trimtab.types import BadInput

_COMPILING = {"_compiled_call_impl", "_is_torch_compile", "_compile_kwargs"}
_ASIDE = {*vars(nn.Module()), *_COMPILING, "setting", "synchronised"}
"""What a module holds that is no constant of its own: torch's book-keeping, what `use` has chosen."""
_WORDS = {"provenance", "origin", "classes"}
"""What it may hold for people."""
_KNOWN = ("builtins", "torch", "trimtab")
_HOOKS = ("_forward_pre_hooks", "_forward_hooks")
_COMPILED = torch._dynamo.OptimizedModule
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def describe(value: Any) -> Any:
    """A method as plain JSON values: its class, its version and its fields, all the way down.

    Of a class that is not ours the code is told, too (what it calls is not, and needs a new version). Fields
    that do not tell what a method does, such as a path, give way to what its `determined_by()` returns.

    >>> from trimtab.types import L2
    >>> describe(L2("1/2"))
    {'is': 'L2', 'eps': 0.5}
    """
    if is_dataclass(value) and not isinstance(value, type):
        kind = type(value)
        version = {"version": value.version} if hasattr(value, "version") else {}
        held = {field.name: getattr(value, field.name) for field in fields(value)}
        held |= value.determined_by() if hasattr(value, "determined_by") else {}
        own = {} if _is_known(kind) else {"code": digest([_name(kind), *_methods(kind)])}
        return {"is": kind.__name__, **version, **own, **{name: describe(one) for name, one in held.items()}}
    if isinstance(value, Mapping):
        return {str(name): describe(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [describe(one) for one in value]
    if isinstance(value, Tensor):
        return {"is": "Tensor", "digest": _of_tensor(value).hexdigest()}
    if isinstance(value, nn.Module):
        return {"is": "Module", "digest": weights(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise BadInput(
        f"results of {value!r} could not be told from others: an evaluation needs methods that are frozen "
        "dataclasses"
    )


def digest(value: Any) -> str:
    """The hash of a JSON value, the same for equal values."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def weights(model: nn.Module, within: frozenset[int] = frozenset()) -> str:
    """The hash of a model: every parameter and buffer (all branches, also what is never saved), the kind of
    every module, its code if that is not torch's or ours, and what it holds, so that equal weights in another
    architecture, or under another constant, are another model. A layer counts at every place that it has.
    """
    content = hashlib.sha256()
    within |= {id(module) for module in model.modules()}
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, _COMPILED):
            continue
        kind = getattr(module, "stock_class", type(module))  # steering by itself changes nothing
        held = {at: value for at, value in vars(module).items() if not _aside(at, value, kind)}
        own = {at: _constant(value, within) for at, value in held.items()}
        if getattr(vars(module).get("rest"), "neutral", False):
            del own["rest"]
        hooks = [_constant(hook, within) for at in _HOOKS for hook in vars(module)[at].values()]
        about = [f"{_name(kind)}({module.extra_repr()})", _code(kind, within), own, hooks]
        content.update(f"{_plain(name)}:{_ADDRESS.sub('', canonical(about))}\n".encode())
    lists = (model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False))
    tensors = {_plain(name): tensor for named in lists for name, tensor in named}
    for name, tensor in sorted(tensors.items()):
        content.update(name.encode())
        content.update(_of_tensor(tensor).digest())
    return content.hexdigest()


def _plain(name: str) -> str:
    """A module's name without what torch.compile puts into it."""
    return ".".join(part for part in name.split(".") if part != "_orig_mod")


def _aside(name: str, value: Any, kind: type) -> bool:
    """Whether an attribute is no constant of its module: book-keeping, or words (others' may be indices)."""
    words = isinstance(value, str | None) or all(isinstance(one, str) for one in _listed(value))
    return name in _ASIDE or (name in _WORDS and (words or _is_known(kind)))


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else [value]


def _constant(value: Any, within: frozenset[int]) -> Any:
    """What a module holds, as JSON. Of what it is held by, or is `within` the model itself, only the kind."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)  # JSON knows no other
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Tensor):
        return _of_tensor(value).hexdigest()
    if isinstance(value, np.ndarray | np.generic):
        return [str(value.dtype), value.shape, hashlib.sha256(value.tobytes()).hexdigest()]
    if isinstance(value, torch.dtype | torch.device | torch.memory_format | complex):
        return str(value)
    if isinstance(value, type) or id(value) in within:
        return _name(value)
    each = partial(_constant, within=within | {id(value)})
    if isinstance(value, nn.Module):
        return weights(value, within)
    if isinstance(value, list | tuple):
        return [each(one) for one in value]
    if isinstance(value, set | frozenset):
        return sorted(canonical(each(one)) for one in value)
    if isinstance(value, Mapping):
        return [[each(name), each(one)] for name, one in value.items()]
    if is_dataclass(value):
        return [_name(type(value)), {one.name: each(getattr(value, one.name)) for one in fields(value)}]
    if isinstance(value, partial):
        return [each(value.func), each(value.args), each(value.keywords)]
    if isinstance(value, MethodType):
        return each(value.__func__)
    if isinstance(value, FunctionType):
        return [_name(value), _code(value, within), [each(one) for one in _enclosed(value)]]
    vars_of = getattr(value, "__dict__", None)
    if vars_of and not isinstance(value, logging.Logger):  # which decides nothing, and knows of all others
        kind = type(value)
        return [
            _name(kind),
            _code(kind, within | {id(value)}),
            {at: each(one) for at, one in vars_of.items()},
        ]
    if isinstance(value, slice | range | bytes | bytearray):
        return repr(value)
    if isinstance(value, deque):
        return [each(one) for one in value]
    return _name(value) if callable(value) else _name(type(value))


def _enclosed(function: FunctionType) -> list[Any]:
    """What a function closes over: what a decorator wraps, for one."""
    cells = [cell for cell in function.__closure__ or () if cell != CellType()]  # one may not be filled yet
    return [cell.cell_contents for cell in cells]


def _name(value: Any) -> str:
    kind = value if hasattr(value, "__qualname__") else type(value)
    return f"{kind.__module__}.{kind.__qualname__}"


def _is_known(value: Any) -> bool:
    """Whether it is Python's, torch's or ours, and so known by its name."""
    return str(getattr(value, "__module__", "builtins")).split(".")[0] in _KNOWN


def _code(value: Any, within: frozenset[int]) -> list[Any]:
    """What a function, or a class with all it inherits, does; what is known is known by its name."""
    found: list[Any] = []
    for kind in getattr(value, "__mro__", [value]):
        if not _is_known(kind):
            held = vars(kind).items() if isinstance(kind, type) else [("", kind)]
            found += [one for name, given in held if (one := _part(name, given, within)) is not None]
    return found


def _part(name: str, value: Any, within: frozenset[int]) -> Any:
    """What an attribute of a class, or a function, does or is; none if it decides nothing."""
    if isinstance(value, property | staticmethod | classmethod):
        value = value.fget if isinstance(value, property) else value.__func__
    if not isinstance(value, FunctionType):
        return [name, _constant(value, within)] if _decides(value) and not name.startswith("__") else None
    within |= {id(value)}
    used = _used(value)
    helpers = [one for one in (*_enclosed(value), *used.values()) if _is_helper(one)]
    held = [one for one in _enclosed(value) if not _is_helper(one)]
    held += [one for name, one in used.items() if _decides(one) or (callable(one) and not _called(one, name))]
    held += [one for one in (value.__defaults__, value.__kwdefaults__) if one]
    more = [_code(one, within | {id(one)}) for one in helpers if id(one) not in within]
    more += [_constant(one, within) for one in held]
    return [_of_code(value.__code__), *more] if more else _of_code(value.__code__)


def _used(function: FunctionType) -> dict[str, Any]:
    """What a function reads of its file, and of files that this imports, by name."""
    names = dict.fromkeys(_names(function.__code__))
    found = {name: function.__globals__[name] for name in names if name in function.__globals__}
    modules = [one for one in found.values() if isinstance(one, ModuleType)]
    while modules:
        module = modules.pop()
        if module.__name__.partition(".")[0] in (*_KNOWN, "numpy", *sys.stdlib_module_names):
            continue
        inside = {name: vars(module)[name] for name in names if name in vars(module) and name not in found}
        found |= inside
        modules += [one for one in inside.values() if isinstance(one, ModuleType)]
    return found


def _names(code: CodeType) -> list[str]:
    """The names that code uses, with those of lambdas and comprehensions inside it."""
    inner = [name for one in code.co_consts if isinstance(one, CodeType) for name in _names(one)]
    return [*code.co_names, *inner]


def _decides(value: Any) -> bool:
    """Whether it is a plain value, which a forward pass may depend on."""
    plain = bool | int | float | str | bytes | list | tuple | set | frozenset | dict | slice | range
    return isinstance(value, plain | Tensor | np.ndarray)


def _is_helper(value: Any) -> bool:
    """Whether it has code of its own: a function or a class that is not known by its name."""
    return isinstance(value, FunctionType | type) and not _is_known(value)


def _called(value: Any, name: str) -> bool:
    """Whether this is its own name, which the code tells already; helpers tell by their code."""
    return _is_helper(value) or _name(value).rpartition(".")[2] == name


def _methods(kind: type) -> list[str]:
    """The code of a class, with what it inherits, without what it reads."""
    held = [one for base in kind.__mro__ if not _is_known(base) for one in vars(base).values()]
    return [_of_code(one.__code__) for one in held if isinstance(one, FunctionType)]


def _of_code(code: CodeType) -> str:
    consts = [_of_const(one) for one in code.co_consts]
    told = f"{code.co_code!r} {code.co_names} {consts}"
    return hashlib.sha256(_ADDRESS.sub("", told).encode()).hexdigest()


def _of_const(value: Any) -> str:
    if isinstance(value, frozenset):  # written in an order that changes from process to process
        return str(sorted(map(repr, value)))
    return _of_code(value) if isinstance(value, CodeType) else repr(value)


def _of_tensor(tensor: Tensor) -> Any:
    held = tensor.detach().cpu().contiguous()
    content = hashlib.sha256(f"{held.dtype} {tuple(held.shape)}".encode())
    content.update(held.reshape(-1).view(torch.uint8).numpy().tobytes() if held.numel() else b"")
    return content
