"""`trimtab audit`: the state of a model's normalisation layers, their trouble, and advice."""

from __future__ import annotations

from dataclasses import dataclass

from trimtab.cli.options import Json, Model, Split, Strict, Text, first


@dataclass(frozen=True)
class Audit:
    """List a model's normalisation layers with their state, trouble and advice.

    With --data, the running statistics are compared with those that the images give.
    """

    model: Model
    data: Text = None
    """Images to compare statistics with, such as sample, cifar10 or folder:PATH."""
    split: Split = "test"
    limit: int = 512
    """How many of them."""
    strict: Strict = False
    json: Json = False

    def run(self) -> int:
        import trimtab
        from trimtab import data, norm
        from trimtab.cli import show

        model = trimtab.load(self.model)
        images = None
        if self.data is not None:
            chosen = data.load(self.data, self.split)
            images = first(chosen, self.limit).batches(128)
        found = norm.audit(model, images)
        if self.json:
            show.as_json(found)
        else:
            _print(self.model, found)
        return int(self.strict and not found.sound)


def _print(name: str, found: object) -> None:
    from trimtab.cli import show
    from trimtab.norm import Audit as Found

    assert isinstance(found, Found)
    if not found.layers:
        show.out.print(f"{name} has no normalisation layers.")
        return
    columns: dict[str, list[str]] = {
        "layer": [layer.name for layer in found.layers],
        "kind": [layer.kind for layer in found.layers],
        "channels": [str(layer.channels) for layer in found.layers],
        "branches": [" ".join(layer.branches) for layer in found.layers],
        "updates": ["" if layer.batches_seen is None else str(layer.batches_seen) for layer in found.layers],
        "mean off": [_off(layer.drift_mean, " sd") for layer in found.layers],
        "deviation": [_off(layer.drift_std, "x") for layer in found.layers],
        "trouble": [", ".join(trouble.kind for trouble in layer.trouble) for layer in found.layers],
    }
    # A column that says nothing about this model is left out.
    columns = {
        name: cells for name, cells in columns.items() if any(cell not in ("", "main") for cell in cells)
    }
    title = f"{name}: {len(found.layers)} normalisation layers"
    show.table(title, list(columns), list(zip(*columns.values(), strict=True)))
    seen: dict[str, list[tuple[str, str]]] = {}
    for layer in found.layers:
        for trouble in layer.trouble:
            seen.setdefault(f"{trouble.kind}: {trouble.advice}", []).append((layer.name, trouble.what))
    if not seen:
        show.out.print("No trouble found.")
    for advice, places in seen.items():
        where = places[0][0] if len(places) == 1 else f"{len(places)} layers, the first {places[0][0]}"
        show.out.print(f"{advice}. ({where}: {places[0][1]})", markup=False, highlight=False)


def _off(value: float | None, unit: str) -> str:
    return "" if value is None else f"{value:.2f}{unit}"
