"""How images are resized, cropped and normalized, from the command line to the JSON."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import trimtab
from trimtab.cli import main
from trimtab.types import InputSpec

RECORDED = InputSpec((32, 32), 3, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4), 0.8, "bicubic")


@pytest.fixture(autouse=True)
def photographs(tmp_path, monkeypatch):
    """A network that records how its images are prepared, and photographs that are larger."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for k in range(8):
        folder = tmp_path / "photographs" / "ab"[k % 2]
        folder.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (60 + k, 70, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{k}.png")
    torch.manual_seed(0)
    for name, spec in (("recorded", RECORDED), ("other", InputSpec((32, 32), 3))):
        model = trimtab.load("net:resnet8,width=4", classes=2, input=spec)
        with torch.no_grad():
            model.train()(torch.rand(64, 3, 32, 32))
        trimtab.save(model.eval(), tmp_path / name)
    (tmp_path / "unrecorded.py").write_text(
        "import torch\nfrom torch import nn\n"
        "def net(): return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1),"
        "nn.Flatten(), nn.Linear(4, 2))"
    )


def run(capsys, *words):
    code = main(list(words))
    text = capsys.readouterr()
    return code, text.out, text.err


def used(capsys, model, *options, data="folder:photographs"):
    code, out, err = run(capsys, "adapt", model, "--data", data, "--sigma", "0", "--json", *options)
    assert code == 0, err
    (card,) = json.loads(out).values()
    return InputSpec.from_json(card["provenance"]["preprocessing"])


def test_what_the_model_records_is_used_and_reported(capsys):
    assert used(capsys, "file:recorded") == RECORDED


@pytest.mark.parametrize("command", ["evaluate", "certify", "adapt", "analyze"])
def test_a_table_says_how_image_files_were_resized_and_cropped(capsys, command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    options = {"certify": ["--n", "20", "--n0", "5"], "adapt": ["--sigma", "0"]}.get(command, [])
    words = (command, "file:recorded", "--limit", "2", *options, "--interpolation", "lanczos")
    code, out, err = run(capsys, *words, "--data", "folder:photographs")
    assert code == 0, err
    assert "photographs, resized to 40 pixels (lanczos, center) and cropped to 32 x 32" in out


def test_a_table_of_images_that_are_taken_as_they_are_names_no_resizing(capsys):
    code, out, err = run(capsys, "adapt", "zoo:sample-standard", "--limit", "2", "--sigma", "0")
    assert code == 0, err
    assert "resized" not in out


def test_options_replace_what_the_model_records(capsys):
    options = (
        *("--crop-fraction", "1", "--interpolation", "lanczos", "--crop-mode", "squash"),
        *("--mean", "0.1", "0.2", "0.3", "--std", "1/4,1/4,1/4", "--input-size", "48"),
    )
    spec = used(capsys, "file:recorded", *options)
    assert spec == InputSpec((48, 48), 3, (0.1, 0.2, 0.3), (0.25,) * 3, 1.0, "lanczos", "squash")
    spec = used(capsys, "file:recorded", "--resize", "36")
    assert spec.resized == (36, 36)


def test_a_size_in_the_name_keeps_the_recorded_crop_fraction(capsys):
    spec = used(capsys, "file:recorded", data="folder:photographs@24")
    assert (spec.size, spec.resized, spec.interpolation) == ((24, 24), (30, 30), "bicubic")


def test_a_model_without_a_record_takes_options_with_a_size(capsys):
    code, _, err = run(
        capsys, "audit", "py:unrecorded:net", "--data", "folder:photographs", "--crop-fraction", "0.9"
    )
    assert code == 2
    assert "--input-size" in err
    spec = used(capsys, "py:unrecorded:net", "--crop-fraction", "0.9", "--input-size", "45")
    assert (spec.size, spec.resized) == ((45, 45), (50, 50))
    assert used(capsys, "py:unrecorded:net", "--input-size", "45").resized == (45, 45)


@pytest.mark.parametrize("command", ["evaluate", "certify", "audit", "analyze", "repair"])
def test_every_command_that_measures_takes_the_options_and_reports_them(capsys, command):
    options = {"evaluate": ["--limit", "2"], "certify": ["--limit", "1", "--n", "20", "--n0", "5"]}
    words = (command, "file:recorded", "--data", "folder:photographs", *options.get(command, []))
    code, _, err = run(capsys, *words, "--interpolation", "cubic")
    assert code == 2
    assert "no interpolation 'cubic'" in err
    code, out, err = run(capsys, *words, "--interpolation", "bilinear", "--json")
    assert code == 0, err
    found = json.loads(out)
    holder = {"evaluate": found.get("provenance"), "certify": found.get("sigma 0.25")}.get(command, found)
    assert InputSpec.from_json(holder["preprocessing"]) == replace(RECORDED, interpolation="bilinear")
    if command in ("certify", "audit"):
        assert holder["data"] == "photographs"


def test_an_audit_without_images_says_what_the_network_expects(capsys):
    code, out, err = run(capsys, "audit", "file:recorded", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert InputSpec.from_json(found["preprocessing"]) == RECORDED
    assert "data" not in found
    assert found["layers"][0]["name"]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--crop-fraction", "0.8", "--resize", "40"], "set the same size"),
        (["--input-size", "0"], "--input-size must be 1 or more"),
        (["--mean", "0.5"], "3 means and stds, found 1 and 3"),
        (["--crop-fraction", "wide"], "'wide' is not a number"),
    ],
)
def test_options_that_cannot_be_are_refused(capsys, options, complaint):
    code, _, err = run(capsys, "evaluate", "file:recorded", "--data", "folder:photographs", *options)
    assert code == 2
    assert complaint in err
