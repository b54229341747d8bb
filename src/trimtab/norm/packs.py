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
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.norm.layer import Holder
from trimtab.norm.pack_files import LayerStatistics, Pack, read_pack, write_pack
from trimtab.norm.setting import MAIN, Moments
from trimtab.norm.state import gather_moments
from trimtab.norm.steering import innermost, steered_layers
from trimtab.types import BadInput

Forward = Callable[[nn.Module, Any], Any]
"""Runs a model on one item of a loader; what it returns is ignored."""


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
    return write_pack(replace(saved, provenance={**saved.provenance, **(provenance or {})}), Path(path))


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
    holders = list(_holders(model, branch))
    _require_architecture(holders, new)
    if not force and not _made_for(new, model):
        raise BadInput(
            "the pack was made for other weights than this model has; its statistics describe another "
            "network's activations (force=True or --force loads it anyway)"
        )
    for name, gamma, beta, statistics in holders:
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


def _made_for(new: Pack, model: nn.Module) -> bool:
    """Whether a pack belongs to a model's weights; they are hashed again only once one of them changes."""
    now = [(key, value.data_ptr(), value._version) for key, value in _other_tensors(model)]
    if new._fits.get(model) != now:
        if new.weights != weights_digest(model):
            return False
        new._fits[model] = now
    return True


def weights_digest(model: nn.Module) -> str:
    """Hash every parameter and buffer that is not part of a steered layer."""
    content = hashlib.sha256()
    for key, tensor in sorted(_other_tensors(model), key=lambda item: item[0]):
        value = tensor.detach().cpu().contiguous()
        content.update(f"{key} {value.dtype} {tuple(value.shape)}\n".encode())
        content.update(value.reshape(-1).view(torch.uint8).numpy().data if value.numel() else b"")
    return content.hexdigest()


def _other_tensors(model: nn.Module) -> list[tuple[str, Tensor]]:
    """Every parameter and buffer of a model's state dict that is not part of a steered layer."""
    prefixes = tuple(f"{name}." if name else "" for name in steered_layers(model))
    state = innermost(model).state_dict(keep_vars=True)
    items = ((key.replace("_orig_mod.", ""), value) for key, value in state.items())
    return [(key, v) for key, v in items if isinstance(v, Tensor) and not key.startswith(prefixes)]


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


def _require_architecture(holders: list[tuple[str, Tensor | None, Tensor | None, Holder]], new: Pack) -> None:
    """Refuse a pack whose layers or channels are not those of the model."""
    for name, gamma, _, statistics in holders:
        if name not in new.layers:
            raise BadInput(f"{_OTHER} it has no layer {name!r}")
        layer, channels = new.layers[name], len(statistics.running_mean)
        if len(layer.mean) != channels:
            raise BadInput(f"{_OTHER} {name} has {channels} channels here, {len(layer.mean)} in the pack")
        if (gamma is None) != (layer.weight is None):
            raise BadInput(f"{_OTHER} {name} has gamma and beta in only one of the two")
    extra = new.layers.keys() - {name for name, *_ in holders}
    if extra:
        raise BadInput(f"{_OTHER} this model has no layer {min(extra)!r}")


_OTHER = "the pack is of another architecture:"
