"""Checkpoints: everything a run needs to go on, in one safetensors file that is old or new, never half.

Tensors (network, optimiser, average) are the file's body, plain state is JSON in its header, so one rename
commits both. Nothing is pickled. Chance needs no entry: it is a function of the seed and the step.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from trimtab import norm
from trimtab.models.files import digest
from trimtab.placed import placed
from trimtab.types import BadInput

_HEADER = "trimtab"


@dataclass
class Progress:
    """How far a run has come; all of it is plain values."""

    step: int = 0
    """Steps done."""
    sums: dict[str, float] = field(default_factory=dict)
    """Sums of the loss parts over the steps of this epoch."""
    best: float | None = None
    """The best validation accuracy so far, by which networks are chosen."""
    waited: int = 0
    """Validations since then."""
    metrics_bytes: int = 0
    """Length of the metrics file that belongs to this state,"""
    metrics_digest: str = ""
    """and the hash of so much of it."""
    data: str = ""
    """What the training images are known by (see `start.fingerprint`); the first checkpoints do not say."""
    recipe: str = ""
    """The recipe's digest; the first checkpoints do not say."""


def save(
    path: Path, progress: Progress, model: nn.Module, optimiser: Optimizer, average: dict[str, Tensor]
) -> None:
    """Write the state of a run; the file that was there stays until this one is whole."""
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    tensors |= {f"average.{name}": value for name, value in average.items()}
    scalars: dict[str, Any] = {}
    for index, state in optimiser.state_dict()["state"].items():
        for name, value in state.items():
            if isinstance(value, Tensor):
                tensors[f"optimiser.{index}.{name}"] = value
            elif value is not None:
                scalars[f"{index}.{name}"] = value
    _write(path, tensors, {"progress": asdict(progress), "optimiser": scalars}, _constants(model))


def save_weights(path: Path, model: nn.Module) -> None:
    """Write a network, and nothing else."""
    _write(
        path, {f"model.{name}": value for name, value in model.state_dict().items()}, {}, _constants(model)
    )


def recipe_of(path: Path) -> str:
    """The digest of the recipe that a checkpoint was made by; empty if it does not say."""
    _, header = read(path)
    return str(header["progress"].get("recipe", ""))


def load(path: Path, model: nn.Module, optimiser: Optimizer, average: dict[str, Tensor]) -> Progress:
    """Put a saved state into the run's own tensors, and say how far it had come."""
    tensors, header = read(path)
    _fill(model, tensors, path)
    with torch.no_grad():
        for name, value in average.items():
            value.copy_(tensors[f"average.{name}"])
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    for index, p in enumerate(parameters):
        prefix = f"optimiser.{index}."
        state: dict[str, Any] = {
            name.removeprefix(prefix): _laid_out(value, p)
            for name, value in tensors.items()
            if name.startswith(prefix)
        }
        dotted = f"{index}."
        state |= {k.removeprefix(dotted): v for k, v in header["optimiser"].items() if k.startswith(dotted)}
        if state:
            optimiser.state[p] = state
    return Progress(**header["progress"])


def load_weights(path: Path, model: nn.Module) -> None:
    """Put a saved network into the model, and nothing else."""
    _fill(model, read(path)[0], path)


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safe_open(path, "pt") as file:
            header = json.loads(file.metadata()[_HEADER])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
        seal = header.pop("digest", None)  # the first checkpoints had none
        if seal is not None and seal != _digest(tensors, header):
            raise ValueError
        return tensors, header
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, AttributeError, RuntimeError):
        raise BadInput(f"{path} is not a checkpoint that trimtab wrote, or it is damaged") from None


def _write(
    path: Path, tensors: dict[str, Tensor], header: dict[str, Any], may_be_infinite: Collection[str] = ()
) -> None:
    for name, t in tensors.items():
        sound = ~t.isnan() if name in may_be_infinite else t.isfinite()
        if not bool(sound.all()):
            raise NotFinite(name)
    whole = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}  # none shares memory
    sealed = {**header, "digest": _digest(whole, header)}
    with placed(path) as part:
        save_file(whole, part, metadata={_HEADER: json.dumps(sealed)})


def _digest(tensors: dict[str, Tensor], header: dict[str, Any]) -> str:
    """Of all that is in a checkpoint: a bit that changed on the disk must not go on unnoticed."""
    plain = json.dumps(header, sort_keys=True)
    return hashlib.sha256(f"{digest(tensors)} {plain}".encode()).hexdigest()


def _constants(model: nn.Module) -> set[str]:
    """Buffers that are no running statistics, such as a mask of minus infinities."""
    learnt = norm.statistics(model)
    return {f"model.{name}" for name, _ in model.named_buffers() if name not in learnt}


class NotFinite(Exception):
    """A tensor of this name holds NaN or infinity, so it was not saved."""


@torch.no_grad()
def _fill(model: nn.Module, tensors: dict[str, Tensor], path: Path) -> None:
    held = model.state_dict()  # aliases the live tensors, whose layout stays
    saved = {name.removeprefix("model."): t for name, t in tensors.items() if name.startswith("model.")}
    if held.keys() != saved.keys():
        odd = sorted(held.keys() ^ saved.keys())[0]
        raise BadInput(f"{path} was saved from another network: only one of the two has {odd!r}")
    for name, value in held.items():
        if value.shape != saved[name].shape:
            shapes = f"{tuple(saved[name].shape)} there and {tuple(value.shape)} here"
            raise BadInput(f"{path} was saved from another network: {name!r} is {shapes}")
    for name, value in held.items():
        value.copy_(saved[name])


def _laid_out(value: Tensor, like: nn.Parameter) -> Tensor:
    """A copy where the parameter is, in its memory layout if it has its shape."""
    if value.shape == like.shape:
        return torch.empty_like(like, dtype=value.dtype).copy_(value)
    return value.clone()
