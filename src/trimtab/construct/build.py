"""A construction over a whole set: in chunks that survive a kill, saved as npz with its provenance."""

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
from trimtab.construct.labels import Relabelled
from trimtab.data import Batch, Images
from trimtab.keys import weights
from trimtab.models.files import digest
from trimtab.placed import placed, readable_errors
from trimtab.types import BadInput

CHUNK = 256


class Construction(Protocol):
    """Turns a batch of a set into images and labels, by a model."""

    def __call__(
        self, model: nn.Module, batch: Batch, images: Images, seed: int = 0
    ) -> tuple[Tensor, Tensor]: ...


KINDS: dict[str, Callable[..., Construction]] = {
    "D_R": FeatureMatch,
    "D_NR": FeatureMatch,
    "D_rand": lambda **options: Relabelled("random", **options),
    "D_det": lambda **options: Relabelled("next", **options),
    "D_conflict": lambda **options: Relabelled("next", **options),
}
"""By their names in the papers. D_R wants a robust model, D_NR a standard one, D_conflict images of a D_R."""


def construction(kind: str, **options: Any) -> Construction:
    if kind not in KINDS:
        raise BadInput(f"{kind!r} is no construction; take one of {', '.join(KINDS)}")
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

    Killed and called again with the same arguments, it goes on; once finished, it is not repeated. A file
    that holds another set is not overwritten.
    """
    about = {"method": f"{type(method).__name__}", **_plain(method), "data": images.digest, "seed": seed}
    about |= {"model": weights(model), "branch": norm.in_force(model)}
    out = place_for(about, out)
    if out.exists():
        return out
    chunk = _chunk(method)
    told = json.dumps(about if chunk == CHUNK else {**about, "chunk": chunk}, sort_keys=True)
    parts = out.with_name(f".{out.stem}-{hashlib.sha256(told.encode()).hexdigest()[:16]}")
    with readable_errors(parts):
        parts.mkdir(parents=True, exist_ok=True)
    made = []
    for start in range(0, len(images), chunk):
        path = parts / f"{start:08d}.safetensors"
        if held(path) is None:
            batch = images.take(torch.arange(start, min(start + chunk, len(images))))
            ids = torch.arange(start, start + len(batch.y))
            x, y = method(model, batch._replace(ids=ids).beside(model), images, seed)
            keep(path, {"x": x.float(), "y": y})
        made.append(path)
        if progress is not None:
            progress(min(start + chunk, len(images)), len(images))
    chunks = [load_file(path) for path in made]
    arrays = {
        "images": torch.cat([c["x"] for c in chunks]).permute(0, 2, 3, 1).numpy(),
        "labels": torch.cat([c["y"] for c in chunks]).numpy(),
        "classes": np.array(images.classes),
        "provenance": np.array(json.dumps({**about, **(provenance or {})}, sort_keys=True)),
    }
    with placed(out) as part, part.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    shutil.rmtree(parts)
    return out


def place_for(about: Mapping[str, Any], out: str | Path) -> Path:
    """The file for a set of which this is known; one that holds another set is refused."""
    out = Path(out)
    if not out.name or out.name == "..":
        raise BadInput(f"{str(out)!r} names no file to write; give a name such as D_R.npz")
    out = out if out.suffix == ".npz" else out.with_name(f"{out.name}.npz")
    if out.exists() and not recorded(out).items() >= about.items():
        raise BadInput(f"{out} holds another set; give another name, or remove it first")
    return out


def _chunk(method: Construction) -> int:
    """Images at a time: whole batches of a construction whose images share something."""
    batch = int(getattr(method, "batch", 1))
    return max(batch, CHUNK // batch * batch)


def recorded(path: str | Path) -> dict[str, Any]:
    """What a constructed set says of how it was made; nothing if it is none."""
    try:
        with np.load(path) as arrays:
            told = json.loads(str(arrays["provenance"]))
            return told if isinstance(told, dict) else {}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
        return {}


def keep(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors with their digest."""
    there = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    with placed(path) as part:
        save_file(there, part, metadata={"digest": digest(there)})


def held(path: Path) -> dict[str, Tensor] | None:
    """The tensors in a file, if they are as they were kept; else they are to be made again."""
    try:
        with safe_open(path, "pt") as file:
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
            return found if (file.metadata() or {}).get("digest") == digest(found) else None
    except (OSError, SafetensorError, RuntimeError, ValueError):
        return None


def _plain(method: Any) -> dict[str, Any]:
    """A construction's fields as text; modules among them by what they were trained by, or their weights."""
    values = {f.name: getattr(method, f.name) for f in fields(method)}
    named = {
        name: (getattr(value, "recipe", "") or weights(value)) if isinstance(value, nn.Module) else str(value)
        for name, value in values.items()
    }
    return {**named, "version": method.version}
