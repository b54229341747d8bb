"""Statistics packs: one branch of a model's normalization layers as a file of kilobytes.

    pack = norm.gather(model, loader)            statistics of these images, with element counts
    norm.save_pack(model, "fog.safetensors")     what a branch holds now (or a `Pack`), written as one file
    norm.load_pack(model, "fog.safetensors")     swapped in place: no reallocation, no recompilation

For every layer a pack holds gamma, beta, mean, variance and the number of elements N*H*W they were taken
over; it also holds a digest of all other weights. A pack for another architecture is refused; one for other
weights too, unless `force=True`: statistics describe the activations of one network only.

The variance is the unbiased one, as torch stores it. `gather` normalizes each batch by its own statistics, as
training does, so that the statistics of all layers fit together once they are loaded. Packs of the same
batches, wherever they were gathered, merge exactly (`norm.merge`).

With `source="running"` every layer receives its inputs as in evaluation: packs of shards merge exactly
however the data are cut into batches. Loaded all at once they change each other's inputs, and deep networks
lose most of their accuracy: gather and load again, at most as many times as the network has such layers in a
row, until the statistics no longer change (`docs/results/statistics.md`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.norm.pack_files import LayerStatistics, Pack, read_pack, state_digest, write_pack
from trimtab.norm.setting import MAIN, Moments
from trimtab.norm.state import gather_moments
from trimtab.norm.steering import innermost, require_branch, steered_layers
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
    layers = {name: layer.map(_copied) for name, layer in _live(model, branch).items()}
    return Pack(layers, weights_digest(model), dict(provenance or {}))


def gather(
    model: nn.Module,
    batches: Iterable[Any],
    forward: Forward | None = None,
    *,
    branch: str = MAIN,
    source: str = "batch",
    provenance: Mapping[str, Any] | None = None,
) -> Pack:
    """Take the statistics of a data set, pooled over all batches, without changing the model.

    Args:
        model: A steered model, which runs in eval mode.
        batches: Image tensors, tuples that start with one, or whatever `forward` takes.
        forward: `forward(model, batch)` for models that do not map one tensor to one output.
        branch: The branch that normalizes, and whose gamma and beta the pack gets.
        source: `"batch"`, as in training, or `"running"`, as in evaluation; written to the provenance.
        provenance: Plain JSON values that describe the data.
    """
    now = pack(model, branch, {"source": source, **(provenance or {})})
    seen = gather_moments(model, batches, forward, branch=branch, source=source)
    missing = now.layers.keys() - seen.keys()
    if missing:
        raise BadInput(f"{sorted(missing)[0]} did not run on these batches; give a forward that runs it")
    return Pack(
        {name: _with(layer, seen[name]) for name, layer in now.layers.items()}, now.weights, now.provenance
    )


def _with(layer: LayerStatistics, seen: Moments) -> LayerStatistics:
    return layer._replace(mean=seen.mean.to(layer.mean), var=seen.unbiased.to(layer.var), elements=seen.n)


def _copied(value: Tensor) -> Tensor:
    return value.detach().cpu().clone()


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
    live = _live(model, branch)
    _require_architecture(live, new)
    if not force and not _made_for(new, model):
        raise BadInput(
            "the pack was made for other weights than this model has; its statistics describe another "
            "network's activations (force=True or --force loads it anyway)"
        )
    for name, layer in live.items():
        for target, value in zip(layer.halves, new.layers[name].halves, strict=True):
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
    return state_digest(dict(_other_tensors(model)))


def _other_tensors(model: nn.Module) -> list[tuple[str, Tensor]]:
    """Every parameter and buffer of a model's state dict that is not part of a steered layer."""
    prefixes = tuple(f"{name}." if name else "" for name in steered_layers(model))
    state = innermost(model).state_dict(keep_vars=True)
    items = ((key.replace("_orig_mod.", ""), value) for key, value in state.items())
    return [(key, v) for key, v in items if isinstance(v, Tensor) and not key.startswith(prefixes)]


def _live(model: nn.Module, branch: str) -> dict[str, LayerStatistics]:
    """The model's own tensors, by layer, of every layer that has the branch."""
    steered = steered_layers(model)
    require_branch(steered, branch)
    live = {}
    for name, layer in steered.items():
        if branch in layer.branch_names and layer.keeps_statistics:
            affine, statistics = layer.affine_holder(branch), layer.statistics_holder(branch)
            mean, var = statistics.running_mean, statistics.running_var
            live[name] = LayerStatistics(affine.weight, affine.bias, mean, var, elements=0)
    return live


def _require_architecture(live: dict[str, LayerStatistics], new: Pack) -> None:
    """Refuse a pack whose layers or channels are not those of the model."""
    for name, layer in live.items():
        if name not in new.layers:
            raise BadInput(f"{_OTHER} it has no layer {name!r}")
        other, channels = new.layers[name], len(layer.mean)
        if len(other.mean) != channels:
            raise BadInput(f"{_OTHER} {name} has {channels} channels here, {len(other.mean)} in the pack")
        if (layer.weight is None) != (other.weight is None):
            raise BadInput(f"{_OTHER} {name} has gamma and beta in only one of the two")
    if extra := new.layers.keys() - live.keys():
        raise BadInput(f"{_OTHER} this model has no layer {min(extra)!r}")


_OTHER = "the pack is of another architecture:"
