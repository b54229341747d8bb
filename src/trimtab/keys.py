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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from inspect import isroutine
from pathlib import PurePath
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from trimtab.types import BadInput

_COMPILING = {"_compiled_call_impl", "_is_torch_compile", "_compile_kwargs"}
_ASIDE = {*vars(nn.Module()), *_COMPILING, "setting", "synchronised", "process_group"}
"""What a module holds that is no constant of its own: torch's book-keeping, what `use` has chosen."""
_WORDS = {"provenance", "origin", "classes"}
"""What it may hold for people."""
_KNOWN = ("builtins", "torch", "trimtab")
_OPERATORS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)
_HOOKS = ("_forward_pre_hooks", "_forward_hooks")
_MANGLED = re.compile(r"___torch_mangle_\d+\.")
_CHANCE = (torch.Generator, np.random.Generator, np.random.BitGenerator, np.random.RandomState)
_BY_KIND = (*_CHANCE, logging.Logger, PurePath, Iterator, torch.UntypedStorage, torch.TypedStorage)
"""Of these the kind is told, and not what they have drawn or noted so far, or where something lies."""
_HIDDEN = -1
"""Among the ids of what is being looked into: an object that does not show what it holds."""
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def describe(value: Any) -> Any:
    """A method as plain JSON values: its class, its version and its fields, all the way down.

    Of a class that is not ours the code is told, too (what this reads and calls is not, and needs a new
    version). Fields that do not tell what a method does, such as a path, give way to what its
    `determined_by()` returns.

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
    if isinstance(model, nn.parallel.DistributedDataParallel):
        model = model.module
    content = hashlib.sha256()
    within |= {id(module) for module in model.modules()}
    codes: dict[type, list[Any]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if "_orig_mod" in module._modules:  # torch.compile's wrapper
            continue
        kind = getattr(module, "stock_class", type(module))  # steering by itself changes nothing
        held = {at: value for at, value in vars(module).items() if not _aside(at, value, kind)}
        own = {at: _constant(value, within) for at, value in held.items()}
        if getattr(vars(module).get("rest"), "neutral", False):
            del own["rest"]
        hooks = [_constant(hook, within) for at in _HOOKS for hook in vars(module)[at].values()]
        if kind not in codes:
            codes[kind] = _code(kind, within)
        about = [f"{_name(kind)}({module.extra_repr()})", codes[kind], own, hooks]
        if isinstance(module, torch.jit.ScriptModule):
            about.append(_scripted(module))
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
    if issubclass(kind, torch.jit.ScriptModule):
        return True  # all of it is book-keeping: `_scripted` tells what it does
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
    if isinstance(value, ModuleType):
        return value.__name__
    if isinstance(value, type) or id(value) in within:
        return _name(value)
    if isinstance(value, _OPERATORS):
        return str(value)
    if isinstance(value, _BY_KIND):
        return _name(type(value))
    if isinstance(value, torch.jit.ScriptFunction):
        return _graph(value.inlined_graph)
    each = partial(_constant, within=within | {id(value)})
    if isinstance(value, fx.Graph):
        return [str(value), [each(node.target) for node in value.nodes if node.op == "call_function"]]
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
    if vars_of:
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
    if isroutine(value):
        return _name(value)
    if _HIDDEN in within:  # such objects may know each other in endless ways
        return _name(type(value))
    return [_name(type(value)), _constant(_saved(value), within | {id(value), _HIDDEN})]


def _saved(value: Any) -> list[Any]:
    """What pickle would keep of an object that does not show what it holds: packed weights, a fraction.

    Nothing of what cannot be saved, such as a lock.
    """
    try:
        maker, *kept = _listed(value.__reduce_ex__(2))
    except Exception:  # any object may refuse, and in any way
        return []
    return [_name(maker), *(list(one) if isinstance(one, Iterator) else one for one in kept)]


def _scripted(module: torch.jit.ScriptModule) -> Any:
    """What a TorchScript module does: its graph, and what this reads of its parts."""
    graph: Any
    try:
        graph = module.inlined_graph
    except (RuntimeError, AttributeError):  # a part without a forward pass of its own
        return None
    read = sorted({node.s("name") for node in graph.findAllNodes("prim::GetAttr")})
    parts: list[Any] = [part._c for part in module.modules()]
    held = [[name, part.getattr(name)] for part in parts for name in read if part.hasattr(name)]
    own = [[name, one] for name, one in held if not isinstance(one, torch.ScriptModule)]
    return [_graph(graph), _constant(own, frozenset())]


def _graph(graph: Any) -> Any:
    """A TorchScript graph, and the tensors that it holds; how often a name was used before plays no part."""
    constants = [node for node in graph.findAllNodes("prim::Constant") if "value" in node.attributeNames()]
    tensors = [_of_tensor(node.t("value")).hexdigest() for node in constants if node.kindOf("value") == "t"]
    return [_MANGLED.sub("", graph.str(False)), tensors]


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
    """What a function, or a class with all it inherits, does, and all that it calls, each once.

    What is known is known by its name. A list or dictionary of a file counts as it is at the moment.
    """
    found: list[Any] = []
    queue, met = [value], {id(value)}
    for one in queue:
        for kind in getattr(one, "__mro__", [one]):
            held = vars(kind).items() if isinstance(kind, type) else [("", kind)]
            for name, given in held if not _is_known(kind) else ():
                function = _function(given)
                if function is not None:
                    found.append(_part(function, within | met))
                    helpers = [h for h in map(_bare, _reads(function)) if _is_helper(h) and id(h) not in met]
                    queue += helpers
                    met |= {id(h) for h in helpers}
                elif _decides(given) and not name.startswith("__"):
                    found.append([name, _constant(given, within)])
    return found


def _function(value: Any) -> FunctionType | None:
    """The function that an attribute of a class is, or hides."""
    if isinstance(value, property | staticmethod | classmethod):
        value = value.fget if isinstance(value, property) else value.__func__
    return value if isinstance(value, FunctionType) else None


def _part(function: FunctionType, within: frozenset[int]) -> Any:
    """What a function does by itself, and with which values."""
    used = _used(function)
    held = [one for one in _enclosed(function) if not _is_helper(_bare(one))]
    held += [one for name, one in used if _decides(one) or (callable(one) and not _called(one, name))]
    held += [one for one in (function.__defaults__, function.__kwdefaults__) if one]
    code = _of_code(function.__code__)
    return [code, *(_constant(one, within) for one in held)] if held else code


def _reads(function: FunctionType) -> list[Any]:
    return [*_enclosed(function), *(one for _, one in _used(function))]


def _bare(value: Any) -> Any:
    """The function that a decorator such as lru_cache keeps."""
    kept = getattr(value, "__wrapped__", None) if callable(value) else None
    return kept if isinstance(kept, FunctionType) else value


def _used(function: FunctionType) -> list[tuple[str, Any]]:
    """What a function reads of its file, and of files that this imports, with the names."""
    names = dict.fromkeys(_names(function.__code__))
    places, met, found = [function.__globals__], set(), []
    for place in places:
        inside = [(name, place[name]) for name in names if name in place]
        found += inside
        for _, one in inside:
            if isinstance(one, ModuleType) and id(one) not in met and not _is_library(one):
                met.add(id(one))
                places.append(vars(one))
    return [(name, one) for name, one in found if not isinstance(one, ModuleType)]


def _is_library(module: ModuleType) -> bool:
    return module.__name__.partition(".")[0] in (*_KNOWN, "numpy", *sys.stdlib_module_names)


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
    return _is_helper(_bare(value)) or _name(value).rpartition(".")[2] == name


def _methods(kind: type) -> list[str]:
    """The code of a class, with what it inherits, without what it reads."""
    held = [one for base in kind.__mro__ if not _is_known(base) for one in vars(base).values()]
    return [_of_code(found.__code__) for one in held if (found := _function(one)) is not None]


def _of_code(code: CodeType) -> str:
    consts = [_of_const(one) for one in code.co_consts]
    told = f"{code.co_code!r} {code.co_names} {consts}"
    return hashlib.sha256(_ADDRESS.sub("", told).encode()).hexdigest()


def _of_const(value: Any) -> str:
    if isinstance(value, frozenset):  # written in an order that changes from process to process
        return str(sorted(map(repr, value)))
    return _of_code(value) if isinstance(value, CodeType) else repr(value)


def _of_tensor(tensor: Tensor) -> Any:
    held = tensor.detach().cpu()
    held = (held.dequantize() if held.is_quantized else held.to_dense()).contiguous()
    content = hashlib.sha256(f"{tensor.dtype} {tuple(held.shape)}".encode())
    content.update(held.reshape(-1).view(torch.uint8).numpy().tobytes() if held.numel() else b"")
    return content
