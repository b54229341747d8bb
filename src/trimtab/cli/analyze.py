"""`trimtab analyze`: LIGS, tolerance to shifted statistics, smoothness of the loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from trimtab.cli.lazy import console, measure, norm
from trimtab.cli.options import FloatOrRatio, OnImages, describe_images, first
from trimtab.types import BadInput

if TYPE_CHECKING:
    from trimtab.data import Batch


@dataclass(frozen=True)
class AnalyzeCommand(OnImages):
    """Measure LIGS, tolerance to shifted statistics, and smoothness of the loss.

    LIGS is computed with all four probes, and the statistics of a batch are compared with the running ones.
    """

    limit: int = 512
    eps: tuple[FloatOrRatio, ...] = (0.0, 0.05, 0.1, 0.2, 0.4)
    """Relative radii of statistics shifts."""
    source: Literal["running", "batch"] = "running"
    """The statistics to shift: running, or those of each batch."""
    groups: tuple[int, ...] = (1,)
    """With --source batch: number of groups of a batch, each with its own statistics, as in APART's second
    pass."""
    batch_size: int = 256
    """Images per batch; the first batch gives the batch statistics and the loss along a step."""

    def run(self) -> int:
        """Run the command and return its exit code."""
        if min(self.groups) < 1 or (max(self.groups) > 1 and self.source == "running"):
            raise BadInput("--groups takes integers from 1; more than 1 group needs --source batch")
        model, images = self.load_model_and_images()
        batches = [batch.to_model(model) for batch in first(images, self.limit).batches(self.batch_size)]
        results = self._measure(model, images, batches)
        if self.json:
            console.as_json(results)
        else:
            self._print(results, images, batches)
        return 0

    def _measure(self, model: Any, images: Any, batches: Sequence[Batch]) -> dict[str, Any]:
        from trimtab.evaluate import RunningMode, trust
        from trimtab.evaluate.records import ImagesRecord
        from trimtab.evaluate.stored_images import preprocessing
        from trimtab.measure.statistics import ATTACKS

        n, steerable = sum(len(batch.y) for batch in batches), norm.steerable(model)
        similarity = dict.fromkeys(measure.PROBES, measure.Average())
        tolerance: list[Any] = []
        probes = list(product(measure.PROBES, batches))
        shifts = list(product(self.groups, ATTACKS)) if steerable else []
        total = len(probes) + len(shifts)
        with console.progress("analyzing") as update:
            for done, (probe, (x, y, ids)) in enumerate(probes):
                update(done, total)
                values = measure.ligs(model, x, y, probe, seed=self.seed, ids=ids)
                similarity[probe] += measure.Average.of(values)
            for done, (groups, attack) in enumerate(shifts, len(probes)):
                update(done, total)
                divisible = [batch for batch in batches if len(batch.y) % groups == 0]
                tolerance += measure.tolerance(
                    norm.steer(model), divisible, self.eps, [attack], self.source, groups, self.seed
                )
        x, y, _ = batches[0]
        return {
            "model": self.model,
            "images": ImagesRecord(images.name, images.digest, 0, n),
            "preprocessing": preprocessing(model, images),
            "batch_size": len(y),
            "seed": self.seed,
            "bn_mode": RunningMode(),
            "clip": False,
            "ligs": {probe: average.mean for probe, average in similarity.items()},
            "tolerance": tolerance,
            "landscape": measure.landscape(model, x, y),
            "statistics": measure.batch_against_running(model, x) if steerable else [],
            "flags": list(trust.other_images(model, batches[0], images)),
        }

    def _print(self, results: Mapping[str, Any], images: Any, batches: Sequence[Batch]) -> None:
        n = sum(len(batch.y) for batch in batches)
        console.table(
            f"{self.model} on the {describe_images(images, n)}, BN mode running: LIGS (1: the same gradient "
            "at a nearby image, whose pixels are not clipped)",
            list(results["ligs"]),
            [[f"{value:.3f}" for value in results["ligs"].values()]],
        )
        if results["tolerance"]:
            for groups in self.groups:
                self._print_tolerance(results["tolerance"], groups)
            console.table(
                f"A batch of {len(batches[0].y)} versus the running statistics, averaged over channels",
                ["layer", "mean shift (running std)", "std ratio (batch / running)"],
                _layer_shifts(results["statistics"]),
                right=[1, 2],
            )
        else:
            console.say("Statistics were not shifted: no batch-norm layer can be steered.")
        landscape = results["landscape"]
        low, high = landscape.loss_range
        console.say(
            f"Along a training step the loss ranges from {low:.3f} to {high:.3f}, its gradient changes "
            f"by up to {landscape.gradient_change:.3g}; effective beta {landscape.beta:.3g}."
        )
        if results["flags"]:
            console.flags(results["flags"])

    def _print_tolerance(self, tolerance: Sequence[Mapping[str, Any]], n: int) -> None:
        """Print the accuracies with n groups, a row per attack and a column per eps."""
        rows = [row for row in tolerance if row["groups"] == n]
        attacks = list(dict.fromkeys(row["attack"] for row in rows))
        accuracy = {(row["attack"], row["eps"]): row["accuracy"] for row in rows}
        table = [[name, *(console.percent(accuracy[name, eps]) for eps in self.eps)] for name in attacks]
        columns = ["", *(f"eps {eps:g}" for eps in self.eps)]
        groups = f", {n} groups" if n > 1 else ""
        batches = f", batches of {self.batch_size}" if self.source == "batch" else ""
        title = f"Accuracy with shifted {self.source} statistics{batches}{groups}"
        console.table(f"{title}; shifts of the first batch", columns, table, right=range(1, len(columns)))


def _layer_shifts(rows: list[dict[str, Any]]) -> list[list[str]]:
    """Return mean shift and std ratio of each layer, averaged over its channels."""
    by_layer: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        std = max(row["running variance"], 1e-12) ** 0.5
        shift = abs(row["batch mean"] - row["running mean"]) / std
        by_layer.setdefault(row["layer"], []).append((shift, row["batch variance"] ** 0.5 / std))
    return [
        [name, *(f"{fmean(column):.2f}" for column in zip(*channels, strict=True))]
        for name, channels in by_layer.items()
    ]
