"""Any words on the command line: done, or exit code 2 with one line; never a stack trace, never a rest."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.properties.hostile import examples, texts, tidy

import trimtab
from trimtab import models
from trimtab.cli import main
from trimtab.cli.aliases import modernize

NETS = ["net:resnet8,width=1,channels=1", "net:resnet8,width=1", "net:resnet8,width=1,channels=1,classes=3"]
words = st.sampled_from(
    ["", "-1", "0", "1", "2", "1e400", "nan", "8/255", "1/0", "[", "{a: b}", "/", "/dev/null", "/dev/null/x",
     "sample", "two-cue:x", "npz:/", "folder:/dev", "file:none", "zoo:x", "net:resnet8", "py:os:getcwd",
     "[red]", "[/red]", "<b>", "\x1b[2J", "a\nb", "\0", "9" * 40, "D_R", "D_rand", "quick", "batch:2",
     "frozen:0", "running", "fog:9", "true", "smoke", "-", "--", "--json", "--help", "None", "é", "\udce9",
     "branch:x", "..", "x" * 300]
) | texts  # fmt: skip
places = st.sampled_from(
    [
        "",
        "-",
        "x" * 300,
        "a/b",
        "taken",
        "taken/x",
        "folder",
        "a\nb",
        "\x1b[2J",
        "[red]",
        "\udce9",
        "\0",
        "a.npz",
    ]
) | texts.filter(lambda text: "/" not in text and text != "..")
"""Where to write: never outside of the folder we are in."""
WRITING = ("--out", "--save", "--csv", "--page", "--store", "--root")
COMMANDS = {
    "audit": ("--data", "--split", "--limit"),
    "evaluate": ("--data", "--split", "--suite", "--states", "--eps", "--eps-l2", "--seed", "--batch-size",
                 "--chunk", "--store", "--page", "--baseline"),
    "adapt": ("--data", "--split", "--sigma", "--corruption", "--rho", "--batch-size", "--blend-of", "--seed",
              "--save", "--save-sigma", "--save-images"),
    "certify": ("--data", "--split", "--sigma", "--n0", "--alpha", "--adapt", "--adapt-on", "--seed"),
    "lens": ("--data", "--split", "--eps", "--seed"),
    "construct": ("--data", "--split", "--out", "--seed"),
    "train": ("--model", "--data.name", "--data.augment", "--objective.kind", "--objective", "--optimizer.lr",
              "--schedule.kind", "--validation.attack", "--norm.only", "--batch_size", "--precision", "--out",
              "--resume", "--seed", "--clip", "--ema", "--epoch"),
    "runs": ("--csv", "--store"),
    "report": ("--out", "--store"),
    "data": ("--root", "--source"),
}  # fmt: skip
SMALL = {
    "evaluate": ["--limit", "2"], "adapt": ["--limit", "2", "--sigma", "0"], "audit": ["--limit", "2"],
    "certify": ["--limit", "1", "--n", "10", "--n0", "10"], "lens": ["--limit", "2"],
    "construct": ["--limit", "2", "--steps", "1"], "train": ["--data.images", "32", "--data.validation", "0"],
}  # fmt: skip
"""What keeps a command short that turns out to be sound."""
FIRST = {
    "construct": st.tuples(st.just("D_rand") | words, st.sampled_from(NETS)),
    "train": st.tuples(st.just("smoke") | words),
    "data": st.tuples(st.just("list") | words)
    | st.tuples(st.just("fetch"), st.sampled_from(["x", ""]) | texts),
    "runs": st.tuples() | st.tuples(words),
    "report": st.tuples(words),
}
"""What stands before a command's options; most want a model."""


@st.composite
def lines(draw: st.DrawFn) -> list[str]:
    command = draw(st.sampled_from(sorted(COMMANDS)))
    first = draw(FIRST.get(command, st.tuples(st.sampled_from(NETS) | words)))
    given_options = [
        word
        for name in draw(st.lists(st.sampled_from(COMMANDS[command]), max_size=2, unique=True))
        for word in (name, draw(places if name in WRITING else words))
    ]
    return [command, *first, *SMALL.get(command, []), *given_options]


def said(line: list[str]) -> tuple[int | str | None, str]:
    """The exit code of a command, and what it wrote on stderr."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code: int | str | None = main(line)
        except SystemExit as done:
            code = done.code
    return code, err.getvalue()


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("HOME", "/nowhere")


@examples(250)
@given(lines())
def test_any_words_are_done_or_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: list[str]
) -> None:
    folder = tempfile.mkdtemp(dir=tmp_path)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("TRIMTAB_DATA", folder)
    Path("taken").write_text("mine")
    Path("folder").mkdir()
    code, err = said(line)
    assert code in (0, 2), line
    assert "Traceback" not in err
    ours = [row for row in err.splitlines() if row.startswith("trimtab: ")]
    notices = modernize(line)[1]  # of old names, one line each
    assert len(ours) <= 1 + len(notices)
    assert all(row.isprintable() for row in ours)
    assert tidy(Path(folder))


@examples(150)
@given(st.lists(words | st.sampled_from(sorted(COMMANDS)), max_size=4))
def test_any_sequence_of_words_is_done_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    if line[:1] == ["train"]:
        line = [*line, "--dry-run"]  # a whole training is for the other test
    assert said(line)[0] in (0, 2), line


@pytest.mark.parametrize("folder", ["", "sub"])
def test_a_read_only_place_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    """Nobody may make a folder below /proc, not even root."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    trimtab.save(models.build("resnet8", classes=10, width=1, channels=1), tmp_path / "net")
    place = os.path.join("/proc/self", folder)
    small = ["--limit", "2"]
    for line in (
        ["evaluate", "file:net", *small, "--store", f"{place}/s.sqlite"],
        ["evaluate", "file:net", *small, "--page", f"{place}/page.html"],
        ["adapt", "file:net", *small, "--sigma", "0", "--save", f"{place}/net"],
        ["construct", "D_rand", "file:net", *small, "--steps", "1", "--out", f"{place}/set.npz"],
        ["train", "smoke", "--out", f"{place}/run"],
        ["runs", "--csv", f"{place}/rows.csv"],
    ):
        code, err = said(line)
        assert code == 2, line
        assert err.strip().splitlines()[-1].startswith("trimtab: "), err
