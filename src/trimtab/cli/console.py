"""What the terminal shows: tables, progress with time left, accuracies with their intervals."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from trimtab.cli.options import is_main_process

if TYPE_CHECKING:
    from trimtab.evaluate import Card, Flag, Row

WIDE = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 160
"""Columns of output into a file or a pipe; a terminal knows its own width."""
out = Console(emoji=False, width=WIDE)
err = Console(stderr=True, emoji=False)


def say(text: str) -> None:
    """Print a sentence as it is; into a file or a pipe it is one line."""
    out.print(text, markup=False, highlight=False, soft_wrap=not out.is_terminal)


def note(text: str) -> None:
    """Print a sentence on stderr, likewise; of several processes only the first does."""
    if is_main_process():
        err.print(text, markup=False, highlight=False, soft_wrap=not err.is_terminal)


def result(for_scripts: bool, value: Any, *sentences: str) -> int:
    """Print what a command did, as JSON for scripts or else in sentences; return the exit code 0."""
    if for_scripts:
        as_json(value)
    else:
        for sentence in sentences:
            say(sentence)
    return 0


def table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()
) -> None:
    """Print a table; the columns in `right` are aligned to the right."""
    printed = Table(header_style="bold", box=box.SIMPLE_HEAD)
    wide = max((len(row[0]) for row in rows), default=0) < 40  # longer names may break
    for index, name in enumerate(columns):
        side: Any = "right" if index in right else "left"
        printed.add_column(escape(name), justify=side, no_wrap=index == 0 and wide, overflow="fold")
    for row in rows:
        printed.add_row(*(escape(cell) for cell in row))
    out.print(title, style="bold", markup=False, highlight=False)
    out.print(printed)


def as_json(value: Any) -> None:
    """Print a value for scripts."""
    json.dump(_plain(value), sys.stdout, indent=1, sort_keys=True, default=str, allow_nan=False)
    print()


def _plain(value: Any) -> Any:
    """The value as JSON knows it: dataclasses by their fields, NaN and infinity as null."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def percent(fraction: float) -> str:
    """Format a fraction in percent."""
    return f"{100 * fraction:.1f} %"


def accuracy(value: float, interval: tuple[float, float]) -> str:
    """Format an accuracy with its interval in percent."""
    return f"{100 * value:5.1f} %  [{100 * interval[0]:.1f}, {100 * interval[1]:.1f}]"


def scorecard(card: Card) -> None:
    """Print the accuracy under every condition, a column for each BN mode; then the trust card."""

    modes = list(dict.fromkeys(row.bn_mode for row in card.rows))
    by_cell = {(row.condition, row.seed, row.bn_mode): row for row in card.rows}
    rows = [
        [str(condition), *(cell(by_cell.get((condition, seed, mode))) for mode in modes)]
        for condition, seed in dict.fromkeys((row.condition, row.seed) for row in card.rows)
    ]
    table(
        f"{card.model}, {card.measured_on}: accuracy in % (LIGS: a cosine) and its 95 % interval",
        ["condition", *map(str, modes)],
        rows,
        right=range(1, 1 + len(modes)),
    )
    for row in card.without_early_stopping:
        say(f"{row.condition}, in BN mode {row.bn_mode}: {row.iterate} of whole batches.")
    flags(card.flags)


def cell(row: Row | None) -> str:
    """Format what a row is about with its interval; empty for no row."""
    if row is None or row.estimate is None:
        return ""
    value, low, high = row.estimate
    if row.measure:
        return f"{value:.2f} [{low:.2f}-{high:.2f}]"
    return f"{100 * value:.1f} [{100 * low:.0f}-{100 * high:.0f}]"


def flags(raised: Sequence[Flag], labels: Sequence[str] = ()) -> None:
    """Print the flags of a trust card, or of several; labels replace their BN modes."""
    if not raised:
        out.print("[green]Trust card:[/green] no flag raised.")
    for flag, label in zip(raised, labels or [str(flag.bn_mode) for flag in raised], strict=True):
        where = escape(f"{flag.name}, {label}")
        out.print(f"[red]Warning[/red] ({where}): {escape(flag.saw)}.")
        out.print(f"      {escape(flag.advice)}.")


Update = Callable[..., None]
"""Called (done, total, text, seconds_left): units of work, what is at work, and the time left if known."""
QUIET = 30.0
"""Seconds between two lines of progress in a file."""


@contextmanager
def progress(what: str) -> Iterator[Update]:
    """Show on stderr how many percent of a long step are done, and the time left; yield an `Update`.

    Into a file or a pipe, it writes a line now and then instead of a bar.
    """
    if not err.is_terminal:
        yield _lines(what)
        return
    columns = (
        BarColumn(20), TextColumn("{task.percentage:3.0f} %"), TextColumn("{task.fields[left]}"),
        TextColumn("{task.description}"),
    )  # fmt: skip
    with Progress(*columns, console=err, transient=True, disable=not is_main_process()) as bar:
        task = bar.add_task(escape(what), total=None, left="")
        clock = Clock()

        def update(done: float, total: float, text: str = "", seconds: float | None = None) -> None:
            left = duration(clock.left(done, total) if seconds is None else seconds)
            bar.update(task, completed=done, total=total, description=escape(text or what), left=left)

        yield update


@contextmanager
def page_progress() -> Iterator[Callable[[float, str], None]]:
    """Show what a page is gathering, and yield what `report.gather` calls."""
    with progress("gathering for the page") as update:
        yield lambda done, text: update(done, 1.0, text)


class Clock:
    """Estimates the seconds left from the work done since it began; begins anew when work starts over."""

    def __init__(self) -> None:
        self.began, self.first, self.last = time.monotonic(), 0.0, math.inf

    def left(self, done: float, total: float) -> float | None:
        """Return the seconds left, or None before any work is done."""
        if done < self.last:
            self.began, self.first = time.monotonic(), done
        self.last = done
        if done <= self.first:
            return None
        return (time.monotonic() - self.began) / (done - self.first) * (total - done)


def duration(seconds: float | None) -> str:
    """Format the time left; empty if it is unknown."""
    return "" if seconds is None else f"{timedelta(seconds=round(max(seconds, 0)))} left"


def _lines(what: str) -> Update:
    last, clock = [time.monotonic()], Clock()

    def update(done: float, total: float, text: str = "", seconds: float | None = None) -> None:
        left = duration(clock.left(done, total) if seconds is None else seconds)
        if time.monotonic() - last[0] > QUIET:
            last[0] = time.monotonic()
            note(f"{text or what}: {100 * done / total if total else 0:.0f} % done{left and f', {left}'}")

    return update
