"""`trimtab repair` as people type it: what it prints, writes and refuses."""

from __future__ import annotations

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


def broken(folder: Path) -> str:
    """A network whose statistics no longer fit it."""
    net = trimtab.steer(trimtab.load(MODEL))
    with torch.no_grad():
        for layer in norm.layers(net).values():
            layer.running_mean.add_(3 * layer.running_var.sqrt())
    trimtab.save(net, folder)
    return f"file:{folder}"


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
