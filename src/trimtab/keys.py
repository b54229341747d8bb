"""What determines a result, as one hash: weights, data, method, version, parameters, seed, norm state.

Methods are frozen dataclasses with an integer `version`: their class, version and fields are what is hashed,
whatever their order in the file. Nothing that leaves results alone is in a key: no paths, times, devices or
batch sizes (unless the images of a batch influence each other).
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.types import BadInput

_ASIDE = {*vars(nn.Module()), "provenance", "origin", "classes", "setting"}
"""What a module holds that is no constant of its own: torch's book-keeping, words, what `use` has chosen."""
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def describe(value: Any) -> Any:
    """A method as plain JSON values: its class, its version and its fields, all the way down.

    >>> from trimtab.types import L2
    >>> describe(L2("1/2"))
    {'is': 'L2', 'eps': 0.5}
    """
    if is_dataclass(value) and not isinstance(value, type):
        version = {"version": value.version} if hasattr(value, "version") else {}
        held = {field.name: describe(getattr(value, field.name)) for field in fields(value)}
        return {"is": type(value).__name__, **version, **held}
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
        "dataclasses with an integer `version`"
    )


def digest(value: Any) -> str:
    """The hash of a JSON value, the same for equal values."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def weights(model: nn.Module) -> str:
    """The hash of a model: every parameter and buffer (all branches, also what is never saved), the kind of
    every module and the plain values it holds, so that equal weights in another architecture, or under
    another constant, are another model.
    """
    content = hashlib.sha256()
    for name, module in model.named_modules():
        kind = f"{type(module).__module__}.{type(module).__qualname__}({module.extra_repr()})"
        own = {at: value for at, value in vars(module).items() if at not in _ASIDE and _plain(value)}
        content.update(f"{name}:{_ADDRESS.sub('', kind)} {canonical(describe(own))}\n".encode())
    tensors = [*model.named_parameters(), *model.named_buffers()]
    for name, tensor in sorted(tensors, key=lambda item: item[0]):
        content.update(name.encode())
        content.update(_of_tensor(tensor).digest())
    return content.hexdigest()


def _plain(value: Any) -> bool:
    """Whether a value that a module holds is a constant, or made of constants."""
    if isinstance(value, float):
        return math.isfinite(value)  # JSON knows no other
    if isinstance(value, list | tuple):
        return all(map(_plain, value))
    if isinstance(value, Mapping):
        return all(map(_plain, value.values()))
    if is_dataclass(value) and not isinstance(value, type):
        return all(_plain(getattr(value, field.name)) for field in fields(value))
    return value is None or isinstance(value, bool | int | str | Tensor)


def _of_tensor(tensor: Tensor) -> Any:
    held = tensor.detach().cpu().contiguous()
    content = hashlib.sha256(f"{held.dtype} {tuple(held.shape)}".encode())
    content.update(held.reshape(-1).view(torch.uint8).numpy().tobytes() if held.numel() else b"")
    return content
