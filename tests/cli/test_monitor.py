"""`trimtab monitor` as people type it.

Also tests report.monitored.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import trimtab
from trimtab import data, norm
from trimtab.cli import main
from trimtab.types import InputSpec

MODEL = "zoo:sample-standard"
SMALL = ("--reference-images", "150", "--fraction", "1", "--batch-size", "50")


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")


def as_json(capsys, *words, code=0):
    assert main(["monitor", MODEL, *words, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_a_clean_stream_raises_no_alarm_and_a_corrupted_one_does(capsys):
    clean = as_json(capsys, *SMALL, "--limit", "300", "--strict")
    assert (clean["images"], clean["observed"], clean["alarm"]) == (150, 150, False)
    assert (clean["split"], clean["corruption"], clean["batch_size"]) == ("test", None, 50)
    assert InputSpec.from_json(clean["preprocessing"]) == trimtab.load(MODEL).spec
    foggy = as_json(capsys, *SMALL, "--limit", "300", "--corruption", "fog:5", "--strict", code=1)
    assert foggy["alarm"]
    assert foggy["alarm_at"] <= 150
    assert main(["monitor", MODEL, *SMALL, "--limit", "300", "--corruption", "fog:5"]) == 0
    out = capsys.readouterr().out
    assert "Drift detected after" in out
    assert "net.layer1" in out


def test_the_state_continues_in_the_next_call_and_the_log_with_it(capsys):
    kept = (*SMALL[2:], "--state", "here.state", "--log", "log.jsonl", "--every", "50")
    whole = as_json(capsys, *SMALL, "--limit", "450")
    first = as_json(capsys, *SMALL[:2], *kept, "--limit", "350")
    assert first["images"] == 200
    lines = Path("log.jsonl").read_text().splitlines()
    assert [json.loads(line)["images"] for line in lines] == [50, 100, 150, 200]
    Path("log.jsonl").write_text("\n".join([*lines, json.dumps({"images": 250})]) + "\n")  # of a killed call
    rest = data.load("sample", "test").take(torch.arange(350, 450))
    pixels = (rest.x * 255).round().byte().permute(0, 2, 3, 1)
    np.savez("rest.npz", images=pixels.numpy(), labels=rest.y.numpy())
    second = as_json(capsys, "--data", "npz:rest.npz", *kept)
    assert second["images"] == whole["images"] == 300
    assert second["evidence"] == pytest.approx(whole["evidence"], rel=1e-3)
    images = [json.loads(line)["images"] for line in Path("log.jsonl").read_text().splitlines()]
    assert images == [50, 100, 150, 200, 250, 300]


def test_the_accuracy_is_estimated_and_shown_on_a_page_that_requests_nothing(capsys):
    words = (*SMALL, "--limit", "300", "--corruption", "contrast:5", "--calibrate", "--html", "page.html")
    status = as_json(capsys, *words)
    assert 0 < status["accuracy"] < 1
    assert status["accuracy_lost"] > 0.1
    text = Path("page.html").read_text()
    for part in ("Evidence of drift", "Estimated accuracy of the stream", "net.layer1", "Drift detected"):
        assert part in text
    assert "default-src 'none'" in text


def test_the_pack_that_fits_is_named(capsys):
    net = norm.steer(trimtab.load(MODEL))
    x = data.load("sample", "train").take(torch.arange(200)).x
    for kind in ("fog", "gaussian_noise"):
        norm.save_pack(norm.gather(net, [data.corrupt(x, kind, 5, seed=1)]), f"{kind}.safetensors")
    packs = ("--packs", "fog.safetensors", "gaussian_noise.safetensors")
    status = as_json(capsys, *SMALL, "--limit", "300", "--corruption", "fog:5", *packs)
    assert status["pack"] == "fog"


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("--reference-images", "0"), "must be 1 or more"),
        (("--limit", "400"), "none is left to monitor"),
        (("--reference-images", "20"), "at least 100 reference images"),
        (("--alarm-rate", "2"), "between 0 and 1"),
        (("--corruption", "mist:3", "--limit", "600"), "mist"),
        (("--corruption", "fog:x"), "'x'"),
        (("--state", "damaged"), "not a monitor's state"),
        (("--packs", "none.safetensors"), "there is no pack none.safetensors"),
        (("--html", "no/page.html"), "no such folder"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_two(capsys, words, part):
    Path("damaged").write_text("{}")
    assert main(["monitor", MODEL, *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert part in err
