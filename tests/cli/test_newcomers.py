"""What a newcomer tries first: words that are nearly right, and requests that mean nothing.

Also tests cli.cli_errors, cli.doctor, cli.lazy.
"""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import trimtab
from trimtab import data, evaluate
from trimtab.cli import main
from trimtab.cli.cli_errors import parse
from trimtab.evaluate import suites, trust

SAMPLE = "zoo:sample-standard"


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.setenv("TRIMTAB_DATA", str(tmp_path / "sets"))


def say(capsys, *words):
    code = main(list(words))
    heard = capsys.readouterr()
    return code, " ".join(heard.out.split()), heard.err


def helped(capsys, *words):
    with pytest.raises(SystemExit) as done:
        main([*words, "--help"])
    assert done.value.code == 0
    return " ".join(word for word in capsys.readouterr().out.split() if word != "│")


REFUSED = {
    "text for a number": (("evaluate", SAMPLE, "--limit", "abc"), ("--limit", "'abc'", "evaluate --help")),
    "text among numbers": (("analyze", SAMPLE, "--eps", "0", "a"), ("--eps", "'a'", "analyze --help")),
    "misspelt option": (("evaluate", SAMPLE, "--limt", "32"), ("--limt", "--limit?", "evaluate --help")),
    "renamed option": (("reproduce", "--lst"), ("--lst", "--list?", "reproduce --help")),
    "misspelt command": (("evalute", "x"), ("'evalute'", "evaluate?", "trimtab --help")),
    "misspelt inner command": (("data", "fech", "svhn"), ("'fech'", "fetch?", "data --help")),
    "option of an inner command": (("data", "fetch", "svhn", "--rot", "x"), ("--root?", "data fetch --help")),
    "no command": (("--bogus",), ("--bogus", "trimtab --help")),
    "no inner command": (("data",), ("fetch, list", "data --help")),
    "no model": (("evaluate",), ("Missing MODEL, e.g. `trimtab evaluate zoo:sample-standard`", "--help")),
    "no model to audit": (("audit",), ("Missing MODEL, e.g. `trimtab audit zoo:cifar10-standard`",)),
    "no model to construct with": (
        ("construct", "D_R"),
        ("Missing MODEL, e.g. `trimtab construct D_R zoo:sample-standard`",),
    ),
    "neither kind nor model": (("construct",), ("Missing KIND and MODEL, e.g. `trimtab construct D_R zoo:",)),
    "no set to fetch": (
        ("data", "fetch"),
        ("Missing NAME, e.g. `trimtab data fetch cifar10`",),
    ),
    "a misspelt network": (("audit", "zoo:sampel-standard"), ("did you mean sample-standard?",)),
    "a misspelt set": (("evaluate", SAMPLE, "--data", "cifr10"), ("did you mean cifar10?",)),
    "a misspelt kind of set": (("evaluate", SAMPLE, "--data", "foldr:x"), ("did you mean folder?",)),
    "no value": (("evaluate", SAMPLE, "--limit"), ("--limit", "evaluate --help")),
    "too many words": (("evaluate", SAMPLE, "another"), ("another", "evaluate --help")),
    "no states": (("evaluate", SAMPLE, "--bn-modes"), ("--bn-modes", "at least one", "evaluate --help")),
    "no sigma": (("certify", SAMPLE, "--sigma"), ("--sigma", "at least one")),
    "no rho": (("adapt", SAMPLE, "--rho", "--save", "fz"), ("--rho", "at least one")),
    "no batch size": (("adapt", SAMPLE, "--batch-size"), ("--batch-size", "at least one")),
    "half a severity": (("adapt", SAMPLE, "--corruption", "fog:2.7"), ("whole number", "'2.7'")),
    "half an image": (("evaluate", SAMPLE, "--bn-modes", "frozen:1.9"), ("whole number", "'1.9'")),
    "images to adapt on, but how many": (
        ("certify", SAMPLE, "--adapt-on", "test"),
        ("--adapt-on goes with --adapt",),
    ),
    "a decoder of no image": (
        ("construct", "AdvBN", SAMPLE, "--decoder", "0", "1"),
        ("--decoder", "found 0 and 1"),
    ),
    "a decoder that is not trained": (
        ("construct", "AdvBN", SAMPLE, "--decoder", "64", "-1"),
        ("--decoder", "found 64 and -1"),
    ),
    "no such branch": (("evaluate", SAMPLE, "--bn-modes", "branch:adv"), ("no branch 'adv'", "only main")),
    "no such branch of several": (
        ("evaluate", "zoo:sample-mixture", "--bn-modes", "branch:foo"),
        ("no branch 'foo'", "main, "),
    ),
    "frozen on more than there are": (
        ("evaluate", SAMPLE, "--bn-modes", "frozen:99999999"),
        ("99,999,999 images", "there are 2,000"),
    ),
    "no such construction": (("construct", "D_X", SAMPLE), ("'D_X'", "D_R", "AdvBN", "reconstructed")),
    "no steps": (("construct", "D_R", SAMPLE, "--steps", "0"), ("--steps", "found 0")),
    "a conflict without a D_R": (("construct", "D_conflict", SAMPLE), ("starts from a D_R", "D_det")),
    "a page of nothing": (("report",), ("`trimtab runs`",)),
    "fewer than no images": (("certify", SAMPLE, "--adapt", "-4"), ("--adapt", "-4")),
    "a name without its source": (("audit", "sample-standard"), ("such as zoo:sample-standard",)),
    "a misspelt source": (("audit", "zo:sample-aparte"), ("such as zoo:sample-apart",)),
    "a name of ours": (("audit", "resnet18_cifr"), ("such as net:resnet18_cifar",)),
    "a baseline for nothing": (("evaluate", SAMPLE, "--baseline", "foo"), ("--baseline", "corruptions")),
    "a baseline that is nowhere": (
        ("evaluate", SAMPLE, "--suite", "corruptions", "--baseline", "resnet"),
        ("'resnet'", "`runs`"),
    ),
    "no processes": (("evaluate", SAMPLE, "--processes", "0"), ("processes", "found 0")),
    "negative processes": (("evaluate", SAMPLE, "--processes", "-2"), ("processes", "found -2")),
    "no such devices": (("train", "smoke", "--devices", "foo", "--dry-run"), ("'foo'",)),
    "a plan without a step": (
        ("train", "smoke", "--batch_size", "512", "--dry-run"),
        ("batches of 512", "320 images"),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_meant_is_refused_in_one_line(case, capsys):
    words, expected = REFUSED[case]
    code, _, err = say(capsys, *words)
    (line,) = [line for line in err.splitlines() if line.strip()]
    assert code == 2
    assert line.startswith("trimtab: ")
    for part in expected:
        assert part in line
    assert not Path(".trimtab/store.sqlite").exists() or say(capsys, "runs")[1].startswith("0 runs")


def test_numbers_before_the_model_are_no_mistake(capsys):
    assert say(capsys, "audit", "--limit", "8", SAMPLE)[0] == 0
    code, _, err = say(capsys, "construct", "--decoder", "5", "1", "D_X", SAMPLE)
    assert (code, "'D_X'" in err) == (2, True)


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (("certify", "--alpha", "1/1000"), "alpha", 0.001),
        (("analyze", "--eps", "0", "1/10"), "eps", (0.0, 0.1)),
    ],
)
def test_fractions_are_numbers(words, name, value):
    command, *options = words
    found = parse(main.__globals__["COMMANDS"], [command, SAMPLE, *options])
    assert getattr(found, name) == value


