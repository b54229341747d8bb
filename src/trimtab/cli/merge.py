"""`trimtab merge`: pool the statistics of shards, clients or checkpoints exactly."""

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
class MergeCommand:
    """Pool the statistics of several packs or models exactly.

    Averaging the variances, as federated averaging does, misses the variance between the parts; the command
    prints the error that it would make.

      merge monday.safetensors tuesday.safetensors --out week.safetensors
      merge file:client-a file:client-b --counts 5000 12000 --out all.safetensors
    """

    parts: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="PACK|MODEL")]
    """Packs, or models (zoo:NAME, file:PATH ...)."""
    out: Path
    """The pack to write; `trimtab pack apply` puts it into a model."""
    counts: tuple[int, ...] = ()
    """Number of images of each part; not needed for packs that record it."""
    json: Json = False

    def run(self) -> int:
        """Run the command and return its exit code."""
        if not self.parts:
            raise BadInput("merge takes packs or models, e.g. `trimtab merge a.safetensors b.safetensors`")
        packs = [_pack(part) for part in self.parts]
        merged = norm.merge(packs, self.counts or None)
        norm.save_pack(merged, self.out)
        errors = norm.averaging_error(packs, merged, self.counts or None)
        worst = max(errors, key=lambda name: errors[name])
        needs_force = "The parts have different weights: `trimtab pack apply` needs --force."
        return console.result(
            self.json,
            {"out": self.out, "layers": len(merged.layers), "averaging_error": errors},
            f"{len(packs)} parts, {len(merged.layers)} layers: {self.out}",
            f"Averaging the variances would be off by up to {console.percent(errors[worst])}, at {worst}.",
            *([] if merged.weights else [needs_force]),
        )


def _pack(part: str) -> Any:
    path = Path(part)
    if path.exists() or ":" not in part:
        return norm.read_pack(path)
    models.parse(part)
    return norm.pack(trimtab.steer(trimtab.load(part)))
