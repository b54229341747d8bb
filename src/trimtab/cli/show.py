"""What people see in a terminal: tables, progress with time left, accuracies with their intervals."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from trimtab.cli.options import speaks

if TYPE_CHECKING:
    from trimtab.evaluate import Card, Flag, Row

WIDE = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 160
"""Columns of what goes into a file or a pipe; a terminal knows its own."""
out = Console(emoji=False, width=WIDE)
err = Console(stderr=True, emoji=False)


def table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()
) -> None:
    made = Table(title=escape(title), title_justify="left", header_style="bold", box=box.SIMPLE_HEAD)
    wide = max((len(row[0]) for row in rows), default=0) < 40  # longer names may break
    for index, name in enumerate(columns):
        side: Any = "right" if index in right else "left"
        made.add_column(escape(name), justify=side, no_wrap=index == 0 and wide, overflow="fold")
    for row in rows:
        made.add_row(*(escape(cell) for cell in row))
    out.print(made)


def as_json(value: Any) -> None:
    """Print a value for scripts."""
    json.dump(_known(value), sys.stdout, indent=1, sort_keys=True, default=str, allow_nan=False)
    print()


def _known(value: Any) -> Any:
    """The value as JSON knows it: dataclasses by their fields, numbers that are none as null."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {name: _known(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_known(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def accuracy(share: float, interval: tuple[float, float]) -> str:
    return f"{100 * share:5.1f} %  [{100 * interval[0]:.1f}, {100 * interval[1]:.1f}]"


def scorecard(card: Card) -> None:
    """Accuracy under every condition, a column for each norm state; then the trust card."""
    states = list(dict.fromkeys(row.state for row in card.rows))
    found = {(row.condition, row.seed, row.state): row for row in card.rows}
    rows = [
        [condition, *(cell(found.get((condition, seed, state))) for state in states)]
        for condition, seed in dict.fromkeys((row.condition, row.seed) for row in card.rows)
    ]
    n = max((row.n for row in card.rows), default=0)
    table(
        f"{card.model} on {card.data}, {n} images: accuracy in % (LIGS: a cosine), and its 95 % interval",
        ["condition", *states],
        rows,
        right=range(1, 1 + len(states)),
    )
    for sentence in card.scored_otherwise:
        out.print(sentence, markup=False)
    doubts(card.flags)


def cell(row: Row | None) -> str:
    if row is None or row.told is None:
        return ""
    value, low, high = row.told
    if row.instead:
        return f"{value:.2f} [{low:.2f}-{high:.2f}]"
    return f"{100 * value:.1f} [{100 * low:.0f}-{100 * high:.0f}]"


def doubts(flags: Sequence[Flag]) -> None:
    """What a trust card found, of one card or of several."""
    if not flags:
        out.print("[green]Trust card:[/green] nothing found that speaks against these numbers.")
    for flag in flags:
        out.print(f"[red]Doubt[/red] ({escape(flag.name)}, {escape(flag.state)}): {escape(flag.saw)}.")
        out.print(f"      {escape(flag.advice)}.")


@contextmanager
def progress(what: str, unit: str = "images") -> Iterator[Callable[[int, int, str], None]]:
    """A bar on stderr with the time left; yields a function to tell (done, total, words).

    Where nobody watches (a file, a pipe), it writes a line now and then instead.
    """
    if not err.is_terminal:
        yield _lines(what, unit)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, transient=True, disable=not speaks()) as bar:
        task = bar.add_task(escape(what), total=None)

        def tell(done: int, total: int, words: str = "") -> None:
            bar.update(task, completed=done, total=total, description=escape(words or what))

        yield tell


QUIET = 30.0
"""Seconds between two lines of progress in a file."""


def _lines(what: str, unit: str) -> Callable[[int, int, str], None]:
    last = [time.monotonic()]

    def tell(done: int, total: int, words: str = "") -> None:
        if speaks() and time.monotonic() - last[0] > QUIET:
            last[0] = time.monotonic()
            err.print(f"{words or what}: {done:,} of {total:,} {unit}", markup=False, soft_wrap=True)

    return tell
