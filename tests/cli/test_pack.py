"""repair, pack and merge as people type them: what they print, write and refuse."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.cli.commands import MODEL, as_json, run

import trimtab
from trimtab import norm


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")


@pytest.mark.parametrize("command", ["repair", "pack", "merge", "monitor", "export"])
def test_help_teaches_with_an_example_and_without_loading_torch(command):
    words = [command, "save"] if command == "pack" else [command]
    code = (
        f"import sys\nfrom trimtab.cli import main\ntry: main({[*words, '--help']})\n"
        "except SystemExit as done: assert done.code == 0\nassert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"{' '.join(words)} " in done.stdout.split("options")[0].split("]", 1)[1]


def test_packs_are_saved_listed_compared_merged_and_applied(capsys, tmp_path):
    gather = ("--data", "sample", "--images", "300")
    saved = as_json(capsys, "pack", "save", MODEL, "packs/a.safetensors", *gather, "--about", "site=a")
    assert saved["elements"] == 300 * 28 * 28
    assert saved["provenance"]["site"] == "a"
    run(capsys, "pack", "save", MODEL, "packs/main.safetensors")
    Path("packs/other.safetensors").write_bytes(b"no pack")
    run(capsys, "pack", "save", "zoo:sample-apart", "packs/other-weights.safetensors")
    rows = as_json(capsys, "pack", "list", "packs", "--model", MODEL)
    fits = {Path(row["pack"]).name: row["fits"] for row in rows}
    assert fits == {"a.safetensors": True, "main.safetensors": True, "other-weights.safetensors": False}

    layers = as_json(capsys, "pack", "diff", "packs/a.safetensors", "packs/main.safetensors")["layers"]
    assert len(layers) == 7
    assert 0 < max(row["mean_shift"] for row in layers) < 0.1
    same = ("pack", "diff", "packs/a.safetensors", "packs/a.safetensors", "--strict")
    assert run(capsys, *same)[0] == 0
    assert run(capsys, *same[:3], "packs/main.safetensors", "--strict")[0] == 1

    merged = as_json(capsys, "merge", "packs/a.safetensors", "packs/a.safetensors", "--out", "ab.safetensors")
    assert merged["layers"] == 7
    assert max(merged["averaging_error"].values()) < 1e-4  # the same images twice: nothing in between

    as_json(capsys, "pack", "apply", MODEL, "ab.safetensors", "--branch", "site", "--out", "both")
    both = trimtab.steer(trimtab.load("file:both"))
    a = norm.read_pack("packs/a.safetensors")
    for name, now in norm.running(both, "site").items():
        torch.testing.assert_close(now.mean, a.layers[name].mean)
    main_branch = norm.read_pack("packs/main.safetensors")
    assert all(torch.equal(m.mean, main_branch.layers[n].mean) for n, m in norm.running(both).items())


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("repair",), ("MODEL",)),
        (("repair", MODEL, "--images", "1"), ("--images", "2 or more")),
        (("repair", MODEL, "--augment", "spin"), ("no augmentation is called 'spin'",)),
        (("repair", MODEL, "--only", "nine", "--images", "64", "--limit", "64"), ("'nine'",)),
        (("repair", MODEL, "--branch", "fog", "--limit", "9"), ("no branch 'fog'",)),
        (("pack",), ("save, apply, list, diff",)),
        (("pack", "save", MODEL, "x.safetensors", "--about", "fog"), ("KEY=VALUE", "'fog'")),
        (("pack", "save", MODEL, "."), ("names no file",)),
        (("pack", "list", "none.safetensors"), ("there is no pack none.safetensors",)),
        (("pack", "diff", "a", "b"), ("there is no pack a",)),
        (("merge", "--out", "x"), ("packs or models",)),
        (("merge", "zoo:nothing", "--out", "x"), ("nothing",)),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_two(capsys, words, parts):
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert err.startswith("trimtab: ")
    assert all(part in err for part in parts), err
