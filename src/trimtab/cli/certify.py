"""`trimtab certify`: l2 radii within which a smoothed classifier's answer provably holds."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from trimtab.cli.options import Device, Json, Model, Number, Seed, Split, Text, loaded, origin


@dataclass(frozen=True)
class Certify:
    """Certified accuracy over l2 radii, by randomised smoothing. Goes on where it was when run again.

    With --adapt N the statistics are first re-estimated on N training images with the same noise, and then
    frozen: this turns an adversarially trained network into one that noise does not blind.
    """

    model: Model
    data: str = "sample"
    """Images with labels (`trimtab data list`)."""
    split: Split = "test"
    limit: int = 100
    """Only the first so many images."""
    sigma: tuple[str, ...] = ("0.25",)
    """Deviations of the smoothing noise, in pixels."""
    n0: int = 100
    """Draws that guess the class."""
    n: int = 10_000
    """Draws that certify it; radii end at 3.2 sigma for 10,000 and at 3.8 sigma for 100,000."""
    alpha: Number = 0.001
    """The chance that a certificate is wrong."""
    adapt: int = 0
    """Freeze the statistics on so many noisy images first; 0 leaves them as they are."""
    adapt_on: Text = None
    """Which images: train (sound, and taken if not given), or test as in the paper (labelled so)."""
    seed: Seed = 0
    device: Device = "auto"
    store: Path = Path(".trimtab/store.sqlite")
    """Where results are kept."""
    json: Json = False

    def run(self) -> int:
        from trimtab import data, evaluate
        from trimtab.cli import show
        from trimtab.cli.evaluate import run_with_progress
        from trimtab.evaluate.certified import Certified
        from trimtab.types import BadInput, number

        if self.adapt < 0:
            raise BadInput(f"--adapt takes the number of images to adapt to, 0 for none; found {self.adapt}")
        if self.adapt_on is not None and not self.adapt:
            raise BadInput("--adapt-on goes with --adapt, the number of images to adapt to")
        images = data.load(self.data, self.split)
        found: dict[str, Any] = {}
        sources: dict[str, str] = {}
        flags = []
        for sigma in (number(text) for text in self.sigma):
            model = loaded(self.model, self.device)
            statistics = "the model's own"
            if self.adapt:
                model, statistics = self._frozen(model, images, sigma)
            condition = Certified(sigma, self.n0, self.n, self.alpha)
            card = run_with_progress(
                evaluate, model, images, suite=[condition], store=self.store, limit=self.limit,
                seed=self.seed, chunk=16, name=f"{self.model}, statistics {statistics}",
            )  # fmt: skip
            found[f"sigma {sigma:g}"] = card.rows[0]
            sources[f"sigma {sigma:g}"] = str(card.provenance["statistics"])
            flags += [replace(flag, state=f"sigma {sigma:g}") for flag in card.flags]
        if self.json:
            doubts = {name: [asdict(flag) for flag in flags if flag.state == name] for name in found}
            told = {name: {"statistics": sources[name], "flags": doubts[name]} for name in found}
            show.as_json({name: {**asdict(row), **told[name]} for name, row in found.items()})
            return 0
        names = max((list(row.figures) for row in found.values()), key=len)
        names.remove("radius 0")  # the accuracy itself, shown with its interval
        rows = [
            [
                name,
                show.accuracy(row.accuracy, row.interval).strip(),
                *(show.percent(row.figures.get(f, 0.0)) for f in names),
            ]
            for name, row in found.items()
        ]
        n = max(row.n for row in found.values())
        draws = f"{self.n:,} draws, alpha {self.alpha:g}"
        title = f"{self.model} on {images.name}, {n} images: certified accuracy by l2 radius, {draws}"
        if self.adapt:
            title += f"; statistics {', '.join(dict.fromkeys(sources.values()))}"
        columns = ["", "r = 0  [95 %]", *(name.replace("radius", "r =") for name in names)]
        show.table(title, columns, rows, right=range(1, len(columns)))
        show.doubts(flags)
        return 0

    def _frozen(self, model: Any, images: Any, sigma: float) -> tuple[Any, str]:
        from trimtab import adapt, data

        split = self.adapt_on or "train"
        known = data.load(self.data, split)
        batch = next(iter(known.batches(self.adapt)))
        what = origin(known, images, split)
        frozen = adapt.frozen_under_noise(model, batch.x, sigma, self.seed, batch.ids, what=what)
        return frozen, str(frozen.provenance)
