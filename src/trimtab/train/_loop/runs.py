"""The folder of a run: recipe, environment, metrics, checkpoints and the trained network.

recipe.yaml          all keys, with defaults             environment.json   versions, machine, git revision
metrics.jsonl        one line per epoch                  checkpoints/       last (to resume) and best
model.safetensors    the network, with model.json        stock/BRANCH.pt    state dicts for stock PyTorch
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
from trimtab.io import atomic_write
from trimtab.models import Pixels
from trimtab.models import save as save_model
from trimtab.train.recipe import Recipe, read_recipe, write_recipe
from trimtab.types import BadInput

PACKAGES = ("trimtab", "torch", "lightning-fabric", "numpy", "safetensors")


@dataclass(frozen=True)
class Run:
    """A run: its folder, its recipe and, once it has ended, its network.

    Args:
        folder: The folder of the run.
        recipe: The recipe with all defaults.
        model: The trained network, once the run has ended.
    """

    folder: Path
    recipe: Recipe
    model: nn.Module | None = field(default=None, repr=False)

    @property
    def last(self) -> Path:
        """The last checkpoint."""
        return self.folder / "checkpoints" / "last.safetensors"

    @property
    def best(self) -> Path:
        """The weights of the best epoch so far."""
        return self.folder / "checkpoints" / "best.safetensors"

    def metrics(self) -> list[dict[str, Any]]:
        """Return the metrics, one mapping per epoch."""
        file = self.folder / "metrics.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    @property
    def chosen(self) -> dict[str, Any]:
        """The metrics of the epoch whose network is the result; empty before the end of the first epoch."""
        rows, metric = self.metrics(), self.recipe.validation.choose
        validated = [row for row in rows if metric in row]
        return max(validated, key=lambda row: row[metric]) if validated else (rows or [{}])[-1]

    def add_metrics(self, row: Mapping[str, Any], after: int) -> int:
        """Write a line after the first `after` bytes; what followed them belongs to no checkpoint.

        Args:
            row: Metrics of an epoch.
            after: Length of the metrics file at the last checkpoint.

        Returns:
            The new length of the file.
        """
        file = self.folder / "metrics.jsonl"
        content = (file.read_bytes() if file.exists() else b"")[:after] + json.dumps(row).encode() + b"\n"
        with atomic_write(file) as part:
            part.write_bytes(content)
        return len(content)

    def metrics_digest(self, length: int) -> str:
        """Return a hash of the metrics, to notice damage.

        Args:
            length: Number of bytes, from the start of the file.
        """
        file = self.folder / "metrics.jsonl"
        return hashlib.sha256(file.read_bytes()[:length] if file.exists() else b"").hexdigest()


def create(recipe: Recipe, folder: str | Path | None) -> Run:
    """Make the folder of a new run; a new one below ./runs if no folder is given."""
    folder = folder or new_folder(recipe)
    run = Run(Path(folder), recipe)
    if any(
        path.exists() for path in (run.last, run.folder / "metrics.jsonl", run.folder / "model.safetensors")
    ):
        raise BadInput(f"{folder} already contains a run; resume it, or give another folder")
    if (run.folder / "recipe.yaml").exists() and not (run.folder / "environment.json").exists():
        raise BadInput(f"{folder} contains a recipe.yaml that no run wrote; give another folder")
    write_text(run.folder / "recipe.yaml", write_recipe(recipe))
    write_text(run.folder / "environment.json", json.dumps(environment(), indent=2))
    return run


def remove_refused(run: Run) -> None:
    """Remove the files of a run that was refused before its first step."""
    for path in (run.folder / "recipe.yaml", run.folder / "environment.json", run.last):
        path.unlink(missing_ok=True)
    for folder in (run.last.parent, run.folder):
        with suppress(OSError):
            folder.rmdir()  # fails if it contains other files


def new_folder(recipe: Recipe) -> Path:
    """Return the first of `runs/KIND-1`, `-2`, ... that does not exist.

    Args:
        recipe: The recipe, whose objective is the kind.
    """
    kind = type(recipe.objective).__name__.lower()
    folders = (Path("runs") / f"{kind}-{number}" for number in range(1, 1 << 30))
    return next(path for path in folders if not path.exists())


def existing(folder: str | Path) -> Run:
    """Return the run in a folder, with its recipe.

    Args:
        folder: The folder of the run.
    """
    path = Path(folder) / "recipe.yaml"
    if not path.is_file():
        raise BadInput(f"{folder} contains no run: it has no recipe.yaml")
    return Run(Path(folder), read_recipe(path))


def file_digest(run: Run) -> str:
    """Return the digest of the text of recipe.yaml, as the version that wrote it computed it.

    Keys that were renamed or added later change the digest of a recipe, but not that of an older file.
    """
    written = yaml.safe_load((run.folder / "recipe.yaml").read_text(encoding="utf-8"))
    text = yaml.safe_dump({**written, "about": ""}, sort_keys=False, allow_unicode=True)
    return hashlib.sha256(text.encode()).hexdigest()


def finish(run: Run, model: nn.Module, provenance: Mapping[str, Any]) -> Run:
    """Write the trained network, and a state dict for stock PyTorch for each branch."""
    net = model.net if isinstance(model, Pixels) else model
    for module in (model, net):
        vars(module).pop("provenance", None)  # of statistics from `adapt.frozen`, which training replaced
    for branch in norm.branches(net) or ("main",):
        stock = norm.release(copy.deepcopy(net), branch)
        state = {key: value.cpu().contiguous() for key, value in stock.state_dict().items()}
        with atomic_write(run.folder / "stock" / f"{branch}.pt") as part, part.open("wb") as file:
            torch.save(state, file)  # given a path, torch would write its name into the file
    save_model(model, run.folder, provenance)
    return Run(run.folder, run.recipe, model)


def plain_recipe(recipe: Recipe) -> dict[str, Any]:
    """Return the recipe as plain mappings, lists and values."""
    return yaml.safe_load(write_recipe(recipe))


def environment() -> dict[str, Any]:
    """Return versions, machine and git revision, which results depend on in addition to the recipe."""
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
    """Write a text file atomically.

    Args:
        path: The file; it is replaced whole or not at all.
        text: Its content.
    """
    with atomic_write(path) as part:
        part.write_text(text)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git(*arguments: str) -> str | None:
    try:
        process = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return process.stdout.strip() if process.returncode == 0 else None
