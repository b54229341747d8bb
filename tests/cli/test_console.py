"""What the terminal shows: progress in percent with the time left."""

import io
import re

import pytest
from rich.console import Console

from trimtab.cli import console


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test sets."""
    now = [100.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    return now


def test_the_time_left_is_in_proportion_to_the_work_left(clock):
    timer = console.Clock()
    assert timer.left(40, 100) is None  # of which nothing was done here: it was stored
    clock[0] += 10
    assert timer.left(60, 100) == pytest.approx(20)
    clock[0] += 30
    assert timer.left(80, 100) == pytest.approx(20)


def test_another_step_begins_its_own_estimate(clock):
    timer = console.Clock()
    timer.left(0, 10)
    clock[0] += 1000
    timer.left(10, 10)
    assert timer.left(0, 4) is None
    clock[0] += 1
    assert timer.left(1, 4) == pytest.approx(3)


def test_into_a_file_progress_is_a_line_now_and_then(clock, monkeypatch):
    written = io.StringIO()
    monkeypatch.setattr(console, "err", Console(file=written, width=100))
    with console.progress("constructing") as update:
        update(0, 8)
        clock[0] += console.QUIET + 1
        update(2, 8)
        update(3, 8, "too soon for another line")
        clock[0] += console.QUIET + 1
        update(4, 8, "FGSM", 75)
        clock[0] += console.QUIET + 1
        update(0, 0, "an unknown length")
    assert written.getvalue().splitlines() == [
        "constructing: 25 % done, 0:01:33 left", "FGSM: 50 % done, 0:01:15 left",
        "an unknown length: 0 % done",
    ]  # fmt: skip


def test_on_a_terminal_progress_is_a_bar_with_percent_and_the_time_left(monkeypatch):
    shown = io.StringIO()
    monkeypatch.setattr(console, "err", Console(file=shown, width=100, force_terminal=True))
    with console.progress("evaluating") as update:
        update(1, 4, "PGD-20", 3661)
    plain = re.sub(r"\x1b\[[0-9;?]*\w", "", shown.getvalue())
    assert re.search(r"25 % 1:01:01 left PGD-20", plain)
