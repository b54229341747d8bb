"""`trimtab merge`: exact pooled statistics of shards, clients or checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

import trimtab
from trimtab.cli.lazy import console, models, norm
from trimtab.cli.options import Json
from trimtab.types import BadInput


@dataclass(frozen=True)
class Merge:
    """Pool the statistics of several packs or models exactly.

    An average of variances, as federated averaging takes it, misses the variance between the parts; the
    command prints by how much.

      merge monday.safetensors tuesday.safetensors --out week.safetensors
      merge file:client-a file:client-b --counts 5000 12000 --out all.safetensors
    """

    parts: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="PACK|MODEL")]
    """Packs, or models (zoo:NAME, file:PATH ...)."""
    out: Path
    """The pack to write; `trimtab pack apply` puts it into a model."""
    counts: tuple[int, ...] = ()
    """Number of images behind each part; not needed for packs that carry their own."""
    json: Json = False

    def run(self) -> int:
        """Run the command and return its exit code."""
        if not self.parts:
            raise BadInput("merge takes packs or models, e.g. `trimtab merge a.safetensors b.safetensors`")
        packs = [_pack(part) for part in self.parts]
        merged = norm.merge(packs, self.counts or None)
        norm.save_pack(merged, self.out)
        error = norm.averaging_error(packs, merged, self.counts or None)
        layer = max(error, key=lambda name: error[name])
        off = console.percent(error[layer])
        forced = "The parts have different weights: applying the pack takes --force."
        return console.result(
            self.json,
            {"out": self.out, "layers": len(merged.layers), "averaging_error": error},
            f"{len(packs)} parts, {len(merged.layers)} layers: {self.out}",
            f"Averaging the variances would be off by up to {off}, at {layer}.",
            *([] if merged.weights else [forced]),
        )


def _pack(part: str) -> Any:
    path = Path(part)
    if path.exists() or ":" not in part:
        return norm.read_pack(path)
    models.parse(part)
    return norm.pack(trimtab.steer(trimtab.load(part)))
