"""`trimtab lens`: how a model sees: LIGS, statistics, tolerance to shifts, smoothness."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import Any

from trimtab.cli.options import Device, Json, Model, Number, Seed, Split, first, loaded


@dataclass(frozen=True)
class Lens:
    """LIGS under all four probes, tolerance of the norm statistics to shifts, batch against running
    statistics, and the smoothness of the loss along a training step."""

    model: Model
    data: str = "sample"
    """Images with labels (`trimtab data list`)."""
    split: Split = "test"
    limit: int = 512
    """Only the first so many images."""
    eps: tuple[Number, ...] = (0.0, 0.05, 0.1, 0.2, 0.4)
    """Relative radii of statistics shifts."""
    batch_size: int = 256
    """Images at once; the first so many show the statistics of a batch and the loss along a step."""
    seed: Seed = 0
    device: Device = "auto"
    json: Json = False

    def run(self) -> int:
        from trimtab import data, measure, norm
        from trimtab.cli import show
        from trimtab.evaluate import trust

        model = loaded(self.model, self.device)
        images = data.load(self.data, self.split)
        batches = [batch.beside(model) for batch in first(images, self.limit).batches(self.batch_size)]
        doubts = list(trust.other_images(model, batches[0], images))
        similarity = {}
        for probe in measure.PROBES:
            found = [
                measure.Average.of(measure.ligs(model, b.x, b.y, probe, seed=self.seed, ids=b.ids))
                for b in batches
            ]
            similarity[probe] = sum(found, measure.Average()).mean
        one = batches[0]
        smooth = measure.landscape(model, one.x, one.y)
        rows, drift = [], []
        if norm.steerable(model):
            rows = measure.tolerance(norm.steer(model), batches, self.eps, seed=self.seed)
            drift = measure.batch_against_running(model, one.x)
        if self.json:
            show.as_json(
                {
                    "ligs": similarity, "tolerance": rows, "landscape": smooth, "statistics": drift,
                    "doubts": doubts,
                }
            )  # fmt: skip
            return 0
        n = sum(len(b.y) for b in batches)
        show.table(
            f"{self.model} on {images.name}, {n} images: LIGS (1: the loss slopes the same way next door)",
            list(similarity), [[f"{value:.3f}" for value in similarity.values()]],
        )  # fmt: skip
        if rows:
            attacks = list(dict.fromkeys(row["attack"] for row in rows))
            by = {(row["attack"], row["eps"]): row["accuracy"] for row in rows}
            table = [[name, *(show.percent(by[name, eps]) for eps in self.eps)] for name in attacks]
            columns = ["", *(f"eps {eps:g}" for eps in self.eps)]
            show.table(
                "Accuracy with shifted running statistics", columns, table, right=range(1, len(columns))
            )
            show.table(
                f"A batch of {len(one.y)} beside the running statistics, averaged over channels",
                ["layer", "mean moved by (deviations)", "deviation, times the running one"],
                _drift(drift), right=[1, 2],
            )  # fmt: skip
        else:
            show.out.print("Statistics were not shifted: there is no batch-norm layer that can be steered.")
        low, high = smooth.loss_range
        show.out.print(
            f"Along a training step the loss goes from {low:.3f} to {high:.3f}, its gradient moves by up to "
            f"{smooth.gradient_change:.3g}; effective beta {smooth.beta:.3g}.",
            markup=False,
        )
        if doubts:
            show.doubts(doubts)
        return 0


def _drift(rows: list[dict[str, Any]]) -> list[list[str]]:
    """Of each layer, averaged over its channels."""
    by_layer: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        deviation = max(row["running variance"], 1e-12) ** 0.5
        moved = abs(row["batch mean"] - row["running mean"]) / deviation
        by_layer.setdefault(row["layer"], []).append((moved, row["batch variance"] ** 0.5 / deviation))
    return [
        [name, *(f"{fmean(column):.2f}" for column in zip(*found, strict=True))]
        for name, found in by_layer.items()
    ]
