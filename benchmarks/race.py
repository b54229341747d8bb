"""Contestants in turns, medians with their spread, and rows that know whether their mark was met.

After a warm-up the contestants take turns, in the opposite order every second round, on the wall clock and a
given number of threads: in one process, or where memory matters each in its own (`alone`). A contestant's
time is the median over the rounds. A ratio is that of two medians; its spread are the quartiles of the ratios
within each round, where both met the same machine. Read the ratios: seconds are another machine's tomorrow.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

STAT = Path("/proc/stat")
Run = Callable[[], object]
Times = dict[str, list[float]]
"""Seconds of each contestant, round by round."""


class Quartiles(NamedTuple):
    low: float
    median: float
    high: float


@dataclass(frozen=True)
class Asked:
    """What a run of the benchmarks was asked for."""

    rounds: int = 5
    """Turns of every contestant, after a warm-up."""
    threads: int = 2
    """Threads of torch (and of OpenCV, where it is compared with)."""
    quick: bool = False
    """A smoke run: everything small, one round. It proves that it runs, not what it costs."""
    standard: str | None = None
    """A network without robustness to attack; zoo:cifar10-standard if not given."""
    robust: str | None = None
    """An adversarially trained one; zoo:cifar10-adversarial if not given."""
    published: Path | None = None
    """Folder of the published networks that `races` attacks."""

    @property
    def turns(self) -> int:
        return 1 if self.quick else self.rounds


@dataclass(frozen=True)
class Row:
    """One comparison."""

    section: str
    what: str
    ratio: float
    spread: tuple[float, float]
    """Quartiles of the ratio within each round."""
    wanted: str = ""
    """The mark: "<= 1.03" or ">= 2"; empty if there is none."""
    seconds: Mapping[str, Quartiles] = field(default_factory=dict)
    """Of each contestant; empty where it is not time that is compared."""
    setting: Mapping[str, str] = field(default_factory=dict)
    """What a chart groups by."""

    @property
    def met(self) -> bool | None:
        """Whether the mark is met; None where there is none. A ratio that is not a number meets none."""
        if not self.wanted:
            return None
        sign, bound = self.wanted.split()
        return {"<=": self.ratio <= float(bound), ">=": self.ratio >= float(bound)}[sign]

    @property
    def verdict(self) -> str:
        return {None: "", True: "met", False: "missed"}[self.met]


@dataclass(eq=False)  # not frozen: Python itself writes to exceptions
class Skipped(Exception):
    """A section that cannot run here, and why."""

    section: str
    why: str


def race(contestants: Mapping[str, Run], rounds: int, per: Mapping[str, int] | None = None) -> Times:
    """Seconds of each contestant in every round; `per` divides them, by its number of images say."""
    for run in contestants.values():
        run()
    times: Times = {name: [] for name in contestants}
    for turn in range(rounds):
        order = list(contestants)
        for name in order if turn % 2 == 0 else reversed(order):
            began = time.perf_counter()
            contestants[name]()
            times[name].append((time.perf_counter() - began) / (per[name] if per else 1))
    return times


def compare(section: str, what: str, times: Times, top: str, bottom: str, wanted: str = "") -> Row:
    """The row of one contestant's time over another's."""
    ratios = np.divide(times[top], times[bottom])
    ratio = np.median(times[top]) / np.median(times[bottom])
    seconds = {name: quartiles(times[name]) for name in (top, bottom)}
    low, _, high = quartiles(ratios)
    return Row(section, what, float(ratio), (low, high), wanted, seconds)


def quartiles(values: Sequence[float] | np.ndarray) -> Quartiles:
    return Quartiles(*map(float, np.percentile(values, (25, 50, 75))))


def busy(seconds: float = 2.0) -> float:
    """Return the fraction of all cores' time that other programs take, over some seconds; 0 if not known."""
    if not STAT.exists():
        return 0.0
    before = _jiffies()
    time.sleep(seconds)
    idle, whole = (b - a for a, b in zip(before, _jiffies(), strict=True))
    return 1 - idle / max(1, whole)


def _jiffies() -> tuple[int, int]:
    """Idle and all jiffies of all cores."""
    values = [int(value) for value in STAT.read_text().split("\n", 1)[0].split()[1:9]]
    return values[3] + values[4], sum(values)


@contextmanager
def threads(n: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)
