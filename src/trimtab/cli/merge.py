"""`trimtab merge`: exact pooled statistics of shards, clients or checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

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
        from trimtab import norm
        from trimtab.cli import console

        if not self.parts:
            raise BadInput("merge takes packs or models, e.g. `trimtab merge a.safetensors b.safetensors`")
        packs = [_pack(part) for part in self.parts]
        merged = norm.merge(packs, self.counts or None)
        norm.save_pack(merged, self.out)
        error = norm.averaging_error(packs, merged, self.counts or None)
        layer = max(error, key=lambda name: error[name])
        if self.json:
            console.as_json({"out": str(self.out), "layers": len(merged.layers), "averaging_error": error})
            return 0
        console.out.print(f"{len(packs)} parts, {len(merged.layers)} layers: {self.out}", markup=False)
        console.out.print(
            f"Averaging the variances would be off by up to {console.percent(error[layer])}, at {layer}.",
            markup=False,
            highlight=False,
        )
        if not merged.weights:
            console.out.print("The parts have different weights: applying the pack takes --force.")
        return 0


def _pack(part: str) -> Any:
    import trimtab
    from trimtab import models, norm

    path = Path(part)
    if path.exists() or ":" not in part:
        return norm.read_pack(path)
    models.parse(part)
    return norm.pack(trimtab.steer(trimtab.load(part)))
