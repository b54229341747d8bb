"""What a page shows in addition to its card: measured on a sample, or read from the store.

Audit       the normalization layers, compared with the sample
Trial       clean and corrupted images under running, per-batch and frozen statistics: the basis of advice if
            the card itself knows only one BN mode; batches of several sizes show how large one must be
Examples    images that an attack made misclassified (if they were kept), and the harshest corruption
Charts      accuracy over shifted statistics; the statistics of each branch; accuracy against LIGS of a run
            with the callback `measure.usefulness`
Panel       of a model that can be steered: see `panel`
Cost        about 50 forward passes over the sample, and one gradient for the statistics; 240 for the panel
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trimtab import measure, norm
from trimtab.data import as_set, corrupt
from trimtab.data.sets import Batch, Images
from trimtab.evaluate import (
    BNMode,
    Card,
    Clean,
    Condition,
    Corrupted,
    FrozenMode,
    Noise,
    PerBatchMode,
    RunningMode,
    Store,
    images,
    run,
)
from trimtab.evaluate.records import CorruptionRecord
from trimtab.evaluate.store import DEFAULT
from trimtab.evaluate.suites import SAMPLE
from trimtab.report import plots
from trimtab.report.page import Extras
from trimtab.report.panel import PanelProgress, stored_panel
from trimtab.report.pictures import Gallery, examples
from trimtab.report.sentences import harshest
from trimtab.report.tables import names
from trimtab.train import existing
from trimtab.types import BadInput

BATCHES = (8, 16, 64)
"""Batch sizes that are tried."""
SHOWN = 6
"""Examples of each kind."""
_UNSTEERED = (
    "Other statistics were not tried: a batch-norm layer of this model overrides the forward pass and "
    "cannot be steered."
)


def gather(
    model: nn.Module,
    data: Any,
    card: Card,
    store: Store | str | Path = DEFAULT,
    sample: int = 256,
    steering: bool = True,
    progress: PanelProgress | None = None,
) -> Extras:
    """Return the extras of one model's page. Trials are stored, so a second call is quick.

    Args:
        model: the model of the card.
        data: the images that it was evaluated on.
        card: its evaluation.
        store: where it was stored; trials go next to it.
        sample: how many of the first images the trials take.
        steering: whether to measure the steering panel.
        progress: called with the fraction of each step that is done, and what is at work.
    """
    image_set = as_set(data)
    n = min(sample, len(image_set), max((row.n for row in card.rows), default=sample))
    audit = norm.audit(model, [image_set.take(torch.arange(n)).x])
    (name,) = names([card])
    if not norm.steerable(model):
        has_batch_norm = any(layer.kind == "batch" for layer in audit.layers)
        return Extras(
            audits={name: audit},
            galleries=tuple(_galleries(model, image_set, card, store)),
            left_out={name: [_UNSTEERED] if has_batch_norm else []},
        )
    path = Path(store.path if isinstance(store, Store) else store)
    why = _incorruptible(image_set)
    corrupted: list[Condition] = [Noise(0.1), *(Corrupted(each, 3) for each in SAMPLE if not why)]

    def trial(conditions: Sequence[Condition], modes: Sequence[BNMode], chunk: int) -> Card:
        def notify(status: Any) -> None:
            if progress:
                progress(status.fraction, f"advice: {status.condition}, batches of {chunk}")

        trials = path.with_name("trials.sqlite")
        return run(
            model, image_set, conditions, trials, limit=n, bn_modes=modes, chunk=chunk, name=card.model,
            progress=notify,
        )  # fmt: skip

    modes = (RunningMode(), PerBatchMode())
    by_size = {size: trial(corrupted[:3], modes, size) for size in BATCHES if 2 * size <= n}

    panel = stored_panel(model, image_set, path.parent, n, progress) if steering and not why else None
    return Extras(
        audits={name: audit},
        panels={name: panel} if panel else {},
        trials={name: trial([Clean(), *corrupted], (*modes, FrozenMode(images=n)), n)},
        batch_sizes={name: by_size},
        charts=tuple(_charts(model, image_set.take(torch.arange(n)), card)),
        galleries=tuple(_galleries(model, image_set, card, store)),
        left_out={name: [f"Corruptions were not tried: {why}."] if why else []},
    )


def _incorruptible(data: Images) -> str:
    """Why these images cannot be corrupted; empty if they can."""
    try:
        corrupt(data.take(torch.arange(1)).x, SAMPLE[0])
    except BadInput as problem:
        return str(problem)
    return ""


def _charts(model: nn.Module, batch: Batch, card: Card) -> Iterator[plots.Chart]:
    copied = norm.steer(norm.clone(model)).eval()
    series: dict[str, dict[float, float]] = {}
    for row in measure.tolerance(copied, [batch], attacks=("sign step (APART)", "random signs")):
        series.setdefault(row["attack"], {})[row["eps"]] = row["accuracy"]
    yield plots.tolerance_curve(series)
    several = {name: layer for name, layer in norm.layers(copied).items() if len(layer.branch_names) > 1}
    for name, layer in [*several.items()][:1]:
        means = {branch: norm.running(copied, branch)[name].mean.tolist() for branch in layer.branch_names}
        yield plots.branch_statistics(means, "running mean", name)
    folder = Path(card.model.removeprefix("file:"))
    if card.model.startswith("file:") and (folder / "recipe.yaml").is_file():
        epochs = [epoch for epoch in existing(folder).metrics() if "ligs" in epoch]
        if len(epochs) > 1:
            path = [(epoch["ligs"], epoch["usefulness"]) for epoch in epochs]
            yield plots.usefulness_against_ligs({card.model: path})


def _galleries(model: nn.Module, data: Images, card: Card, store: Store | str | Path) -> Iterator[Gallery]:
    """Of correctly classified images: the first that the change made misclassified."""
    for row in sorted(card.rows, key=lambda row: row.accuracy):
        if row.kind == "attack" and row.bn_mode == RunningMode():
            try:
                (start, stop), changed = next(images(row, store))
            except (BadInput, StopIteration):
                continue  # they were not kept
            batch = data.take(torch.arange(start, stop))
            yield from _misclassified(
                f"Attacked: {row.condition}, against running statistics", model, data, batch, changed
            )
            break
    worst = harshest(card, RunningMode())
    if worst and isinstance(worst[0], CorruptionRecord):
        corruption = worst[0]
        batch = data.take(torch.arange(min(128, len(data))))
        changed = corrupt(batch.x, corruption.name, corruption.severity, ids=batch.ids)
        yield from _misclassified(f"Corrupted: {corruption.title}", model, data, batch, changed)


@torch.no_grad()
def _misclassified(
    title: str, model: nn.Module, data: Images, batch: Batch, changed: Tensor
) -> Iterator[Gallery]:
    x, y, _ = batch
    like = next(model.parameters())
    with RunningMode().activate(model, lambda n: data.take(torch.arange(n)).x) as module:
        before, after = (module(each.to(like)).argmax(1).cpu() for each in (x, changed))
    adapted = None
    if norm.steerable(model) and len(x) > 1:
        with PerBatchMode().activate(model, lambda n: data.take(torch.arange(n)).x) as module:
            adapted = module(changed.to(like)).argmax(1).cpu()
    chosen = ((before == y) & (after != y)).nonzero()[:SHOWN, 0]
    if len(chosen):
        classes = (y[chosen].tolist(), before[chosen].tolist(), after[chosen].tolist())
        mended = None if adapted is None else adapted[chosen].tolist()
        yield examples(title, x[chosen], changed[chosen], *classes, data.classes, mended)
