"""bfloat16 is tried in a child process before it is used, and a CPU that cannot run it costs one error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from trimtab.runtime import bfloat16
from trimtab.types import BadInput

REMEDY = "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16"


@pytest.fixture
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("TRIMTAB_DATA", str(tmp_path))
    bfloat16._probe.cache_clear()
    yield tmp_path
    bfloat16._probe.cache_clear()


@pytest.fixture
def died(cache_folder: Path) -> Path:
    """A cache folder in which a child process died."""
    bfloat16.result_file().write_text(json.dumps({"works": False}))
    return cache_folder


def test_a_child_that_is_killed_is_survived_reported_and_remembered(
    cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import os, signal; print('started', flush=True); os.kill(os.getpid(), signal.SIGILL)"
    monkeypatch.setattr(bfloat16, "_CHILD", code)
    with pytest.raises(BadInput, match=REMEDY):
        bfloat16.require_bfloat16()
    bfloat16._probe.cache_clear()
    monkeypatch.setattr(bfloat16, "_CHILD", "print('started'); print('works')")  # not tried again
    assert not bfloat16.probe().works


def test_a_child_that_never_tried_proves_nothing_and_is_not_remembered(
    cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bfloat16, "_CHILD", "raise ImportError('no torch here')")
    assert bfloat16.probe().works
    assert not bfloat16.result_file().exists()


def test_the_real_child_ends_and_its_result_is_stored(cache_folder: Path) -> None:
    works = bfloat16.probe().works
    assert json.loads(bfloat16.result_file().read_text())["works"] is works


def test_the_remedy_has_a_result_of_its_own(died: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = bfloat16.result_file()
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
    assert bfloat16.result_file() != before


def test_a_cpu_without_instructions_warns_once(cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bfloat16.result_file().write_text(json.dumps({"works": True}))
    monkeypatch.setattr(bfloat16, "_flags", lambda: {"sse2"})
    bfloat16._warn_slow.cache_clear()
    with pytest.warns(bfloat16.SlowBfloat16, match="slower"):
        bfloat16.require_bfloat16()
    bfloat16.require_bfloat16()  # a second warning would be an error


SETUP = """
import torch
from trimtab import attacks, certify, measure, models, types
model, x, y = models.build("resnet8", classes=10, width=4).eval(), torch.rand(4, 3, 32, 32), torch.arange(4)
try:
    {}
except types.BadInput as error:
    print("refused:", error)
"""
CALLS = {
    "attack in bfloat16": "attacks.PGD(steps=1, precision='bfloat16')(model, x, y)",
    "attack on a bfloat16 model": "attacks.PGD(steps=1)(model.bfloat16(), x.bfloat16(), y)",
    "measure a bfloat16 model": "measure.ligs(model.bfloat16(), x.bfloat16(), y)",
    "certify a bfloat16 model": "certify.certify(model.bfloat16(), x.bfloat16(), sigma=0.5, n0=10, n=50)",
    "train": """
    from trimtab import train
    train.Engine(accelerator="cpu", devices=1).start("bf16-mixed")""",
}


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TRIMTAB_DATA": str(folder), "COLUMNS": "300"}
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, env=environment)


@pytest.mark.parametrize("name", CALLS)
def test_every_entry_point_refuses_in_one_sentence(name: str, died: Path) -> None:
    done = run(died, "-c", SETUP.format(CALLS[name]))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("refused:")
    assert REMEDY in done.stdout


def test_training_from_the_command_line_ends_before_anything_is_written(died: Path) -> None:
    out = died / "run"
    words = [
        "train",
        "standard-laptop",
        "--data.name",
        "sample",
        "--precision",
        "bf16-mixed",
        "--out",
        str(out),
    ]
    done = run(died, "-m", "trimtab", *words)
    assert done.returncode == 2, done.stdout + done.stderr
    assert REMEDY in done.stderr
    assert not list(out.rglob("*.safetensors"))


def test_the_benchmarks_end_before_anything_is_measured(died: Path) -> None:
    done = run(died, "-m", "trimtab", "bench", "attacks", "--quick")
    assert done.returncode == 2
    assert REMEDY in done.stderr
    assert done.stdout == ""


def test_the_doctor_reports_it(died: Path) -> None:
    done = run(died, "-m", "trimtab", "doctor", "--json")
    report = json.loads(done.stdout)
    assert done.returncode == 1
    assert REMEDY in report["checks"]["bfloat16"]
    assert "ends the process" in report["device"]


def test_full_precision_is_not_asked_about_bfloat16(died: Path) -> None:
    done = run(died, "-c", SETUP.format("attacks.PGD(steps=1)(model, x, y); print('attacked')"))
    assert done.stdout == "attacked\n"
    assert torch.get_default_dtype() == torch.float32
