"""`trimtab merge` as people type it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.commands import MODEL, run


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")


def test_merging_models_takes_counts(capsys):
    code, _, err = run(capsys, "merge", MODEL, "zoo:sample-apart", "--out", "m.safetensors")
    assert (code, Path("m.safetensors").exists()) == (2, False)
    assert "counts" in err
    code, out, _ = run(
        capsys, "merge", MODEL, "zoo:sample-apart", "--counts", "10", "30", "--out", "m.safetensors"
    )
    assert code == 0
    assert "needs --force" in out
    apply = ("pack", "apply", MODEL, "m.safetensors", "--out", "merged")
    assert run(capsys, *apply)[0] == 2
    assert run(capsys, *apply, "--force")[0] == 0
