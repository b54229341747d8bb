"""What was run: list it, compare it, take it elsewhere."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trimtab.evaluate.bn_modes import BNModeRecord, FrozenMode, PerBatchMode
from trimtab.evaluate.card import Card, Row, identity
from trimtab.evaluate.records import ConditionRecord
from trimtab.evaluate.store import DEFAULT, Store
from trimtab.types import BadInput, listed


@dataclass(frozen=True)
class StoredRun:
    """A finished evaluation in a store."""

    id: str
    finished: str
    """When the card was first complete, UTC."""
    card: Card


def runs(store: Store | str | Path = DEFAULT) -> list[StoredRun]:
    """Return all finished runs of a store, the oldest first."""
    store = store if isinstance(store, Store) else Store(store)
    entries = store.cards()
    if damaged := next((id for id, _, card in entries if not _intact(id, card)), None):
        raise BadInput(f"the run {damaged!r} in {store.path} is damaged; evaluate again into another store")
    return [StoredRun(id, finished, Card.read(card)) for id, finished, card in entries]


def _intact(id: str, card: str) -> bool:
    """Whether a card is as it was recorded."""
    try:
        return id == identity(card)
    except (ValueError, LookupError, TypeError, AttributeError):  # it is no longer a card's JSON
        return False


def find(id: str, store: Store | str | Path = DEFAULT) -> StoredRun:
    """Return the one run whose id begins so."""
    matches = [run for run in runs(store) if run.id.startswith(id)]
    if len(matches) != 1:
        raise BadInput(f"{len(matches)} runs have an id that begins with {id!r}; `runs` lists them all")
    return matches[0]


RowKey = tuple[ConditionRecord, BNModeRecord, int]
"""What a row was measured under: condition, BN mode, seed."""


def compare(compared: Sequence[StoredRun]) -> dict[RowKey, list[Row | None]]:
    """Return every condition, BN mode and seed with the row of each run (None if it did not measure it)."""
    by_run = [{(row.condition, row.bn_mode, row.seed): row for row in run.card.rows} for run in compared]
    row_keys = dict.fromkeys(row_key for rows in by_run for row_key in rows)
    return {row_key: [rows.get(row_key) for rows in by_run] for row_key in row_keys}


def unlike(cards: Sequence[Card]) -> str:
    """Return what differs between cards in addition to the models; empty if nothing does."""
    sizes = sorted({card.provenance["batch"] for card in cards if card.provenance.get("batch")})
    data = {str(card.provenance.get("data", card.data)) for card in cards}
    differences = ["on different images"] if len(data) > 1 else []
    counts = sorted({max(row.n for row in card.rows) for card in cards if card.rows})
    if len(counts) > 1:
        differences.append(f"on {listed(counts)} images")
    if len(sizes) > 1:
        differences.append(f"in batches of {listed(sizes)}")
    return " and ".join(differences)


def export(exported: Sequence[StoredRun]) -> str:
    """Return the rows of runs as CSV, one line each."""
    out = io.StringIO()
    writer: csv.DictWriter[str] | None = None
    for run in exported:
        for row in run.card.rows:
            line = _line(run, row)
            if writer is None:
                writer = csv.DictWriter(out, line, lineterminator="\n")
                writer.writeheader()
            writer.writerow(line)
    return out.getvalue()


def _line(run: StoredRun, row: Row) -> dict[str, object]:
    """One row for a spreadsheet; columns that do not apply are empty."""
    condition, mode, measure = row.condition, row.bn_mode, row.measure
    low, high = row.interval
    return {
        "run": run.id,
        "model": run.card.model,
        "data": row.images.data,
        "first image": row.images.start,
        "n": row.n,
        "kind": row.kind,
        "condition": str(condition),
        "clipped": getattr(condition, "clip", ""),
        "iterate": row.iterate,
        "bn mode": str(mode),
        "rho": mode.rho if isinstance(mode, PerBatchMode | FrozenMode) else "",
        "batch size": row.batch_size or "",
        "seed": row.seed,
        "accuracy": row.accuracy,
        "low": low,
        "high": high,
        "correct": row.correct,
        "measure": "" if measure is None else measure.name,
        "value": "" if measure is None or measure.value is None else measure.value,
        "curve": "; ".join(f"{x:g}: {y:g}" for x, y in row.curve.points) if row.curve else "",
        "figures": "; ".join(f"{name}: {value:g}" for name, value in row.figures.items()),
        "flags": "; ".join(flag.name for flag in run.card.flags if flag.bn_mode == mode),
    }
