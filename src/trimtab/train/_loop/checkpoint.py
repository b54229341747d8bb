"""Checkpoints: all that a run needs to resume, in one safetensors file that is replaced atomically.

Tensors (network, optimizer, average) are in the body of the file, other state is JSON in its header, so one
rename replaces both. Nothing is pickled. Random states are not stored: they are a function of seed and step.
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
from trimtab.io import atomic_write
from trimtab.types import BadInput

_HEADER = "trimtab"


@dataclass
class TrainingState:
    """The progress of a run, as plain values."""

    step: int = 0
    """Number of steps done."""
    sums: dict[str, float] = field(default_factory=dict)
    """Sum of each loss part over the steps of this epoch."""
    best: float | None = None
    """Best validation accuracy so far, of the kind by which the network is chosen."""
    waited: int = 0
    """Number of validations since the best one."""
    metrics_bytes: int = 0
    """Length of the metrics file at this state."""
    metrics_digest: str = ""
    """Hash of the metrics file up to this length."""
    data: str = ""
    """Fingerprint of the training images (see `start.fingerprint`); empty in the oldest checkpoints."""
    recipe: str = ""
    """Digest of the recipe; empty in the oldest checkpoints."""


def save(
    path: Path, progress: TrainingState, model: nn.Module, optimizer: Optimizer, average: dict[str, Tensor]
) -> None:
    """Write the state of a run; the previous file is replaced once the new one is complete."""
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    tensors |= {f"average.{name}": value for name, value in average.items()}
    scalars: dict[str, Any] = {}
    for index, state in optimizer.state_dict()["state"].items():
        for name, value in state.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer.{index}.{name}"] = value
            elif value is not None:
                scalars[f"{index}.{name}"] = value
    _write(path, tensors, {"progress": asdict(progress), "optimizer": scalars}, _constants(model))


def save_weights(path: Path, model: nn.Module) -> None:
    """Write the weights of a network only."""
    _write(
        path, {f"model.{name}": value for name, value in model.state_dict().items()}, {}, _constants(model)
    )


def recipe_of(path: Path) -> str:
    """Return the digest of the recipe of a checkpoint; empty for the oldest checkpoints."""
    _, header = read(path)
    return str(header["progress"].get("recipe", ""))


def load(path: Path, model: nn.Module, optimizer: Optimizer, average: dict[str, Tensor]) -> TrainingState:
    """Copy a saved state into the tensors of the run, and return its progress."""
    tensors, header = read(path)
    _fill(model, tensors, path)
    with torch.no_grad():
        for name, value in average.items():
            value.copy_(tensors[f"average.{name}"])
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for index, p in enumerate(parameters):
        prefix = f"optimizer.{index}."
        state: dict[str, Any] = {
            name.removeprefix(prefix): _in_layout_of(value, p)
            for name, value in tensors.items()
            if name.startswith(prefix)
        }
        dotted = f"{index}."
        state |= {k.removeprefix(dotted): v for k, v in header["optimizer"].items() if k.startswith(dotted)}
        if state:
            optimizer.state[p] = state
    return TrainingState(**header["progress"])


def load_weights(path: Path, model: nn.Module) -> None:
    """Copy saved weights into the model, without other state."""
    _fill(model, read(path)[0], path)


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return tensors and header of a checkpoint; raise BadInput if it is damaged."""
    try:
        with safe_open(path, "pt") as file:
            header = json.loads(file.metadata()[_HEADER])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
        stored = header.pop("digest", None)  # the oldest checkpoints have none
        if stored is not None and stored != _digest(tensors, header):
            raise ValueError
        return _renamed(tensors, header)
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, AttributeError, RuntimeError):
        raise BadInput(f"{path} is not a checkpoint that trimtab wrote, or it is damaged") from None


def _renamed(tensors: dict[str, Tensor], header: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Rename what older checkpoints spell differently: the state of the optimizer."""
    old, new = "optimiser", "optimizer"
    header = {new if key == old else key: value for key, value in header.items()}
    names = {name: new + name.removeprefix(old) if name.startswith(f"{old}.") else name for name in tensors}
    return {names[name]: value for name, value in tensors.items()}, header


def _write(
    path: Path, tensors: dict[str, Tensor], header: dict[str, Any], may_be_infinite: Collection[str] = ()
) -> None:
    for name, t in tensors.items():
        valid = ~t.isnan() if name in may_be_infinite else t.isfinite()
        if not bool(valid.all()):
            raise NotFinite(name)
    copies = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}  # share no memory
    with_digest = {**header, "digest": _digest(copies, header)}
    with atomic_write(path) as part:
        save_file(copies, part, metadata={_HEADER: json.dumps(with_digest)})


def _digest(tensors: dict[str, Tensor], header: dict[str, Any]) -> str:
    """Return a hash of all of a checkpoint, to notice damage on disk."""
    plain = json.dumps(header, sort_keys=True)
    return hashlib.sha256(f"{norm.state_digest(tensors)} {plain}".encode()).hexdigest()


def _constants(model: nn.Module) -> set[str]:
    """Return the names of buffers that are not running statistics, such as a mask of minus infinities."""
    statistics = norm.statistics(model)
    return {f"model.{name}" for name, _ in model.named_buffers() if name not in statistics}


class NotFinite(Exception):
    """Raised with the name of a tensor that contains NaN or infinity, and is not saved."""


@torch.no_grad()
def _fill(model: nn.Module, tensors: dict[str, Tensor], path: Path) -> None:
    current = model.state_dict()  # the tensors of the model themselves, whose layout is kept
    saved = {name.removeprefix("model."): t for name, t in tensors.items() if name.startswith("model.")}
    if current.keys() != saved.keys():
        name = sorted(current.keys() ^ saved.keys())[0]
        raise BadInput(f"{path} was saved from another network; only one of the two has {name!r}")
    for name, value in current.items():
        if value.shape != saved[name].shape:
            shapes = f"{tuple(saved[name].shape)} in the file and {tuple(value.shape)} in the model"
            raise BadInput(f"{path} was saved from another network; {name!r} is {shapes}")
    for name, value in current.items():
        value.copy_(saved[name])


def _in_layout_of(value: Tensor, like: nn.Parameter) -> Tensor:
    """Return a copy, with the memory layout of the parameter if it has its shape."""
    if value.shape == like.shape:
        return torch.empty_like(like, dtype=value.dtype).copy_(value)
    return value.clone()
