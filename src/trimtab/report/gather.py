"""What a page shows beyond its card: tried now on a sample, or found in the store.

Audit       the normalisation layers, compared with the sample
Trial       clean and disturbed images under running, per-batch and frozen statistics: what advice rests on
            if the card itself knows only one norm state; batches of several sizes say how large one must be
Examples    images that an attack turned (if they were kept) and that the harshest corruption turned
Charts      accuracy over moved statistics; the branches' statistics side by side; of a run that was watched
            (`measure.usefulness`), its path through accuracy and LIGS
Cost        about 50 forward passes over the sample, and one gradient for the statistics
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trimtab import measure, norm
from trimtab.data import as_set, corrupt
from trimtab.data.sets import Batch, Images
from trimtab.evaluate import (
    Card,
    Clean,
    Condition,
    Corrupted,
    Frozen,
    Noise,
    NormState,
    PerBatch,
    Running,
    Store,
    images,
    run,
)
from trimtab.evaluate.store import DEFAULT
from trimtab.evaluate.suites import SAMPLE
from trimtab.report import plots
from trimtab.report.page import Extras
from trimtab.report.pictures import Gallery, examples
from trimtab.report.tables import names
from trimtab.report.words import harshest
from trimtab.train.runs import existing
from trimtab.types import BadInput

BATCHES = (8, 16, 64)
"""Batch sizes that are tried."""
SHOWN = 6
"""Examples of each kind."""
_UNSTEERED = (
    "Other statistics were not tried: a batch-norm layer of this model has a forward pass of its own and "
    "cannot be steered."
)


def gather(
    model: nn.Module, data: Any, card: Card, store: Store | str | Path = DEFAULT, sample: int = 256
) -> Extras:
    """The extras of one model's page. Trials are kept beside the store, so a second call is quick."""
    held = as_set(data)
    n = min(sample, len(held), max((row.n for row in card.rows), default=sample))
    audit = norm.audit(model, [held.take(torch.arange(n)).x])
    (name,) = names([card])
    if not norm.steerable(model):
        found = any(layer.kind == "batch" for layer in audit.layers)
        return Extras(
            audits={name: audit},
            galleries=tuple(_galleries(model, held, card, store)),
            left_out={name: [_UNSTEERED] if found else []},
        )
    path = Path(store.path if isinstance(store, Store) else store)
    why = _incorruptible(held)
    disturbed: list[Condition] = [Noise(0.1), *(Corrupted(one, 3) for one in SAMPLE if not why)]

    def trial(tried: Sequence[Condition], states: Sequence[NormState], chunk: int) -> Card:
        beside = path.with_name("trials.sqlite")
        return run(model, held, tried, beside, limit=n, states=states, chunk=chunk, name=card.model)

    by_size = {size: trial(disturbed[:3], (Running(), PerBatch()), size) for size in BATCHES if 2 * size <= n}

    return Extras(
        audits={name: audit},
        trials={name: trial([Clean(), *disturbed], (Running(), PerBatch(), Frozen(images=n)), n)},
        batch_sizes={name: by_size},
        charts=tuple(_charts(model, held.take(torch.arange(n)), card)),
        galleries=tuple(_galleries(model, held, card, store)),
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
    copied = norm.steer(norm.copied(model)).eval()
    series: dict[str, dict[float, float]] = {}
    for row in measure.tolerance(copied, [batch], attacks=("sign step (APART)", "random signs")):
        series.setdefault(row["attack"], {})[row["eps"]] = row["accuracy"]
    yield plots.tolerance_curve(series)
    several = {name: layer for name, layer in norm.layers(copied).items() if len(layer.branch_names) > 1}
    for name, layer in [*several.items()][:1]:
        means = {one: norm.running(copied, one)[name].mean.tolist() for one in layer.branch_names}
        yield plots.branch_statistics(means, "running mean", name)
    folder = Path(card.model.removeprefix("file:"))
    if card.model.startswith("file:") and (folder / "recipe.yaml").is_file():
        watched = [epoch for epoch in existing(folder).metrics() if "ligs" in epoch]
        if len(watched) > 1:
            path = [(epoch["ligs"], epoch["usefulness"]) for epoch in watched]
            yield plots.usefulness_against_ligs({card.model: path})


def _galleries(model: nn.Module, data: Images, card: Card, store: Store | str | Path) -> Iterator[Gallery]:
    """Of images that were right before: the first that were turned."""
    for row in sorted(card.rows, key=lambda row: row.accuracy):
        if row.kind == "attack" and row.state == str(Running()):
            try:
                (start, stop), changed = next(images(row, store))
            except (BadInput, StopIteration):
                continue  # they were not kept
            batch = data.take(torch.arange(start, stop))
            yield from _turned(f"Attacked: {row.condition}", model, data, batch, changed)
            break
    found = harshest(card, str(Running()))
    named = found and re.fullmatch(r"(.+), severity (\d)", found[0])
    if named:
        batch = data.take(torch.arange(min(128, len(data))))
        changed = corrupt(batch.x, _corruption(named[1]), int(named[2]), ids=batch.ids)
        yield from _turned(f"Corrupted: {named[0]}", model, data, batch, changed)


def _corruption(words: str) -> str:
    """The name behind a condition's words: `frost (grown ice)` is `frost`."""
    return words.partition(" (")[0].replace(" ", "_")


@torch.no_grad()
def _turned(title: str, model: nn.Module, data: Images, batch: Batch, changed: Tensor) -> Iterator[Gallery]:
    x, y, _ = batch
    like = next(model.parameters())
    with Running().lend(model, lambda n: data.take(torch.arange(n)).x) as judge:
        before, after = (judge(one.to(like)).argmax(1).cpu() for one in (x, changed))
    turned = ((before == y) & (after != y)).nonzero()[:SHOWN, 0]
    if len(turned):
        told = (y[turned].tolist(), before[turned].tolist(), after[turned].tolist())
        yield examples(title, x[turned], changed[turned], *told, data.classes)
