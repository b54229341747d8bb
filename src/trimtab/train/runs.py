"""The folder of a run: what was asked for, where it ran, what happened, and what came out.

recipe.yaml          every key, defaults included        environment.json  versions, machine, git revision
metrics.jsonl        one line per epoch                  checkpoints/       last (to resume) and best
model.safetensors    the result, with model.json         stock/BRANCH.pt    state dicts for stock PyTorch
"""

from __future__ import annotations

import copy
import hashlib
import json
import platform
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import nn

from trimtab import norm
from trimtab.models import Pixels
from trimtab.models import save as save_model
from trimtab.placed import placed
from trimtab.train.recipe import Recipe, read_recipe, write_recipe
from trimtab.types import BadInput

PACKAGES = ("trimtab", "torch", "lightning-fabric", "numpy", "safetensors")


@dataclass(frozen=True)
class Run:
    folder: Path
    recipe: Recipe
    model: nn.Module | None = field(default=None, repr=False)
    """The trained network, once the run has ended."""

    @property
    def last(self) -> Path:
        return self.folder / "checkpoints" / "last.safetensors"

    @property
    def best(self) -> Path:
        return self.folder / "checkpoints" / "best.safetensors"

    def metrics(self) -> list[dict[str, Any]]:
        """One mapping per epoch."""
        file = self.folder / "metrics.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    @property
    def chosen(self) -> dict[str, Any]:
        """The metrics of the epoch whose network is the result; none before the first epoch has ended."""
        rows, how = self.metrics(), self.recipe.validation.choose
        scored = [row for row in rows if how in row]
        return max(scored, key=lambda row: row[how]) if scored else (rows or [{}])[-1]

    def add_metrics(self, row: Mapping[str, Any], after: int) -> int:
        """Append a line behind the first `after` bytes (what lies there belongs to no checkpoint)."""
        file = self.folder / "metrics.jsonl"
        content = (file.read_bytes() if file.exists() else b"")[:after] + json.dumps(row).encode() + b"\n"
        with placed(file) as part:
            part.write_bytes(content)
        return len(content)

    def metrics_digest(self, length: int) -> str:
        """Of the first `length` bytes of the metrics: by it damage is noticed."""
        file = self.folder / "metrics.jsonl"
        return hashlib.sha256(file.read_bytes()[:length] if file.exists() else b"").hexdigest()


def create(recipe: Recipe, folder: str | Path | None) -> Run:
    """A new run's folder, of its own choice if none is named."""
    folder = folder or new_folder(recipe)
    run = Run(Path(folder), recipe)
    if any(
        path.exists() for path in (run.last, run.folder / "metrics.jsonl", run.folder / "model.safetensors")
    ):
        raise BadInput(f"{folder} holds a run already; resume it, or name another folder")
    if (run.folder / "recipe.yaml").exists() and not (run.folder / "environment.json").exists():
        raise BadInput(f"{folder} holds a recipe.yaml that no run wrote; name another folder")
    write_text(run.folder / "recipe.yaml", write_recipe(recipe))
    write_text(run.folder / "environment.json", json.dumps(environment(), indent=2))
    return run


def withdraw(run: Run) -> None:
    """Take back the folder of a run that was refused before its first step."""
    for path in (run.folder / "recipe.yaml", run.folder / "environment.json", run.last):
        path.unlink(missing_ok=True)
    for folder in (run.last.parent, run.folder):
        with suppress(OSError):
            folder.rmdir()  # unless it was there before, with something in it


def new_folder(recipe: Recipe) -> Path:
    """The first of `runs/KIND-1`, `-2`, ... that is not there."""
    kind = type(recipe.objective).__name__.lower()
    taken = (Path("runs") / f"{kind}-{number}" for number in range(1, 1 << 30))
    return next(path for path in taken if not path.exists())


def existing(folder: str | Path) -> Run:
    """The run in a folder, with its recipe."""
    path = Path(folder) / "recipe.yaml"
    if not path.is_file():
        raise BadInput(f"{folder} holds no run; it has no recipe.yaml")
    return Run(Path(folder), read_recipe(path))


def finish(run: Run, model: nn.Module, provenance: Mapping[str, Any]) -> Run:
    """Write the trained network: ours, and stock per branch."""
    net = model.net if isinstance(model, Pixels) else model
    for one in (model, net):
        vars(one).pop("provenance", None)  # which `adapt.frozen` noted of statistics that are no more
    for branch in _branches(net):
        stock = norm.release(copy.deepcopy(net), branch)
        state = {key: value.cpu().contiguous() for key, value in stock.state_dict().items()}
        with placed(run.folder / "stock" / f"{branch}.pt") as part, part.open("wb") as file:
            torch.save(state, file)  # given a path, torch would write its name into the file
    save_model(model, run.folder, provenance)
    return Run(run.folder, run.recipe, model)


def _branches(model: nn.Module) -> list[str]:
    named = dict.fromkeys(name for layer in norm.layers(model).values() for name in layer.branch_names)
    return list(named) or ["main"]


def plain_recipe(recipe: Recipe) -> dict[str, Any]:
    return yaml.safe_load(write_recipe(recipe))


def environment() -> dict[str, Any]:
    """Versions, machine and git revision: what a number depends on besides its recipe."""
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "packages": {name: _version(name) for name in PACKAGES},
        "git": _git("rev-parse", "HEAD"),
        "git_changed": bool(_git("status", "--porcelain", "--untracked-files=no")),
    }


def write_text(path: Path, text: str) -> None:
    with placed(path) as part:
        part.write_text(text)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