def test_help_lists_every_command_on_one_line(capsys):
    assert main(["--help"]) == main([]) == 0
    shown = capsys.readouterr().out.splitlines()
    for name in main.__globals__["COMMANDS"]:
        (line,) = {line for line in shown if line.startswith(f"  {name} ")}
        assert 40 < len(line) <= 90


def imported_by(words, cwd):
    """The modules that a command imports, and its CPU time in seconds."""
    code = (
        "import sys, time; from trimtab.cli import main; code = main(sys.argv[1:]);"
        "print(time.process_time(), *sys.modules, file=sys.stderr); sys.exit(code)"
    )
    ran = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, cwd=cwd)
    assert ran.returncode == 0, ran.stderr
    seconds, *modules = ran.stderr.split()
    return {name.split(".")[0] for name in modules}, float(seconds)


def test_help_answers_at_once(tmp_path):
    modules, seconds = imported_by(["--help"], tmp_path)
    assert not {"torch", "numpy", "altair", "pydantic"} & modules
    assert seconds < 1.0  # 0.12 on a machine that does nothing else


def test_runs_are_listed_and_compared_without_torch(capsys, tmp_path):
    assert say(capsys, "evaluate", SAMPLE, "--limit", "8")[0] == 0
    (run,) = json.loads(say(capsys, "runs", "--json")[1])
    for words in (["runs"], ["runs", run["id"], run["id"]], ["runs", "--csv", "rows.csv"]):
        assert not {"torch", "numpy", "altair"} & imported_by(words, tmp_path)[0]


