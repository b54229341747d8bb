"""How far a run is, and how long it will still take."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from trimtab.evaluate.card import EvaluationStatus
from trimtab.evaluate.cells import Cell
from trimtab.measure.accuracy import Accuracy

Notify = Callable[[EvaluationStatus], None]
WARM_UP = 0.03
"""The fraction of the work from which on the time left is estimated: first passes are slow."""


@dataclass
class Meter:
    """Reports an `EvaluationStatus` after each chunk; time left follows from the cost of each condition."""

    notify: Notify | None
    cells: list[Cell]
    began: float = field(default_factory=time.monotonic)
    done: int = 0
    measured_cost: float = 0.0
    stored_cost: float = 0.0

    def __call__(self, cell: Cell, new: int, count: Accuracy) -> None:
        """Report a chunk of a cell.

        Args:
            cell: the cell.
            new: how many of its images were just measured; 0 for those that the store had.
            count: the cell's accuracy so far.
        """
        if self.notify is None:
            return
        if new:
            self.measured_cost += new * cell.condition.cost
        else:
            self.stored_cost += count.n * cell.condition.cost
        self.done += new or count.n
        total_cost = sum(each.n * each.condition.cost for each in self.cells)
        seconds_left = None
        if self.measured_cost > WARM_UP * total_cost:
            rate = (time.monotonic() - self.began) / self.measured_cost
            seconds_left = rate * (total_cost - self.measured_cost - self.stored_cost)
        total = sum(each.n for each in self.cells)
        fraction = (self.measured_cost + self.stored_cost) / total_cost
        bounds = count.bounds(cell.n)
        self.notify(
            EvaluationStatus(cell.condition.record(), self.done, total, *bounds, fraction, seconds_left)
        )
