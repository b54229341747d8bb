"""`trimtab construct`: image sets made with a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from trimtab.cli.options import Json, Model, Seed, Split, first


@dataclass(frozen=True)
class Construct:
    """Make D_R, D_NR, D_rand, D_det or D_conflict with a model, as an npz that --data npz:PATH reads.

    D_R wants a robust model and D_NR a standard one; D_conflict wants --data npz:PATH of a D_R. Killed and
    run again, it goes on.
    """

    kind: tyro.conf.Positional[str]
    """D_R, D_NR, D_rand, D_det or D_conflict."""
    model: Model
    data: str = "sample"
    """Images with labels (`trimtab data list`)."""
    split: Split = "train"
    limit: int | None = None
    """Only the first so many images."""
    steps: int | None = None
    """Gradient steps; 1000 for D_R and D_NR, 100 for the others, as in the papers."""
    out: Path | None = None
    """Where to write the set; KIND.npz if not given."""
    seed: Seed = 0
    json: Json = False

    def run(self) -> int:
        import trimtab
        from trimtab import construct, data
        from trimtab.cli import show

        method = construct.construction(self.kind, **({} if self.steps is None else {"steps": self.steps}))
        images = data.load(self.data, self.split)
        images = first(images, self.limit)
        about = {"kind": self.kind, "source": self.model, "images": f"{self.data} {self.split}"}
        with show.progress(f"constructing {self.kind}") as tell:
            out = construct.build(
                method,
                trimtab.load(self.model),
                images,
                self.out or Path(f"{self.kind}.npz"),
                self.seed,
                about,
                lambda d, n: tell(d, n, ""),
            )
        if self.json:
            show.as_json({**about, "out": str(out), "n": len(images)})
        else:
            show.out.print(f"{len(images)} images are in {out}; use them as --data npz:{out}", markup=False)
        return 0