def test_an_empty_store_comes_with_a_hint(capsys):
    evaluate.Store("empty.sqlite").forget("no cell", (0, 1))
    code, out, _ = say(capsys, "runs", "--store", "empty.sqlite")
    assert code == 0
    assert out.startswith("0 runs in empty.sqlite; `trimtab evaluate ")


def test_version_is_told(capsys):
    assert say(capsys, "--version") == (0, f"trimtab {trimtab.__version__}", "")


def test_a_conflict_is_made_from_a_robust_set_and_from_no_other(capsys):
    few = ("--limit", "8", "--steps", "1")
    for kind in ("D_R", "D_NR"):
        assert say(capsys, "construct", kind, SAMPLE, *few)[0] == 0
    assert say(capsys, "construct", "D_conflict", SAMPLE, "--data", "npz:D_R.npz", *few)[0] == 0
    code, _, err = say(capsys, "construct", "D_conflict", SAMPLE, "--data", "npz:D_NR.npz", *few)
    assert (code, "npz:D_NR.npz is not recorded as one" in err) == (2, True)
    code, _, err = say(capsys, "construct", "D_conflict", SAMPLE, "--data", "npz:nowhere.npz", *few)
    assert (code, "nowhere.npz" in err, "D_det" in err) == (2, True, False)


def test_certificates_come_with_their_number_their_interval_and_a_doubt_when_few(capsys):
    words = ("certify", SAMPLE, "--limit", "5", "--n", "50", "--n0", "10")
    code, out, _ = say(capsys, *words)
    assert code == 0
    assert "5 images" in out
    assert "Warning (samples, sigma 0.25)" in out
    assert f"measure {trust.ENOUGH} images or more" in out
    main([*words, "--json"])
    low, high = json.loads(capsys.readouterr().out)["sigma 0.25"]["interval"]
    assert f"[{100 * low:.1f}, {100 * high:.1f}]" in out


@pytest.fixture
def broken_extra(tmp_path, monkeypatch):
    """An installed timm that was built for another torch."""
    (tmp_path / "timm.py").write_text("raise AttributeError('torch has no such operator')\nmore = 1")
    about = tmp_path / "timm-0.0.7.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: timm\nVersion: 0.0.7\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.split(".")[0] == "timm"]:
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.usefixtures("broken_extra")
def test_an_extra_that_does_not_fit_torch_is_told_apart_from_a_missing_one(capsys, monkeypatch):
    code, _, err = say(capsys, "audit", "timm:resnet18")
    assert code == 2
    assert f"timm 0.0.7 does not fit the installed torch {torch.__version__}" in err
    assert "no such operator" in err
    monkeypatch.setitem(sys.modules, "timm", None)
    code, _, err = say(capsys, "audit", "timm:resnet18")
    assert (code, "pip install 'trimtab[timm]'" in err) == (2, True)


def test_torchvision_built_for_another_torch_imports_once_its_operators_are_declared(tmp_path):
    (tmp_path / "timm.py").write_text("import torch\ntorch.library.register_fake('torchvision::nms')(len)")
    code = "from trimtab.models.architectures import extra; print(extra('timm').__name__)"
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.pathsep.join(sys.path)}"}
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert ran.stdout == "timm\n", ran.stderr


@pytest.mark.usefixtures("broken_extra")
def test_the_doctor_imports_extras_that_are_installed(capsys, monkeypatch):
    monkeypatch.setattr("trimtab.cli.doctor.TESTS", {})
    monkeypatch.setattr("trimtab.cli.doctor.EXTRAS", ("timm", "no-such-extra"))
    code, out, _ = say(capsys, "doctor")
    assert code == 1
    assert "import timm" in out
    assert "no such operator" in out
    assert "import no-such-extra" not in out
    assert "All is well" not in out


def test_help_says_what_suites_measure_and_how_keys_are_overridden(capsys):
    told = helped(capsys, "evaluate")
    for line in suites.__doc__.splitlines()[2:]:
        name, measures = line.split(maxsplit=1)
        assert f"{name}: {measures}" in told
    assert "Unused by quick and corruptions" in told
    assert "corrupted as evaluated" in told
    assert "--objective.eps 0.05" in helped(capsys, "train")
    assert "seconds on the embedded sample" in say(capsys, "train", "--recipes")[1]


