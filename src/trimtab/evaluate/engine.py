"""Measuring cells in chunks that are committed one by one.

Chunks that the store has are never measured again, whichever run measured them, with however many images or
processes. The processes of a Fabric take the missing chunks in turn, and return columns to the first, which
alone writes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from trimtab.evaluate import chunks
from trimtab.evaluate.cells import Cell
from trimtab.evaluate.collective import broadcast, gather, rank_and_world
from trimtab.evaluate.conditions import Columns
from trimtab.evaluate.store import Span
from trimtab.measure.accuracy import Accuracy
from trimtab.types import BadInput

OnChunk = Callable[[Cell, int, Accuracy], None]
"""Called on the first process: the cell, the number of images just measured, the accuracy so far."""


def measure(cell: Cell, on_chunk: OnChunk | None = None) -> Columns:
    """Return the columns of a cell, one value per image: read from the store, else measured and stored.

    Every process of the Fabric calls this, and all get the columns. Images stay in the store.

    Args:
        cell: what to measure.
        on_chunk: called before the first missing chunk and after each.
    """
    fabric = cell.subject.fabric
    rank, world = rank_and_world(fabric)
    ledger = _Ledger(cell, on_chunk) if rank == 0 else None
    missing: list[Span] = broadcast(fabric, ledger.missing if ledger else None)
    if missing:
        with cell.bn_mode.activate(cell.subject.model, lambda n: _first_images(cell, n)) as module:
            for i in range(0, len(missing), world):
                _take_turn(cell, module, missing[i : i + world], ledger)
    return broadcast(fabric, ledger.columns if ledger else None)


class _Ledger:
    """The finished chunks of a cell, which the first process keeps and commits."""

    def __init__(self, cell: Cell, on_chunk: OnChunk | None) -> None:
        self.cell, self.on_chunk = cell, on_chunk
        self.finished = chunks.stored(cell)
        self.count = sum((Accuracy.of(part["correct"]) for part in self.finished.values()), Accuracy())
        self._report(0)

    @property
    def missing(self) -> list[Span]:
        return [span for span in self.cell.spans if span not in self.finished]

    @property
    def columns(self) -> Columns:
        return chunks.joined([self.finished[span] for span in self.cell.spans])

    def commit(self, span: Span, columns: Columns) -> None:
        """Store one measured chunk and report it."""
        store, key = self.cell.subject.store, self.cell.key
        if self.cell.subject.keep_images:  # replaces a chunk that was stored without images
            store.forget(key, span)
        store.commit(key, self.cell.about, span, columns)
        self.finished[span] = chunks.without_images(columns)
        self.count += Accuracy.of(columns["correct"])
        self._report(span[1] - span[0])

    def _report(self, new: int) -> None:
        if self.on_chunk:
            self.on_chunk(self.cell, new, self.count)


def _take_turn(cell: Cell, module: nn.Module, turn: Sequence[Span], ledger: _Ledger | None) -> None:
    """Measure one chunk per process; if one fails, all processes stop after the others' are committed."""
    fabric = cell.subject.fabric
    rank, _ = rank_and_world(fabric)
    results = gather(fabric, chunks.measured(cell, module, turn[rank]) if rank < len(turn) else None)
    problems = [result for result in results if isinstance(result, BadInput)]
    for span, result in zip(turn, results, strict=False):
        if ledger is None or isinstance(result, BadInput):
            continue
        try:
            ledger.commit(span, result)
        except BadInput as failed:
            problems.append(failed)
    problem = broadcast(fabric, problems[0] if problems else None)
    if problem:
        raise problem


def _first_images(cell: Cell, n: int) -> Tensor:
    """The first n images under the cell's condition, for BN modes that estimate statistics on them."""
    return cell.condition.shown(cell.subject.batch(0, n), cell.seed)
