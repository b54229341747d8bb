"""`trimtab audit`: the state of a model's normalization layers, with warnings and advice."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import trimtab
from trimtab.cli.lazy import console, data, models, norm
from trimtab.cli.options import AS_RECORDED, Json, Model, OptionalStr, Preprocessing, Split, Strict, first

if TYPE_CHECKING:
    from trimtab.data import Images


@dataclass(frozen=True)
class AuditCommand:
    """List a model's normalization layers, with warnings and advice.

    With --data, the running statistics are compared with those of the images.
    """

    model: Model
    data: OptionalStr = None
    """Images to compare statistics with, such as sample, cifar10 or folder:PATH."""
    split: Split = "test"
    preprocessing: Preprocessing = AS_RECORDED
    limit: int = 512
    """Only the first N images."""
    strict: Strict = False
    json: Json = False

    def run(self) -> int:
        """Run the command and return its exit code."""
        model = self.preprocessing.apply_to(trimtab.load(self.model))
        images = None
        if self.data is not None:
            images = first(data.load(self.data, self.split, input=model.spec), self.limit)
        audit = norm.audit(model, images and images.batches(128))
        if self.json:
            console.as_json({**asdict(audit), **_input(model, images)})
        else:
            _print(self.model, audit)
        return int(self.strict and not audit.sound)


def _input(model: models.Pixels, images: Images | None) -> dict[str, Any]:
    """What the statistics were compared with, and how the network takes its images."""
    from trimtab.evaluate.stored_images import preprocessing

    if images is None:
        return {"preprocessing": model.spec.to_json()}
    return {"data": images.name, "images": len(images), "preprocessing": preprocessing(model, images)}


def _print(name: str, audit: norm.Audit) -> None:
    if not audit.layers:
        console.say(f"{name} has no normalization layers.")
        return
    columns: dict[str, list[str]] = {
        "layer": [layer.name for layer in audit.layers],
        "kind": [layer.kind for layer in audit.layers],
        "channels": [str(layer.channels) for layer in audit.layers],
        "branches": [" ".join(layer.branches) for layer in audit.layers],
        "updates": ["" if layer.batches_seen is None else str(layer.batches_seen) for layer in audit.layers],
        "mean shift": [_drift(layer.drift_mean, " std") for layer in audit.layers],
        "std ratio": [_drift(layer.drift_std, "x") for layer in audit.layers],
        "warnings": [", ".join(warning.kind for warning in layer.warnings) for layer in audit.layers],
    }
    # Columns without information about this model are left out.
    columns = {
        name: cells for name, cells in columns.items() if any(cell not in ("", "main") for cell in cells)
    }
    title = f"{name}: {len(audit.layers)} normalization layers"
    console.table(title, list(columns), list(zip(*columns.values(), strict=True)))
    by_advice: dict[str, list[tuple[str, str]]] = {}
    for layer in audit.layers:
        for warning in layer.warnings:
            by_advice.setdefault(f"{warning.kind}: {warning.advice}", []).append((layer.name, warning.what))
    if not by_advice:
        console.say("No warnings.")
    for advice, places in by_advice.items():
        where = places[0][0] if len(places) == 1 else f"{len(places)} layers, the first {places[0][0]}"
        console.say(f"{advice}. ({where}: {places[0][1]})")


def _drift(value: float | None, unit: str) -> str:
    return "" if value is None else f"{value:.2f}{unit}"
