"""repair, pack and merge as people type them: what they print, write and refuse."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import trimtab
from trimtab import norm
from trimtab.cli import main

MODEL = "zoo:sample-standard"


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")


def run(capsys, *words):
    code = main(list(words))
    output = capsys.readouterr()
    return code, output.out, output.err


def as_json(capsys, *words, code=0):
    found, out, err = run(capsys, *words, "--json")
    assert found == code, err
    return json.loads(out)


def broken(folder: Path) -> str:
    """A network whose statistics no longer fit it."""
    net = trimtab.steer(trimtab.load(MODEL))
    with torch.no_grad():
        for layer in norm.layers(net).values():
            layer.running_mean.add_(3 * layer.running_var.sqrt())
    trimtab.save(net, folder)
    return f"file:{folder}"


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


def test_repair_restores_a_network_and_writes_one_that_stock_torch_loads(capsys, tmp_path):
    words = ("repair", broken(tmp_path / "broken"), "--limit", "300", "--images", "500", "--out", "repaired")
    report = as_json(capsys, *words)
    assert report["helps"]
    assert report["kept"]
    assert report["after"]["accuracy"] > report["before"]["accuracy"] + 0.3
    assert report["p_value"] < 1e-6
    assert "500 training images of sample" in report["estimated_on"]
    intact = trimtab.load(MODEL)
    from safetensors.torch import load_file

    intact.net.load_state_dict(load_file("repaired/model.safetensors"))  # strict, a stock network
    code, out, _ = run(capsys, *words)
    assert code == 0
    assert "7 layers re-estimated, compared on 300 images" in out


def test_repair_says_where_it_does_not_help_and_writes_nothing(capsys):
    words = ("repair", MODEL, "--images", "2", "--limit", "300", "--out", "worse")  # far too few images
    report = as_json(capsys, *words, "--strict", code=1)
    assert not report["helps"]
    assert report["after"]["accuracy"] < report["before"]["accuracy"]
    assert report["out"] is None
    assert not Path("worse").exists()
    code, out, _ = run(capsys, *words)
    assert code == 0
    assert "does not help here: the original ones are kept" in out
    assert as_json(capsys, *words, "--always")["out"] == "worse"


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


def test_merging_models_takes_counts(capsys):
    code, _, err = run(capsys, "merge", MODEL, "zoo:sample-apart", "--out", "m.safetensors")
    assert (code, Path("m.safetensors").exists()) == (2, False)
    assert "counts" in err
    code, out, _ = run(
        capsys, "merge", MODEL, "zoo:sample-apart", "--counts", "10", "30", "--out", "m.safetensors"
    )
    assert code == 0
    assert "takes --force" in out
    apply = ("pack", "apply", MODEL, "m.safetensors", "--out", "merged")
    assert run(capsys, *apply)[0] == 2
    assert run(capsys, *apply, "--force")[0] == 0


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
