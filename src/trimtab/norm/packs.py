"""Statistics packs: one branch of a model's normalization layers as a file of kilobytes.

    pack = norm.gather(model, loader)            statistics of these images, with element counts
    norm.save_pack(model, "fog.safetensors")     what a branch holds now (or a `Pack`), written as one file
    norm.load_pack(model, "fog.safetensors")     swapped in place: no reallocation, no recompilation

For every layer a pack holds gamma, beta, mean, variance and the number of elements N*H*W they were taken
over; it also holds a digest of all other weights. A pack for another architecture is refused; one for other
weights too, unless `force=True`: statistics describe the activations of one network only.

The variance is the unbiased one, as torch stores it. `gather` normalizes with running statistics by
default, so every layer receives the same inputs as in any other pass over any other part of the data:
packs of shards then merge exactly (`norm.merge`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from trimtab.io import atomic_write
from trimtab.norm.layer import Holder
from trimtab.norm.setting import MAIN, Moments
from trimtab.norm.state import gather_moments
from trimtab.norm.steering import innermost, steered_layers
from trimtab.types import BadInput

Forward = Callable[[nn.Module, Any], Any]
"""Runs a model on one item of a loader; what it returns is ignored."""

FORMAT = 1
_KEY = "trimtab-pack"
_TENSORS = ("weight", "bias", "mean", "var")


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


@dataclass(frozen=True, eq=False)
class Pack:
    """One branch of a model's normalization layers."""

    layers: Mapping[str, LayerStatistics]
    """By layer name, relative to the innermost module (see `norm.layers`)."""
    weights: str
    """Digest of all other weights of the model; empty if the pack merges several networks."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """What the statistics were estimated on, in your words: plain JSON values."""

    @property
    def architecture(self) -> str:
        """Digest of layer names and channels: packs that differ in it cannot be exchanged."""
        shapes = [(name, len(layer.mean), layer.weight is None) for name, layer in self.layers.items()]
        return hashlib.sha256(json.dumps(shapes).encode()).hexdigest()

    def __repr__(self) -> str:
        channels = sum(len(layer.mean) for layer in self.layers.values())
        about = "".join(f", {name}={value!r}" for name, value in self.provenance.items())
        return f"Pack({len(self.layers)} layers, {channels} channels{about})"


def pack(model: nn.Module, branch: str = MAIN, provenance: Mapping[str, Any] | None = None) -> Pack:
    """Copy what a branch of a steered model holds now.

    Args:
        model: A steered model.
        branch: The branch to copy.
        provenance: Plain JSON values that describe the data the statistics were estimated on.
    """
    return Pack(
        {
            name: LayerStatistics(
                None if gamma is None else gamma.detach().cpu().clone(),
                None if beta is None else beta.detach().cpu().clone(),
                statistics.running_mean.cpu().clone(),
                statistics.running_var.cpu().clone(),
                elements=0,
            )
            for name, gamma, beta, statistics in _holders(model, branch)
        },
        weights_digest(model),
        dict(provenance or {}),
    )


def gather(
    model: nn.Module,
    batches: Iterable[Any],
    forward: Forward | None = None,
    *,
    branch: str = MAIN,
    source: str = "running",
    provenance: Mapping[str, Any] | None = None,
) -> Pack:
    """Take the statistics of a data set, pooled over all batches, without changing the model.

    Args:
        model: A steered model, which runs in eval mode.
        batches: Image tensors, tuples that start with one, or whatever `forward` takes.
        forward: `forward(model, batch)` for models that do not map one tensor to one output.
        branch: The branch that normalizes, and whose gamma and beta the pack gets.
        source: `"running"`, so that packs of shards merge exactly, or `"batch"`, as in training.
        provenance: Plain JSON values that describe the data.
    """
    now = pack(model, branch, provenance)
    seen = gather_moments(model, batches, forward, branch=branch, source=source)
    missing = now.layers.keys() - seen.keys()
    if missing:
        raise BadInput(f"{sorted(missing)[0]} did not run on these batches; give a forward that runs it")
    return Pack(
        {name: _with(layer, seen[name]) for name, layer in now.layers.items()}, now.weights, now.provenance
    )


def _with(layer: LayerStatistics, seen: Moments) -> LayerStatistics:
    unbiased = seen.var * (seen.n / max(seen.n - 1, 1))
    return layer._replace(mean=seen.mean.cpu().clone(), var=unbiased.cpu().clone(), elements=seen.n)


def save_pack(
    source: nn.Module | Pack,
    path: str | Path,
    branch: str = MAIN,
    provenance: Mapping[str, Any] | None = None,
) -> Path:
    """Write a pack, or a branch of a steered model, as one safetensors file.

    Args:
        source: A steered model or a `Pack`.
        path: The file; it is replaced whole or not at all.
        branch: The model's branch (a `Pack` is one branch already).
        provenance: Added to the pack's provenance.
    """
    saved = source if isinstance(source, Pack) else pack(source, branch)
    tensors = {
        f"{name}.{half}": getattr(layer, half).contiguous()
        for name, layer in saved.layers.items()
        for half in _TENSORS
        if getattr(layer, half) is not None
    }
    header = {
        "format": FORMAT,
        "layers": {name: layer.elements for name, layer in saved.layers.items()},
        "weights": saved.weights,
        "provenance": {**saved.provenance, **(provenance or {})},
    }
    with atomic_write(Path(path)) as part:
        safetensors.torch.save_file(tensors, part, {_KEY: json.dumps(header)})
    return Path(path)


def read_pack(path: str | Path) -> Pack:
    """Read a pack from a file that `save_pack` wrote."""
    try:
        with safe_open(path, "pt") as file:
            header = json.loads((file.metadata() or {}).get(_KEY, "null"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise BadInput(f"there is no pack {path}; `trimtab pack save` writes one") from None
    except (OSError, SafetensorError) as problem:
        raise BadInput(f"{path} is not a statistics pack: {problem}") from None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise BadInput(f"{path} is not a statistics pack of format {FORMAT}; write it with norm.save_pack")
    layers = {
        name: LayerStatistics(
            tensors.get(f"{name}.weight"),
            tensors.get(f"{name}.bias"),
            tensors[f"{name}.mean"],
            tensors[f"{name}.var"],
            elements,
        )
        for name, elements in header["layers"].items()
    }
    return Pack(layers, header["weights"], header["provenance"])


@torch.no_grad()
def load_pack(
    model: nn.Module, source: Pack | str | Path, branch: str = MAIN, force: bool = False
) -> nn.Module:
    """Copy a pack into a branch of a steered model, in place, and return the model.

    No tensor is reallocated, so a compiled model is not compiled again and an optimizer keeps its state.

    Args:
        model: A steered model of the architecture that the pack was made for.
        source: A pack or its file.
        branch: The branch to overwrite; `add_branch` makes one.
        force: Accept a pack that was made for other weights.
    """
    new = source if isinstance(source, Pack) else read_pack(source)
    now = pack(model, branch)
    if now.architecture != new.architecture:
        raise BadInput(f"the pack is of another architecture: {_first_difference(now, new)}")
    if not force and new.weights != now.weights:
        raise BadInput(
            "the pack was made for other weights than this model has; its statistics describe another "
            "network's activations (force=True loads it anyway)"
        )
    for name, gamma, beta, statistics in _holders(model, branch):
        layer = new.layers[name]
        values = [
            (gamma, layer.weight),
            (beta, layer.bias),
            (statistics.running_mean, layer.mean),
            (statistics.running_var, layer.var),
        ]
        for target, value in values:
            if target is not None and value is not None:
                target.copy_(value)
    return model


def weights_digest(model: nn.Module) -> str:
    """Hash every parameter and buffer that is not part of a steered layer."""
    layers = steered_layers(model)
    prefixes = tuple(f"{name}." if name else "" for name in layers)
    content = hashlib.sha256()
    state = {key.replace("_orig_mod.", ""): value for key, value in innermost(model).state_dict().items()}
    for key in sorted(state):
        if not key.startswith(prefixes):
            value = state[key].detach().cpu().contiguous()
            content.update(f"{key} {value.dtype} {tuple(value.shape)}\n".encode())
            content.update(value.reshape(-1).view(torch.uint8).numpy().data if value.numel() else b"")
    return content.hexdigest()


def _holders(model: nn.Module, branch: str) -> Iterator[tuple[str, Tensor | None, Tensor | None, Holder]]:
    """Name, gamma, beta and the holder of the statistics of every layer that has the branch."""
    steered = steered_layers(model)
    if not any(branch in layer.branch_names for layer in steered.values()):
        known = dict.fromkeys(name for layer in steered.values() for name in layer.branch_names)
        raise BadInput(f"there is no branch {branch!r}; this model has {', '.join(known)}")
    for name, layer in steered.items():
        if branch in layer.branch_names and layer.keeps_statistics:
            affine = layer.affine_holder(branch)
            yield name, affine.weight, affine.bias, layer.statistics_holder(branch)


def _first_difference(now: Pack, new: Pack) -> str:
    for name, layer in now.layers.items():
        if name not in new.layers:
            return f"it has no layer {name!r}"
        if len(layer.mean) != len(new.layers[name].mean):
            return f"{name} has {len(layer.mean)} channels here, {len(new.layers[name].mean)} in the pack"
    extra = next((name for name in new.layers if name not in now.layers), None)
    return f"this model has no layer {extra!r}" if extra else "its layers come in another order or form"
