"""The command line as people use it: exit codes, one clear line for bad input, JSON for scripts.

Also tests cli.adapt, cli.aliases, cli.analyze, cli.audit, cli.certify, cli.construct, cli.data,
cli.evaluate, cli.main, cli.report, cli.reproduce, cli.train.
"""

import json
import subprocess
import sys
import textwrap
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from torch import nn

import trimtab
from trimtab import data, measure, models, norm
from trimtab.cli import main


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.setenv("TRIMTAB_DATA", str(tmp_path / "sets"))


@pytest.fixture
def saved(tmp_path):
    torch.manual_seed(0)
    model = models.build("resnet8", classes=10, width=4, channels=1)
    with torch.no_grad():
        model.train()(torch.rand(64, 1, 28, 28))
    trimtab.save(model.eval(), tmp_path / "net")
    return f"file:{tmp_path / 'net'}"


def say(capsys, *words):
    code = main(list(words))
    heard = capsys.readouterr()
    return code, heard.out, heard.err


def as_json(capsys, *words):
    code, out, _ = say(capsys, *words, "--json")
    assert code == 0
    return json.loads(out)


def test_help_teaches_without_loading_torch():
    code = (
        "import sys\nfrom trimtab.cli import main\n"
        "try: main(['evaluate', '--help'])\nexcept SystemExit as done: assert done.code == 0\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "resumes when it is started again" in " ".join(done.stdout.split())


def test_an_override_without_a_value_is_told(capsys):
    for words in (["--optimizer.nesterov", "--out", "run"], ["--optimizer.nesterov"]):
        code, _, err = say(capsys, "train", "smoke", *words)
        assert code == 2
        assert err == "trimtab: --optimizer.nesterov takes a value, as in --optimizer.nesterov VALUE\n"


def test_a_network_with_too_few_outputs_is_told_before_it_trains_and_leaves_its_folder_free(
    capsys, tmp_path, monkeypatch
):
    code = "from torch import nn\ndef net(): return nn.Sequential(nn.Flatten(), nn.Linear(784, 5))"
    (tmp_path / "five.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    for _ in range(2):
        code, _, err = say(
            capsys, "train", "smoke", "--model", "py:five:net", "--data.name", "sample", "--out", "run"
        )
        assert code == 2
        assert "labels must lie in 0..4" in err


def test_audit_lists_layers_and_advises_on_planted_faults(capsys, tmp_path):
    model = models.build("resnet8", classes=10, width=4)
    with torch.no_grad():
        model.train()(torch.rand(64, 3, 32, 32))
    layers = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    layers[1].reset_running_stats()
    layers[2].running_var[0] = 0
    layers[3].running_mean[0] = torch.nan
    trimtab.save(model, tmp_path / "sick")
    code, out, _ = say(capsys, "audit", f"file:{tmp_path / 'sick'}")
    assert code == 0
    for words in ("never trained", "dead channels", "not finite", "recalibrate"):
        assert words in out
    assert say(capsys, "audit", f"file:{tmp_path / 'sick'}", "--strict")[0] == 1


def test_audit_sees_statistics_of_another_domain(capsys, tmp_path):
    torch.manual_seed(1)
    model = models.build("resnet8", classes=10, width=4, channels=1)
    with torch.no_grad():
        for _ in range(100):  # until nothing is left of the statistics it started with
            model.train()(torch.rand(16, 1, 28, 28) * 0.05 + 0.9)
    trimtab.save(model.eval(), tmp_path / "elsewhere")
    code, out, _ = say(
        capsys, "audit", f"file:{tmp_path / 'elsewhere'}", "--data", "sample", "--limit", "128"
    )
    assert code == 0
    assert "drift" in out


def test_audit_takes_a_function_of_yours_and_a_stock_state_dict(capsys, tmp_path):
    (tmp_path / "mine.py").write_text(
        textwrap.dedent("""
            from torch import nn
            def net():
                return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(3600, 10))
        """)
    )
    found = as_json(capsys, "audit", f"py:{tmp_path / 'mine.py'}:net")
    assert [layer["kind"] for layer in found["layers"]] == ["batch"]
    stock = models.build("resnet8", classes=10, width=4).net
    torch.save(stock.state_dict(), tmp_path / "stock.pt")
    found = as_json(capsys, "audit", f"file:{tmp_path / 'stock.pt'}@net:resnet8,width=4,classes=10")
    assert len(found["layers"]) == sum(isinstance(m, nn.BatchNorm2d) for m in stock.modules())


def test_data_list_names_what_is_here(capsys):
    code, out, _ = say(capsys, "data", "list")
    assert code == 0
    assert "comes with trimtab" in out
    assert as_json(capsys, "data", "list")["cifar10"] is False


def test_evaluate_prints_a_scorecard_and_goes_on_from_its_store(capsys, saved):
    words = ("evaluate", saved, "--limit", "40", "--bn-modes", "running", "batch:0.5", "--html", "page.html")
    code, out, _ = say(capsys, *words)
    assert code == 0
    assert "PGD-20" in out
    assert "adapted per batch" in out
    first = as_json(capsys, *words)
    assert as_json(capsys, *words) == first
    assert Path("page.html").read_text().startswith("<!")
    assert len(as_json(capsys, "runs")) >= 1


def test_runs_are_compared_and_exported(capsys, saved, tmp_path):
    say(capsys, "evaluate", saved, "--limit", "20")
    (run,) = as_json(capsys, "runs")
    code, out, _ = say(capsys, "runs", run["id"][:8], run["id"][:8])
    assert code == 0
    assert "clean" in out
    assert say(capsys, "runs", "--csv", "rows.csv")[0] == 0
    assert "clean" in Path("rows.csv").read_text()
    assert say(capsys, "report", run["id"][:8], "--out", "one.html")[0] == 0
    assert Path("one.html").read_text().startswith("<!")
    told = as_json(capsys, "report", run["id"][:8], "--out", "two.html")
    assert (told["page"], told["models"]) == ("two.html", [saved])
    assert len(told["verdict"]) == 3


def test_adapt_and_certify_tell_what_adaptation_brings(capsys, saved):
    code, out, _ = say(
        capsys,
        "adapt",
        saved,
        "--limit",
        "32",
        "--sigma",
        "0",
        "0.3",
        "--batch-size",
        "16",
        "--save",
        "frozen",
    )
    assert code == 0
    assert "rho 1" in out
    stock, frozen = (norm.layers(trimtab.load(spec)) for spec in (saved, "file:frozen"))
    assert stock.keys() == frozen.keys()
    for name, layer in stock.items():  # the noise has moved the statistics, and nothing else
        assert not torch.allclose(frozen[name].running_mean, layer.running_mean)
        assert torch.equal(frozen[name].weight, layer.weight)
    code, out, _ = say(capsys, "certify", saved, "--limit", "3", "--n", "50", "--n0", "10", "--adapt", "16")
    assert code == 0
    assert "frozen on 16 noisy training images" in " ".join(out.split())
    found = as_json(capsys, "certify", saved, "--limit", "3", "--n", "50", "--n0", "10", "--adapt", "16")
    assert found["sigma 0.25"]["statistics"].startswith("frozen on 16 noisy training images")
    found = as_json(capsys, "certify", saved, "--limit", "3", "--n", "50", "--n0", "10")
    assert found["sigma 0.25"]["statistics"] == "as stored in the model"


def test_statistics_from_the_images_that_are_evaluated_are_called_so(capsys, saved):
    data.save(data.load("sample").subset(slice(0, 24)), "few.safetensors")  # the same for every split
    few = ("--data", "file:few.safetensors", "--limit", "2")
    found = as_json(capsys, "certify", saved, *few, "--n", "20", "--n0", "10", "--adapt", "16")
    assert found["sigma 0.25"]["statistics"].startswith("frozen on 16 noisy evaluated images")
    assert say(capsys, "adapt", saved, *few, "--sigma", "0", "--save", "frozen")[0] == 0
    assert trimtab.load("file:frozen").provenance.startswith("frozen on 24 noisy evaluated images")


def test_every_sigma_is_told_with_statistics_of_its_own(capsys, saved):
    words = ("--limit", "2", "--n", "20", "--n0", "10", "--adapt", "16", "--sigma", "0.1", "0.5")
    told = " ".join(say(capsys, "certify", saved, *words)[1].split())
    assert all(f"16 noisy training images (sigma {sigma}, unclipped)" in told for sigma in (0.1, 0.5))


def test_radii_of_several_sigmas_stand_in_order(capsys, saved, monkeypatch):

    from trimtab.cli import console

    shown = []
    monkeypatch.setattr(console, "table", lambda title, columns, rows, right=(): shown.append(columns))
    assert (
        say(capsys, "certify", saved, "--limit", "1", "--n", "50", "--n0", "5", "--sigma", "0.5", "1")[0] == 0
    )
    (columns,) = shown
    assert columns[2:] == ["r = 0.25", "r = 0.5", "r = 0.75", "r = 1", "abstains"]


def test_cards_of_certify_and_adapt_say_by_which_command_they_were_made(capsys, saved, monkeypatch):
    certify = ("certify", saved, "--limit", "2", "--n", "20", "--n0", "10")
    for words in (certify, ("adapt", saved, "--limit", "2")):
        monkeypatch.setattr(sys, "argv", ["trimtab", *words])
        assert say(capsys, *words)[0] == 0
        assert as_json(capsys, "runs")[-1]["provenance"]["command"] == " ".join(["trimtab", *words])


def test_batches_are_called_by_the_images_they_hold(capsys, saved):
    words = ("adapt", saved, "--limit", "24", "--sigma", "0", "--batch-size", "16", "64", "256")
    assert set(as_json(capsys, *words)) == {"16", "24"}
    assert "256" not in say(capsys, *words)[1]


def test_corruption_errors_are_divided_by_those_of_a_run_on_the_same_images(capsys, saved):
    words = ("evaluate", saved, "--suite", "corruptions", "--limit")
    assert say(capsys, *words, "8")[0] == 0
    (run,) = as_json(capsys, "runs")
    found = as_json(capsys, *words, "8", "--baseline", run["id"])
    assert found["mce"]["running"] == pytest.approx(1.0)
    assert found["rows"] == run["rows"]
    code, _, err = say(capsys, *words, "4", "--baseline", run["id"])
    assert code == 2
    assert "other images (8 of sample, here 4 of sample)" in err


def test_json_has_null_where_a_number_is_not_known(capsys):
    def refuse(word):
        raise AssertionError(word)

    code, out, _ = say(capsys, "reproduce", "--list", "--scale", "paper", "--json")
    assert code == 0
    assert None in [claim["left"] for claim in json.loads(out, parse_constant=refuse)]


def test_a_set_that_was_not_checked_is_not_called_right(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(data, "fetch", lambda name, *_: tmp_path / name)
    (tmp_path / "cifar-100-binary.tar.gz").touch()
    assert "hash is right" in say(capsys, "data", "fetch", "cifar100")[1]
    assert "hash is right" in say(capsys, "data", "fetch", "cifar100", "--source", str(tmp_path))[1]
    assert "not checked" in say(capsys, "data", "fetch", "cifar100", "--source", "mine.tar.gz")[1]
    assert "hash is right" in say(capsys, "data", "fetch", "cifar10", "--source", "mine.tar.gz")[1]
    monkeypatch.setattr(data, "available", lambda root: {"cifar100": True})
    assert "it was fetched before" in " ".join(say(capsys, "data", "fetch", "cifar100")[1].split())


def test_advbn_images_hurt_more_than_their_reconstructions():
    found = {}
    for kind in ("AdvBN", "reconstructed"):
        given = ("--split", "test", "--limit", "96", "--decoder", "1000", "4", "--out", f"{kind}.npz")
        assert main(["construct", kind, "zoo:sample-standard", *given]) == 0
        made = data.load(f"npz:{kind}.npz", "test")
        assert torch.equal(
            made.take(torch.arange(96)).y, data.load("sample", "test").take(torch.arange(96)).y
        )
        found[kind] = measure.accuracy(trimtab.load("zoo:sample-standard").eval(), made.batches(96)).value
    assert found["AdvBN"] < found["reconstructed"]


def test_the_radius_and_batches_of_advbn_images_are_options(capsys, saved):
    made = {}
    for name, words in {
        "reconstructed": ("reconstructed",),
        "none": ("AdvBN", "--eps", "0"),
        "whole": ("AdvBN", "--step-size", "1/2"),
        "parts": ("AdvBN", "--step-size", "1/2", "--batch", "4"),
    }.items():
        given = ("--split", "test", "--limit", "8", "--decoder", "64", "1", "--out", f"{name}.npz")
        assert say(capsys, "construct", words[0], saved, *words[1:], *given)[0] == 0
        made[name] = data.load(f"npz:{name}.npz", "test").take(torch.arange(8)).x
    level = 1.01 / 255  # rounding to 8 bits
    assert float((made["none"] - made["reconstructed"]).abs().max()) <= level
    assert float((made["whole"] - made["reconstructed"]).abs().max()) > 5 * level
    assert not torch.equal(made["whole"], made["parts"])
    code, _, err = say(capsys, "construct", "AdvBN", saved, "--batch", "0")
    assert (code, "--batch must be 1 or more" in err) == (2, True)


def test_no_decoder_is_trained_for_a_name_that_is_taken(capsys, saved, monkeypatch):
    def trained(*_, **__):
        raise AssertionError("a decoder was trained")

    Path("AdvBN.npz").write_bytes(b"a set of another kind")
    monkeypatch.setattr("trimtab.construct.trained_autoencoder", trained)
    code, _, err = say(capsys, "construct", "AdvBN", saved, "--limit", "8", "--decoder", "8", "1")
    assert code == 2
    assert "AdvBN.npz contains another set" in err


def test_analyze_and_construct_run(capsys, saved):
    found = as_json(capsys, "analyze", saved, "--limit", "32", "--eps", "0", "0.2")
    assert set(found["ligs"]) == {"gaussian", "uniform", "fgsm", "pgd"}
    code, out, _ = say(capsys, "analyze", saved, "--limit", "32", "--eps", "0", "--batch-size", "16")
    assert code == 0
    assert "A batch of 16 versus the running statistics" in out
    code, out, _ = say(
        capsys, "construct", "D_rand", saved, "--limit", "16", "--steps", "2", "--out", "rand.npz"
    )
    assert code == 0
    assert "npz:" in out


def test_lens_shifts_the_statistics_of_batches_in_groups(capsys, saved):
    given = ("lens", saved, "--limit", "32", "--batch-size", "16", "--eps", "0", "0.2")
    rows = as_json(capsys, *given, "--source", "batch", "--groups", "4")["tolerance"]
    assert {(row["source"], row["groups"]) for row in rows} == {("batch", 4)}
    code, _, err = say(capsys, *given, "--groups", "4")
    assert (code, "--source batch" in err) == (2, True)


def test_lens_says_what_it_leaves_out_of_a_model_that_cannot_be_steered(capsys, tmp_path):
    (tmp_path / "own.py").write_text(
        textwrap.dedent("""
            from torch import nn

            class Own(nn.BatchNorm2d):
                def forward(self, x):
                    return super().forward(x) * 1.0

            def net():
                return nn.Sequential(nn.Conv2d(1, 4, 3), Own(4), nn.Flatten(), nn.Linear(4 * 26 * 26, 10))
        """)
    )
    words = ("analyze", f"py:{tmp_path / 'own.py'}:net", "--limit", "16")
    code, out, _ = say(capsys, *words)
    assert code == 0
    assert "no batch-norm layer can be steered" in " ".join(out.split())
    assert as_json(capsys, *words)["tolerance"] == []


def test_train_takes_a_recipe_with_overrides_and_resumes(capsys):
    code, out, _ = say(capsys, "train", "--recipes")
    assert code == 0
    assert "standard-laptop" in out
    assert say(capsys, "train", "smoke", "--out", "run", "--epochs=1")[0] == 0
    rows = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows] == [0]
    before = sha256(Path("run/model.safetensors").read_bytes()).hexdigest()
    assert say(capsys, "train", "--resume", "run")[0] == 0  # a run that has ended stays as it is
    assert sha256(Path("run/model.safetensors").read_bytes()).hexdigest() == before


def test_of_several_processes_only_the_first_prints(capsys, monkeypatch):
    found = as_json(capsys, "train", "smoke", "--out", "alone")
    assert found["folder"] == "alone"  # and stdout holds nothing else: the bar is on stderr
    for variable in ("RANK", "LOCAL_RANK"):  # as torchrun and Fabric set them
        monkeypatch.setenv(variable, "1")
        code, out, _ = say(capsys, "data", "list")
        assert (code, out) == (0, "")
        code, _, err = say(capsys, "audit", "resnet")
        assert code == 2
        assert "names no model" in err
        monkeypatch.delenv(variable)
        assert "comes with trimtab" in say(capsys, "data", "list")[1]


BAD = {
    "unknown model": (("audit", "resnet"), "names no model"),
    "no such file": (("audit", "file:nowhere"), "nowhere"),
    "a page for a checkpoint": (("audit", "file:page.pt@net:resnet8"), "web page"),
    "unknown data": (("evaluate", "net:resnet8", "--data", "mnist"), "mnist"),
    "not fetched": (("evaluate", "net:resnet8", "--data", "cifar10"), "trimtab data fetch cifar10"),
    "unknown suite": (("evaluate", "net:resnet8,channels=1", "--suite", "huge"), "no suite"),
    "eps in bytes": (("evaluate", "net:resnet8,channels=1", "--eps", "8"), "did you mean 8/255"),
    "unknown state": (("evaluate", "net:resnet8,channels=1", "--bn-modes", "moving"), "not a BN mode"),
    "unknown set to fetch": (("data", "fetch", "imagenet"), "cannot be fetched"),
    "no recipe": (("train",), "missing RECIPE"),
    "unknown recipe": (("train", "nothing.yaml"), "no recipe"),
    "unknown key": (("train", "smoke", "--epoch", "3"), "epochs"),
    "an old run with a new recipe": (("train", "smoke", "--resume", "run"), "cannot take a recipe"),
    "an old run with new keys": (
        ("train", "--resume", "run", "--epochs", "20", "--dry-run", "--out=other"),
        "cannot take --out, --dry-run, --epochs",
    ),
    "unknown construction": (("construct", "D_X", "net:resnet8"), "KIND must be one of D_R"),
    "no such device": (("analyze", "net:resnet8,channels=1", "--device", "tpu9"), "tpu9 cannot be used"),
    "unknown run": (("report", "abc"), "abc"),
    "no store": (("runs", "--store", "mistyped.sqlite"), "no store mistyped.sqlite"),
    "a device for a number": (
        ("train", "smoke", "--devices", "cuda"),
        "auto or a positive integer, found 'cuda'",
    ),
    "no file to fetch from": (
        ("data", "fetch", "svhn", "--source", "nope.mat"),
        "nope.mat does not exist",
    ),
    "images of another kind": (("evaluate", "zoo:cifar10-standard"), "those of 'sample' have 1"),
    "a forward pass that fails": (
        ("evaluate", "py:broken.py:Net", "--data", "two-cue"),
        "line 4, raised KeyError",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_on_stderr_and_exit_code_two(case, capsys, tmp_path):
    (tmp_path / "page.pt").write_text("<!DOCTYPE html><html><body>Not found</body></html>")
    forward = "    def forward(self, x):\n        return {}['missing']\n"
    (tmp_path / "broken.py").write_text(f"import torch\nclass Net(torch.nn.Flatten):\n{forward}")
    words, expected = BAD[case]
    code, _, err = say(capsys, *words)
    assert code == 2
    assert expected in err
    lines = [line for line in err.splitlines() if line.strip()]
    assert len([line for line in lines if line.startswith("trimtab: ")]) == 1
    assert "Traceback" not in err


def test_a_full_disk_is_told_in_one_line(capsys, saved, monkeypatch):
    import errno

    from trimtab import data

    def full(*args, **options):
        raise OSError(errno.ENOSPC, "No space left on device", "store.sqlite")

    monkeypatch.setattr(data, "load", full)
    code, _, err = say(capsys, "evaluate", saved)
    assert code == 2
    assert "No space left" in err


def test_old_names_of_commands_and_options_work_and_warn_on_stderr_once(capsys, saved):
    words = ("--limit", "8", "--states", "running", "--insist", "--page=old.html")
    code, out, err = say(capsys, "evaluate", saved, *words)
    assert code == 0
    assert Path("old.html").exists()
    renamed = ["--states is now --bn-modes", "--insist is now --force", "--page is now --html"]
    assert [line for line in err.splitlines() if " is now " in line] == [
        f"trimtab: {line}" for line in renamed
    ]
    assert out == say(capsys, "evaluate", saved, "--limit", "8", "--bn-modes", "running", "--force")[1]
    _, _, err = say(capsys, "lens", saved, "--limit", "8", "--eps", "0")
    assert err.count("the command lens is now analyze") == 1


def test_a_dry_run_prints_the_cost_under_its_old_name_too(capsys):
    code, out, err = say(capsys, "train", "smoke", "--plan")
    assert code == 0
    assert err.count("trimtab: --plan is now --dry-run") == 1
    assert "x standard training" in " ".join(out.split())
    assert not Path("runs").exists()
    code, _, err = say(capsys, "train", "smoke", "--dry_run")
    assert (code, err) == (0, "")


def test_a_dry_run_of_claims_is_their_list_and_the_budget(capsys):
    code, out, _ = say(capsys, "reproduce", "MIX-4", "--scale", "smoke", "--dry-run")
    assert code == 0
    assert out.startswith(say(capsys, "reproduce", "MIX-4", "--scale", "smoke", "--list")[1])
    assert out.splitlines()[-1].startswith("Budget at scale smoke: 0 of 14 units are done")
    assert not Path("results").exists()


def test_json_rows_name_images_mode_clipping_iterate_and_batch(capsys, saved):
    rows = as_json(capsys, "evaluate", saved, "--limit", "8", "--bn-modes", "running", "batch:0.5")["rows"]
    by_kind = {(row["condition"]["kind"], row["bn_mode"]["kind"]): row for row in rows}
    noise = by_kind["noise", "per_batch"]
    assert noise["condition"] == {"kind": "noise", "sigma": 0.1, "clip": False}
    assert noise["bn_mode"] == {"kind": "per_batch", "rho": 0.5, "blend_of": "std"}
    assert (noise["images"]["data"], noise["images"]["start"], noise["images"]["stop"]) == ("sample", 0, 8)
    assert noise["batch_size"] == 8
    assert by_kind["noise", "running"]["batch_size"] is None
    attacks = [row for row in rows if row["condition"].get("method") == "PGD"]
    assert [row["iterate"] for row in attacks] == ["early stopping", "last iterate"]


def test_what_is_printed_names_images_mode_clipping_iterate_and_batch(capsys, saved):
    def shown(*words):
        code, out, err = say(capsys, *words)
        assert code == 0, err
        return " ".join(out.split())

    few = ("--limit", "8")
    out = shown("evaluate", saved, *few, "--bn-modes", "running", "batch")
    assert "first 8 images of sample, coupled batches of 8: accuracy in %" in out
    assert all(
        word in out for word in (" running ", " batch ", "unclipped", "early stopping", "last iterate")
    )
    shown("evaluate", saved, "--limit", "4", "--bn-modes", "running")
    ids = [run["id"][:8] for run in as_json(capsys, "runs")]
    assert "Measured on first 8 images of sample, coupled batches of 8" in shown("runs", ids[0])
    certify = ("certify", saved, "--limit", "3", "--n", "20", "--n0", "10")
    out = shown(*certify)
    assert "first 3 images of sample: certified accuracy by l2 radius, unclipped noise, 20 samples" in out
    assert "BN mode running" in out
    assert as_json(capsys, *certify)["sigma 0.25"]["condition"]["clip"] is False
    assert "compared on images 0–7 of sample" in shown("repair", saved, *few, "--images", "16")
    assert as_json(capsys, "repair", saved, *few, "--images", "16")["compared_on"]["stop"] == 8


def test_attacks_on_adapted_models_and_targeted_curves_are_added_to_a_suite(capsys, saved):
    few = ("evaluate", saved, "--limit", "8")
    added = ("--attack", "eot:2", "through-batch", "targeted:12", "--eps", "4/255")
    card = as_json(capsys, *few, *added, "--bn-modes", "running", "batch")
    rows = {(row["condition"].get("method"), row["bn_mode"]["kind"]): row for row in card["rows"]}
    assert ("EOT", "per_batch") in rows
    assert ("EOT", "running") not in rows
    assert rows["ThroughBatch", "per_batch"]["iterate"] == "last iterate"
    curve = rows["CurvePGD", "running"]
    assert curve["condition"]["targeted"]
    assert curve["condition"]["step_size"] == 1 / 255
    assert [steps for steps, _ in curve["curve"]["points"]] == [10, 12]
    for name in ("EOT", "ThroughBatch", "CurvePGD"):
        assert rows[name, "per_batch"]["condition"]["budget"]["eps"] == 4 / 255
    for attack, complaint in (("wind", "'wind' is not an attack"), ("eot:1.5", "eot:M takes a whole number")):
        code, _, err = say(capsys, *few, "--attack", attack)
        assert (code, complaint in err) == (2, True)
    code, _, err = say(capsys, *few, "--attack", "through-batch")
    assert code == 2  # the model as given does not adapt
    assert "through the batch statistics" in err


def test_statistics_are_shifted_in_several_numbers_of_groups(capsys, saved):
    words = (
        "analyze",
        saved,
        "--limit",
        "16",
        "--eps",
        "0",
        "0.1",
        "--source",
        "batch",
        "--groups",
        "1",
        "4",
    )
    rows = as_json(capsys, *words)["tolerance"]
    assert {row["groups"] for row in rows} == {1, 4}
    code, out, _ = say(capsys, *words)
    assert code == 0
    assert out.count("Accuracy with shifted batch statistics") == 2