@pytest.mark.parametrize(
    ("command", "positional"),
    [("evaluate", "MODEL"), ("train", "RECIPE"), ("construct", "KIND"), ("runs", "IDS"), ("report", "IDS")],
)
def test_help_calls_things_by_their_names(command, positional, capsys):
    told = helped(capsys, command)
    usage = told.split(" -h, ")[0]
    assert positional in usage
    assert "STR" not in usage.replace("CONSTRUCT", "")
    assert "{None}" not in told


def test_frozen_statistics_are_labelled_by_the_images_they_come_from(capsys):
    code, out, _ = say(capsys, "evaluate", SAMPLE, "--limit", "16", "--bn-modes", "frozen:16")
    assert code == 0
    assert "frozen on the first 16 images" in out


def test_the_same_measurement_is_one_run_whatever_command_asked_for_it(capsys, monkeypatch):
    words = ["evaluate", SAMPLE, "--limit", "8"]
    for more in ([], ["--json"]):
        monkeypatch.setattr(sys, "argv", ["trimtab", *words, *more])
        assert say(capsys, *words, *more)[0] == 0
    assert len(json.loads(say(capsys, "runs", "--json")[1])) == 1


def test_runs_on_other_images_are_not_compared_without_a_word(capsys):
    for limit in ("8", "16"):
        assert say(capsys, "evaluate", SAMPLE, "--limit", limit)[0] == 0
    ids = [run["id"] for run in json.loads(say(capsys, "runs", "--json")[1])]
    assert "Not comparable: these were measured on 8 and 16 images." in say(capsys, "runs", *ids)[1]
    assert "Not comparable" not in say(capsys, "runs", ids[0], ids[0])[1]


def test_an_export_can_be_told_to_scripts(capsys):
    assert say(capsys, "evaluate", SAMPLE, "--limit", "8")[0] == 0
    code, out, _ = say(capsys, "runs", "--csv", "rows.csv", "--json")
    assert (code, len(json.loads(out))) == (0, 1)
    assert Path("rows.csv").exists()


def test_a_file_that_is_no_scorecard_is_named(capsys):
    Path("odd.json").write_text("{}")
    for file, words in (("odd.json", "trimtab evaluate --json"), ("gone.json", "there is no file")):
        code, _, err = say(capsys, "report", file)
        assert code == 2
        assert file in err
        assert words in err


def test_judgements_of_a_claim_are_objects_for_scripts(capsys):
    told = json.loads(say(capsys, "reproduce", "APA-8", "--scale", "smoke", "--json")[1])
    parts = [test for claim in told for test in claim["tests"]]
    assert all({"test", "effect", "interval", "verdict"} <= part.keys() for part in parts)


def test_the_lens_tells_of_classes_in_another_order(capsys):
    images = data.load("sample", "test").subset(slice(0, 16))
    data.save(replace(images, classes=tuple(reversed(images.classes))), "other.safetensors")
    code, out, _ = say(capsys, "analyze", SAMPLE, "--data", "file:other.safetensors", "--eps", "0")
    assert code == 0
    assert "Warning (classes" in out


def test_a_batch_of_nothing_is_refused_by_the_name_of_its_option(capsys):
    code, _, err = say(capsys, "adapt", SAMPLE, "--batch-size", "0")
    assert code == 2
    assert "--batch-size must be 1 or more, found 0" in err


def test_an_adapted_network_remembers_the_size_that_it_saw(capsys):
    Path("own_net.py").write_text(
        "from torch import nn\n"
        "def build():\n"
        "    before = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1)\n"
        "    return nn.Sequential(*before, nn.Flatten(), nn.Linear(4, 10))\n"
    )
    assert (
        say(capsys, "adapt", "py:own_net:build", "--limit", "8", "--sigma", "0", "--save", "frozen")[0] == 0
    )
    assert json.loads(Path("frozen/model.json").read_text())["input"]["size"] == [28, 28]


def test_a_page_tries_no_more_images_than_were_asked_for(capsys):
    assert say(capsys, "evaluate", SAMPLE, "--limit", "24", "--html", "page.html")[0] == 0
    tried = evaluate.runs(".trimtab/trials.sqlite")
    assert {row.n for run in tried for row in run.card.rows} == {24}


def test_a_page_of_certificates_speaks_of_them(capsys):
    words = ("certify", "zoo:sample-noise", "--limit", "4", "--n", "100", "--n0", "10")
    assert say(capsys, *words)[0] == 0
    (run,) = json.loads(say(capsys, "runs", "--json")[1])
    told = json.loads(say(capsys, "report", run["id"], "--json")[1])
    assert "are certified correctly" in told["verdict"][1]
