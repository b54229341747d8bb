"""The tutorials run, and print what they show."""

from __future__ import annotations

from pathlib import Path

import pytest
from docs.generate import notebooks
from tests.docs.numbers_alike import assert_alike

TUTORIALS = sorted(notebooks.TUTORIALS.glob("*.ipynb"))


def test_there_is_a_tutorial_for_each_purpose() -> None:
    assert {path.stem for path in TUTORIALS} >= {"adapt", "attack", "certify", "train"}


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_tutorials_print_what_they_show(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    stored = notebooks.read(path)
    run = notebooks.executed(stored)
    assert any(notebooks.outputs(stored))
    for ours, theirs in zip(notebooks.outputs(run), notebooks.outputs(stored), strict=True):
        assert_alike(ours, theirs, tolerance=6)


def test_a_notebook_shows_what_is_printed_and_the_last_value() -> None:
    cell = {"cell_type": "code", "source": ["print(1)\n", "2 + 2"], "outputs": []}
    assert notebooks.outputs(notebooks.executed({"cells": [cell]})) == ["1\n4\n"]
