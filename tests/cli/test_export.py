"""`trimtab export` as people type it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import trimtab
from trimtab import adapt, data
from trimtab.cli import main

MODEL = "zoo:sample-mixture"


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_frozen_statistics_are_exported(capsys):
    words = ["export", MODEL, "--to", "torch.export", "--state", "frozen:64", "--out", "f.pt2", "--json"]
    assert main(words) == 0
    about = json.loads(capsys.readouterr().out)
    assert about["bytes"] == Path("f.pt2").stat().st_size
    known = next(iter(data.load("sample", "train").batches(64))).x
    frozen = adapt.frozen(trimtab.load(MODEL), known)
    x = next(iter(data.load("sample", "test").batches(5))).x
    with torch.no_grad():
        torch.testing.assert_close(torch.export.load("f.pt2").module()(x), frozen(x), rtol=1e-4, atol=1e-4)


def test_a_folder_for_timm_is_loaded_by_timm(capsys):
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    model = trimtab.load("timm:mobilenetv3_small_050", classes=3).eval()
    trimtab.save(model, "ours")
    assert main(["export", "file:ours", "--to", "timm", "--out", "theirs"]) == 0
    assert 'timm.create_model("local-dir:theirs"' in " ".join(capsys.readouterr().out.split())
    theirs = timm.create_model("local-dir:theirs", pretrained=True).eval()
    x = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(theirs(x), model.net(x))
    assert main(["export", MODEL, "--to", "timm", "--out", "no"]) == 2
    assert "no architecture of timm" in capsys.readouterr().err


def test_it_says_how_to_normalize_for_a_stock_state_dict(capsys):
    assert main(["export", MODEL, "--to", "stock", "--state", "branch:adv"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "model.safetensors" in out
    assert "normalize pixels in [0, 1] with mean" in out


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("--to", "caffe"), "stock, timm, torch.export, onnx"),
        (("--state", "adapted"), "running, branch:NAME or frozen:N"),
        (("--state", "frozen:"), "running, branch:NAME or frozen:N"),
        (("--state", "frozen:1"), "2 images or more"),
        (("--state", "frozen:many"), "'many'"),
        (("--state", "branch:fog"), "no branch 'fog'"),
        (("--to", "stock", "--statistics-as-inputs"), "has no inputs"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_two(capsys, words, part):
    assert main(["export", MODEL, *words]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert part in err
    assert not any(Path().iterdir())
