"""A statistics pack as a value and as a file.

The file is safetensors: the tensors of every layer by name, and in the header how many elements they were
taken over, the digest of the weights they belong to, and where they come from. It may come from anyone:
nothing is unpickled, and what does not fit is refused in one sentence before a model sees it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from trimtab.io import atomic_write
from trimtab.types import BadInput

FORMAT = 1
_KEY = "trimtab-pack"
HALVES = ("weight", "bias", "mean", "var")
"""The tensors of a layer in a pack."""


class LayerStatistics(NamedTuple):
    """Parameters and running statistics of one branch of one layer."""

    weight: Tensor | None
    """Gamma; None where the layer has none."""
    bias: Tensor | None
    """Beta; None where the layer has none."""
    mean: Tensor
    var: Tensor
    """Unbiased, as torch stores it."""
    elements: int
    """Elements per channel (N*H*W) that mean and variance were taken over; 0 where it is not known."""

    @property
    def halves(self) -> tuple[Tensor | None, ...]:
        """The tensors, in the order of `HALVES`."""
        return self[:4]

    def map(self, change: Callable[[Tensor], Tensor]) -> LayerStatistics:
        """Apply a function to every tensor."""
        weight, bias = (None if value is None else change(value) for value in (self.weight, self.bias))
        return LayerStatistics(weight, bias, change(self.mean), change(self.var), self.elements)


@dataclass(frozen=True, eq=False)
class Pack:
    """One branch of a model's normalization layers."""

    layers: Mapping[str, LayerStatistics]
    """By layer name, relative to the innermost module (see `norm.layers`)."""
    weights: str
    """Digest of all other weights of the model; empty if the pack merges several networks."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """What the statistics were estimated on, in your words: plain JSON values."""
    _fits: WeakKeyDictionary[nn.Module, list[Any]] = field(default_factory=WeakKeyDictionary, repr=False)
    """Models whose weights were compared, and the versions of their tensors then."""

    def __reduce__(self) -> Any:
        return Pack, (self.layers, self.weights, self.provenance)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All tensors by their name in the file, `<layer>.weight`, `.bias`, `.mean` and `.var`."""
        return {
            f"{name}.{half}": value
            for name, layer in self.layers.items()
            for half, value in zip(HALVES, layer.halves, strict=True)
            if value is not None
        }

    @property
    def architecture(self) -> str:
        """Digest of layer names and channels: packs that differ in it cannot be exchanged."""
        shapes = [
            (name, len(layer.mean), layer.weight is None) for name, layer in sorted(self.layers.items())
        ]
        return hashlib.sha256(json.dumps(shapes).encode()).hexdigest()

    def __repr__(self) -> str:
        channels = sum(len(layer.mean) for layer in self.layers.values())
        about = "".join(f", {name}={value!r}" for name, value in self.provenance.items())
        return f"Pack({len(self.layers)} layers, {channels} channels{about})"


def state_digest(state: Mapping[str, Tensor]) -> str:
    """Hash names, types, shapes and values of tensors, in any order.

    Args:
        state: Tensors by name, such as a state dict.
    """
    content = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        value = tensor.detach().cpu().contiguous()
        content.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        content.update(value.reshape(-1).view(torch.uint8).numpy().data if value.numel() else b"")
    return content.hexdigest()


def write_pack(pack: Pack, path: Path) -> Path:
    """Write a pack; the file is replaced whole or not at all.

    Args:
        pack: The pack.
        path: Its file.
    """
    header = {
        "format": FORMAT,
        "layers": {name: layer.elements for name, layer in pack.layers.items()},
        "weights": pack.weights,
        "provenance": dict(pack.provenance),
    }
    tensors = {name: value.contiguous() for name, value in pack.tensors.items()}
    content = safetensors.torch.save(tensors, {_KEY: json.dumps(header)})
    with atomic_write(path) as part:  # save_file would leave a temporary file of its own when it is killed
        part.write_bytes(content)
    return path


def read_pack(path: str | Path) -> Pack:
    """Read a pack from a file that `save_pack` wrote; a damaged or hostile file is refused in one sentence.

    Args:
        path: The file.
    """
    try:
        with safe_open(path, "pt") as file:
            header = json.loads((file.metadata() or {}).get(_KEY, "null"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise BadInput(f"there is no pack {path}; `trimtab pack save` writes one") from None
    except (OSError, SafetensorError, ValueError, RecursionError, RuntimeError) as problem:
        why = " ".join(str(problem).split())[:200]
        raise BadInput(f"{path} is not a statistics pack ({why})") from None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise BadInput(f"{path} is not a statistics pack of format {FORMAT}; write it with norm.save_pack")
    counts, weights, provenance = (header.get(key) for key in ("layers", "weights", "provenance"))
    if not (isinstance(counts, dict) and isinstance(weights, str) and isinstance(provenance, dict)):
        raise BadInput(f"the description in the pack {path} is damaged; save the pack again")
    layers = {name: _layer_in(tensors, name, elements, path) for name, elements in counts.items()}
    if tensors:
        raise BadInput(f"the pack {path} holds {next(iter(tensors))!r}, which belongs to none of its layers")
    return Pack(layers, weights, provenance)


def _layer_in(tensors: dict[str, Tensor], name: str, elements: Any, path: str | Path) -> LayerStatistics:
    """Take one layer's tensors out of those of a file, or say what is wrong with them."""
    halves = {half: tensors.pop(f"{name}.{half}", None) for half in HALVES}
    mean, var = halves["mean"], halves["var"]
    if mean is None or var is None:
        raise BadInput(f"the pack {path} has no mean or no variance for {name!r}; save it again")
    if isinstance(elements, bool) or not isinstance(elements, int) or elements < 0:
        raise BadInput(f"the pack {path} counts {elements!r} elements for {name!r}; save it again")
    for half, value in halves.items():
        if value is None:
            continue
        if value.shape != (len(mean) if mean.dim() else 0,) or not value.is_floating_point():
            kind = f"found {value.dtype} of shape {tuple(value.shape)}"
            raise BadInput(f"{name}.{half} in the pack {path} is not one number per channel: {kind}")
        if not bool(value.isfinite().all()):
            raise BadInput(f"{name}.{half} in the pack {path} is not finite; gather the statistics again")
    if bool((var < 0).any()):
        raise BadInput(f"{name} in the pack {path} has a negative variance; gather the statistics again")
    return LayerStatistics(halves["weight"], halves["bias"], mean, var, elements)
