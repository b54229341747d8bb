"""bfloat16 is tried in a child process before it is used, and a CPU that cannot run it costs one error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from trimtab import _bfloat16 as bfloat16
from trimtab import attacks, models
from trimtab.cli import main
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


MODELS = """
import os, signal, torch
from trimtab import models

def die_in_bfloat16(layer, _):
    if torch.is_autocast_enabled("cpu") or layer.weight.dtype == torch.bfloat16:
        os.kill(os.getpid(), signal.SIGILL)

def full():
    net = models.build("resnet8", classes=10, width=4, channels=1).eval()
    for layer in net.modules():
        if isinstance(layer, (torch.nn.Conv2d, torch.nn.Linear)):
            layer.register_forward_pre_hook(die_in_bfloat16)
    return net

def narrow():
    return full().bfloat16()

def narrow_head():
    net = full()
    net.net.fc.bfloat16()
    return net
"""
"""Networks that end the process at the first layer in bfloat16, as the CPUs do."""
PYTHON = {
    "attack in bfloat16": "attacks.PGD(steps=1, precision='bfloat16')(m.full(), x, y)",
    "attack a bfloat16 model": "attacks.PGD(steps=1)(m.narrow(), x.bfloat16(), y)",
    "attack under autocast": "with torch.autocast('cpu'): attacks.PGD(steps=1)(m.full(), x, y)",
    "attack a bfloat16 head": "attacks.PGD(steps=1)(m.narrow_head(), x, y)",
    "train in one's own loop": "train.Standard()(m.narrow().train(), x.bfloat16(), y)",
    "train under autocast": "with torch.autocast('cpu'): train.APART()(m.full().train(), x, y)",
    "adapt per batch": "adapt.per_batch(m.narrow())(x.bfloat16())",
    "adapt to a stream": "adapt.stream(m.narrow())(x.bfloat16())",
    "freeze adapted statistics": "adapt.frozen(m.narrow(), x.bfloat16())",
    "route": "adapt.route(norm.add_branch(norm.steer(m.narrow()), 'b'))(x.bfloat16())",
    "measure a bfloat16 model": "measure.ligs(m.narrow(), x.bfloat16(), y)",
    "certify a bfloat16 model": "certify.certify(m.narrow(), x.bfloat16(), sigma=0.5, n0=10, n=50)",
    "train": "train.Engine(accelerator='cpu', devices=1).start('bf16-mixed')",
}
COMMANDS = {
    "audit": "audit py:m:narrow --data sample",
    "repair": "repair py:m:narrow --data sample --out repaired",
    "pack": "pack save py:m:narrow pack.safetensors --data sample",
    "evaluate": "evaluate py:m:narrow --data sample --limit 8 --store store",
    "adapt": "adapt py:m:narrow --data sample --limit 8 --store store",
    "certify": "certify py:m:narrow --data sample --limit 2 --store store",
    "analyze": "analyze py:m:narrow --data sample --limit 8",
    "construct by gradients": "construct D_R py:m:narrow --limit 8 --steps 1 --out set.npz",
    "construct by features": "construct AdvBN py:m:narrow --limit 8 --steps 1 --decoder 8 1 --out set.npz",
    "train in bfloat16": "train smoke --model py:m:full --precision bf16-mixed --out in-bfloat16",
    "train a bfloat16 model": "train smoke --model py:m:narrow --out narrow",
    "train against bfloat16 attacks": "train attack.yaml --model py:m:full --out attacked",
    "bench attacks": "bench attacks --quick --out speed",
    "bench train": "bench train --quick --out speed",
}
RECIPE = """
data: {name: sample, images: 64, validation: 16}
objective: {kind: adversarial, attack: {kind: pgd, budget: {linf: 8/255}, steps: 1, precision: bfloat16}}
epochs: 1
batch_size: 32
"""
CHILD = """
import contextlib, io, json, sys
import torch
import m
from trimtab import adapt, attacks, certify, measure, norm, train
from trimtab.cli import main
from trimtab.types import BadInput

