"""What was run: list it, compare it, take it elsewhere."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trimtab.evaluate.card import Card, Row, identity
from trimtab.evaluate.store import DEFAULT, Store
from trimtab.keys import digest
from trimtab.types import BadInput


@dataclass(frozen=True)
class Run:
    id: str
    finished: str
    """When the card was first complete, UTC."""
    card: Card


def runs(store: Store | str | Path = DEFAULT) -> list[Run]:
    """All finished runs of a store, the oldest first."""
    store = store if isinstance(store, Store) else Store(store)
    found = store.cards()
    if odd := next((id for id, _, card in found if not _whole(id, card)), None):
        raise BadInput(f"the run {odd!r} in {store.path} is damaged; evaluate again into another store")
    return [Run(id, finished, Card.read(card)) for id, finished, card in found]


def _whole(id: str, card: str) -> bool:
    """Whether a card is as it was recorded; in stores of old its id was that of the text as it is."""
    try:
        return id in (identity(card), digest(card)[:12])
    except (ValueError, LookupError, TypeError, AttributeError):  # it is no longer a card's JSON
        return False


def find(id: str, store: Store | str | Path = DEFAULT) -> Run:
    """The one run whose id begins so."""
    fit = [run for run in runs(store) if run.id.startswith(id)]
    if len(fit) != 1:
        raise BadInput(f"{len(fit)} runs have an id that begins with {id!r}; `runs` lists them all")
    return fit[0]


Question = tuple[str, str, int]
"""What a row answers: condition, norm state, seed."""


def compare(compared: Sequence[Run]) -> dict[Question, list[Row | None]]:
    """Every condition, norm state and seed, and what each run found there (None if it did not ask)."""
    answers = [{(row.condition, row.state, row.seed): row for row in run.card.rows} for run in compared]
    questions = dict.fromkeys(question for answer in answers for question in answer)
    return {question: [answer.get(question) for answer in answers] for question in questions}


def export(exported: Sequence[Run]) -> str:
    """The rows of runs as CSV, one line each."""
    out = io.StringIO()
    lines: csv.DictWriter[str] | None = None
    for run in exported:
        for row in run.card.rows:
            low, high = row.interval
            line = {
                **{"run": run.id, "model": run.card.model, "data": run.card.data},
                **{name: getattr(row, name) for name in ("kind", "condition", "state", "seed", "score")},
                **{"accuracy": row.accuracy, "low": low, "high": high, "correct": row.correct, "n": row.n},
                "instead": row.instead,
                "figures": "; ".join(f"{name}: {value:g}" for name, value in row.figures.items()),
                "flags": "; ".join(flag.name for flag in run.card.flags if flag.state == row.state),
            }
            if lines is None:
                lines = csv.DictWriter(out, line, lineterminator="\n")
                lines.writeheader()
            lines.writerow(line)
    return out.getvalue()
