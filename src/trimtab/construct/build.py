"""Apply a construction to a whole set: resumable in chunks, saved as npz with its provenance."""

from __future__ import annotations

import hashlib
import json
import shutil
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from trimtab import norm
from trimtab.construct.features import FeatureMatch
from trimtab.construct.labels import Relabeled
from trimtab.data import Batch, Images
from trimtab.io import atomic_write, readable_errors
from trimtab.runtime.fingerprint import of_model
from trimtab.types import BadInput

CHUNK = 256
"""Images per chunk."""


class Construction(Protocol):
    """Maps a batch of a set to images and labels, by means of a model."""

    def __call__(
        self, model: nn.Module, batch: Batch, images: Images, seed: int = 0
    ) -> tuple[Tensor, Tensor]: ...


KINDS: dict[str, Callable[..., Construction]] = {
    "D_R": FeatureMatch,
    "D_NR": FeatureMatch,
    "D_rand": lambda **options: Relabeled("random", **options),
    "D_det": lambda **options: Relabeled("next", **options),
    "D_conflict": lambda **options: Relabeled("next", **options),
}
"""Constructions by their names in the papers. D_R takes a robust model, D_NR a standard one, and D_conflict
starts from the images of a D_R."""


def construction(kind: str, **options: Any) -> Construction:
    """Return the construction of a name in the papers.

    Args:
        kind: One of `KINDS`.
        options: Its fields, by name.
    """
    if kind not in KINDS:
        raise BadInput(f"there is no construction {kind!r}; choose from {', '.join(KINDS)}")
    return KINDS[kind](**options)


def build(
    method: Construction,
    model: nn.Module,
    images: Images,
    out: str | Path,
    seed: int = 0,
    provenance: dict[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Apply a construction to all `images` and write `out`, an npz that `--data npz:PATH` reads.

    An interrupted call resumes when it is repeated with the same arguments; a finished one is not repeated. A
    file that contains another set is not overwritten.

    Args:
        method: The construction.
        model: The model that it uses.
        images: The set that it is applied to.
        out: The file; `.npz` is appended if missing.
        seed: Seed of the construction.
        provenance: More to be recorded in the file.
        progress: Called with the number of images done, and of all images.
    """
    about = {"method": f"{type(method).__name__}", **_plain(method), "data": images.digest, "seed": seed}
    about |= {"model": of_model(model), "branch": norm.active_branch(model)}
    out = place_for(about, out)
    if out.exists():
        return out
    chunk = _chunk(method)
    described = json.dumps(about if chunk == CHUNK else {**about, "chunk": chunk}, sort_keys=True)
    parts = out.with_name(f".{out.stem}-{hashlib.sha256(described.encode()).hexdigest()[:16]}")
    with readable_errors(parts):
        parts.mkdir(parents=True, exist_ok=True)
    paths = []
    for start in range(0, len(images), chunk):
        path = parts / f"{start:08d}.safetensors"
        if load_tensors(path) is None:
            batch = images.take(torch.arange(start, min(start + chunk, len(images))))
            ids = torch.arange(start, start + len(batch.y))
            x, y = method(model, batch._replace(ids=ids).to_model(model), images, seed)
            save_tensors(path, {"x": x.float(), "y": y})
        paths.append(path)
        if progress is not None:
            progress(min(start + chunk, len(images)), len(images))
    chunks = [load_file(path) for path in paths]
    arrays = {
        "images": torch.cat([c["x"] for c in chunks]).permute(0, 2, 3, 1).numpy(),
        "labels": torch.cat([c["y"] for c in chunks]).numpy(),
        "classes": np.array(images.classes),
        "provenance": np.array(json.dumps({**about, **(provenance or {})}, sort_keys=True)),
    }
    with atomic_write(out) as part, part.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    shutil.rmtree(parts)
    return out


def place_for(about: Mapping[str, Any], out: str | Path) -> Path:
    """Return the file for a set of this provenance; refuse a file that contains another set.

    Args:
        about: Entries that the recorded provenance must have.
        out: The file; `.npz` is appended if missing.
    """
    out = Path(out)
    if not out.name or out.name == "..":
        raise BadInput(f"{str(out)!r} is not a file name; give a name such as D_R.npz")
    out = out if out.suffix == ".npz" else out.with_name(f"{out.name}.npz")
    if out.exists() and not recorded(out).items() >= about.items():
        raise BadInput(f"{out} contains another set; give another name, or remove it first")
    return out


def _chunk(method: Construction) -> int:
    """Return the images per chunk: a multiple of the batch of a construction whose images share something."""
    batch = int(getattr(method, "batch", 1))
    return max(batch, CHUNK // batch * batch)


def recorded(path: str | Path) -> dict[str, Any]:
    """Return the recorded provenance of a constructed set; empty for any other file.

    Args:
        path: The file of the set.
    """
    try:
        with np.load(path) as arrays:
            provenance = json.loads(str(arrays["provenance"]))
            return provenance if isinstance(provenance, dict) else {}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
        return {}


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors with their digest."""
    on_cpu = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    with atomic_write(path) as part:
        save_file(on_cpu, part, metadata={"digest": norm.state_digest(on_cpu)})


def load_tensors(path: Path) -> dict[str, Tensor] | None:
    """Return the tensors of a file; None if it is missing or does not match its digest."""
    try:
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
            return tensors if (file.metadata() or {}).get("digest") == norm.state_digest(tensors) else None
    except (OSError, SafetensorError, RuntimeError, ValueError):
        return None


def _plain(method: Any) -> dict[str, Any]:
    """Return the fields of a construction as text; modules by their recipe or fingerprint."""
    values = {f.name: getattr(method, f.name) for f in fields(method)}
    named = {
        name: (getattr(value, "recipe", "") or of_model(value))
        if isinstance(value, nn.Module)
        else str(value)
        for name, value in values.items()
    }
    return {**named, "version": method.version}