x, y = torch.rand(4, 1, 28, 28), torch.arange(4)
commands, snippets = json.load(sys.stdin)
for name, words in commands.items():
    with contextlib.redirect_stderr(io.StringIO()) as err, contextlib.redirect_stdout(io.StringIO()):
        code = main(words.split())
    print(json.dumps([name, code, err.getvalue()]), flush=True)
for name, code in snippets.items():
    try:
        exec(code)
    except BadInput as error:
        print(json.dumps([name, 2, str(error)]), flush=True)
"""


def in_child(folder: Path, *words: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    """A process of its own in which bfloat16 is known to end the process."""
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "TRIMTAB_DATA": str(folder), "PYTHONPATH": path, "COLUMNS": "300"}
    command = [sys.executable, *words]
    return subprocess.run(command, input=text, capture_output=True, text=True, env=environment, cwd=folder)


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, tuple[int, str]], Path]:
    """What every call and command returned in one process where the first child had died; and its folder."""
    folder = tmp_path_factory.mktemp("died")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRIMTAB_DATA", str(folder))
        bfloat16.result_file().write_text(json.dumps({"works": False}))
    (folder / "m.py").write_text(MODELS)
    (folder / "attack.yaml").write_text(RECIPE)
    done = in_child(folder, "-c", CHILD, text=json.dumps([COMMANDS, PYTHON]))
    assert done.returncode == 0, done.stdout + done.stderr
    return {name: (code, err) for name, code, err in map(json.loads, done.stdout.splitlines())}, folder


@pytest.mark.parametrize("name", [*COMMANDS, *PYTHON])
def test_every_entry_point_refuses_in_one_sentence(name: str, refused: Any) -> None:
    code, err = refused[0][name]
    assert code == 2
    announced = ("Training in", "Using bfloat16")
    sentences = [line for line in err.splitlines() if not line.startswith(announced)]
    assert len(sentences) == 1, err
    assert REMEDY in sentences[0]


def test_nothing_is_measured_or_trained_before_it_refuses(refused: Any) -> None:
    _, folder = refused
    written = {path.name for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    start = {"recipe.yaml", "environment.json", "last.safetensors"}  # of the run that had to build its model
    assert written - start == {"m.py", "attack.yaml", next(folder.glob("bfloat16-*.json")).name}


def test_the_command_itself_ends_with_code_2(died: Path) -> None:
    done = in_child(died, "-m", "trimtab", "bench", "attacks", "--quick")
    assert (done.returncode, done.stdout) == (2, "")
    assert REMEDY in done.stderr


def test_a_run_that_cannot_resume_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Interrupted in its second epoch, refused where bfloat16 kills, then resumed where it does not."""
    calls = []

    def interrupt(*_: object) -> None:
        calls.append(1)
        if len(calls) == 12:  # the first epoch has 8 batches of training and 2 of validation
            raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    handle = torch.nn.modules.module.register_module_forward_pre_hook(
        lambda net, _: interrupt() if isinstance(net, models.Pixels) else None
    )
    words = ["train", "smoke", "--precision", "bf16-mixed", "--epochs", "2", "--out", "run"]
    try:
        assert main(words) == 130
    finally:
        handle.remove()
    before = {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()}
    monkeypatch.setenv("TRIMTAB_DATA", str(tmp_path))
    bfloat16.result_file().write_text(json.dumps({"works": False}))
    capsys.readouterr()
    assert main(["train", "--resume", "run"]) == 2
    assert REMEDY in capsys.readouterr().err
    assert {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()} == before
    monkeypatch.delenv("TRIMTAB_DATA")
    assert main(["train", "--resume", "run"]) == 0


def test_the_doctor_reports_it(died: Path) -> None:
    done = in_child(died, "-m", "trimtab", "doctor", "--json")
    report = json.loads(done.stdout)
    assert done.returncode == 1
    assert REMEDY in report["checks"]["bfloat16"]
    assert "ends the process" in report["device"]


def test_full_precision_is_not_asked_about_bfloat16(died: Path) -> None:
    model = models.build("resnet8", classes=10, width=4).eval()
    x = torch.rand(2, 3, 32, 32)
    assert attacks.PGD(steps=1)(model, x, torch.arange(2)).dtype == torch.float32
