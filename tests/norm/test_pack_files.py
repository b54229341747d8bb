"""Pack files come from anyone: damage is one sentence, and a killed writer leaves the old file."""

from __future__ import annotations

import json
import pickle
import signal
import struct
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import trimtab
from trimtab import norm
from trimtab.types import BadInput

HEADER = {"format": 1, "layers": {"0": 4}, "weights": "", "provenance": {}}
LAYER = {"0.mean": torch.zeros(3), "0.var": torch.ones(3)}


def written(path, header=HEADER, **changes):
    tensors = {**LAYER, **{f"0.{half}": value for half, value in changes.items()}}
    tensors = {name: value for name, value in tensors.items() if value is not None}
    text = header if isinstance(header, str) else json.dumps(header)
    save_file(tensors, path, {"trimtab-pack": text})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mean": torch.tensor([0.0, torch.nan, 0.0])}, "0.mean .* is not finite"),
        ({"weight": torch.full((3,), torch.inf)}, "0.weight .* is not finite"),
        ({"var": torch.tensor([1.0, -1e-3, 1.0])}, "negative variance"),
        ({"var": torch.ones(4)}, r"0.var .* found torch.float32 of shape \(4,\)"),
        ({"mean": torch.zeros(())}, r"0.mean .* shape \(\)"),
        ({"mean": torch.zeros(3, dtype=torch.int64)}, "found torch.int64"),
        ({"mean": None}, "no mean or no variance for '0'"),
        ({"extra": torch.zeros(1)}, "holds '0.extra'"),
        ({"header": {**HEADER, "format": 7}}, "format 1"),
        ({"header": {**HEADER, "layers": [1]}}, "description .* damaged"),
        ({"header": {**HEADER, "layers": {"0": -1}}}, "counts -1 elements"),
        ({"header": {**HEADER, "layers": {"0": "many"}}}, "counts 'many' elements"),
        ({"header": {**HEADER, "layers": {"0": True}}}, "counts True elements"),
        ({"header": {**HEADER, "weights": 5}}, "description .* damaged"),
        ({"header": "{broken"}, "is not a statistics pack"),
        ({"header": "[" * 100_000}, "is not a statistics pack"),
        ({"header": '{"format": ' + "9" * 10_000 + "}"}, "is not a statistics pack"),
    ],
)
def test_a_hostile_pack_is_refused_in_one_sentence(tmp_path, change, words):
    path = tmp_path / "hostile.safetensors"
    written(path, **change)
    with pytest.raises(BadInput, match=words) as refused:
        norm.read_pack(path)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize("size", [2**62, 2**40, 2**33])
def test_a_header_that_claims_to_be_huge_is_refused_without_reading_it(tmp_path, size):
    (tmp_path / "huge").write_bytes(struct.pack("<Q", size) + b"{}")
    with pytest.raises(BadInput, match="is not a statistics pack"):
        norm.read_pack(tmp_path / "huge")


def test_an_intact_pack_is_read(tmp_path):
    written(tmp_path / "good")
    assert norm.read_pack(tmp_path / "good").layers["0"].elements == 4


def test_a_pack_survives_pickling():
    made = norm.pack(trimtab.steer(nn.Sequential(nn.BatchNorm1d(3))), provenance={"a": 1})
    again = pickle.loads(pickle.dumps(made))
    assert again.provenance == {"a": 1}
    assert torch.equal(again.layers["0"].mean, made.layers["0"].mean)


WRITER = """
import sys, torch
from torch import nn
import trimtab
from trimtab import norm
wide = trimtab.steer(nn.Sequential(nn.BatchNorm1d(2_000_000)))
made = norm.pack(wide)
print("ready", flush=True)
while True:
    norm.save_pack(made, sys.argv[1])
"""


@pytest.mark.parametrize("delay", [0.01, 0.05, 0.11])
def test_kill_9_while_a_pack_is_written_leaves_a_whole_one(tmp_path, delay):
    path = tmp_path / "pack.safetensors"
    norm.save_pack(trimtab.steer(nn.Sequential(nn.BatchNorm1d(3))), path)
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    writer.stdout.readline()
    time.sleep(delay)
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    writer.stdout.close()
    assert len(norm.read_pack(path).layers["0"].mean) in (3, 2_000_000)
    norm.save_pack(trimtab.steer(nn.Sequential(nn.BatchNorm1d(3))), path)
    assert [file.name for file in tmp_path.iterdir()] == ["pack.safetensors"]  # no leftovers
