"""Every network of the zoo is what its card says, foolbox agrees, and so does the script that makes cards."""

import json
from pathlib import Path

import pytest
import torch
from pydantic import TypeAdapter
from scipy.stats import binomtest

import trimtab
from trimtab import attacks, data, norm, train
from trimtab.evaluate import Row
from trimtab.evaluate.records import AttackRecord, NoiseRecord
from trimtab.models import grammar

ROOT = Path(__file__).parents[2]
NETWORKS = sorted(file.parent.name for file in grammar.ZOO.glob("*/model.safetensors"))
SAMPLE = [name for name in NETWORKS if name.startswith("sample-")]
HERE = {"sample": True, **data.available()}
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # foolbox, about its own imports


@pytest.fixture(autouse=True)
def with_the_benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))


def card_of(name):
    return json.loads((grammar.ZOO / name / "card.json").read_text())


def on(model, branch):
    return norm.release(model, branch) if norm.layers(model) else model


@torch.no_grad()
def right(model, x, y):
    return model.eval()(x).argmax(1) == y


def test_the_sample_has_a_network_for_every_way_of_training():
    kinds = {"standard", "adversarial", "mixture", "apart", "advbn", "noise", "nobn"}
    assert {f"sample-{kind}" for kind in kinds} <= set(NETWORKS)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_is_right_on_exactly_as_many_of_the_first_images_as_its_card_states(name):
    card = card_of(name)
    if not HERE.get(card["data"]):
        pytest.skip(f"needs `trimtab data fetch {card['data']}`")
    x, y, _ = data.load(card["data"], "test").take(torch.arange(500))
    assert card["first"].keys() == card["confirmed"].keys()
    for branch, stated in card["first"].items():
        assert int(right(on(trimtab.load(f"zoo:{name}"), branch), x, y).sum()) == stated


@pytest.mark.parametrize("name", NETWORKS)
def test_a_card_agrees_with_itself(name):
    card = card_of(name)
    recipe = train.read_recipe(grammar.ZOO / name / "recipe.yaml")
    assert (card["name"], card["data"], card["seed"]) == (name, recipe.data.name, recipe.seed)
    words = card["train"].split()
    shipped = words[2] if words[2] in train.shipped() else ROOT / words[2]
    assert train.read_recipe(shipped) == recipe  # the command trains what the run did
    scores = TypeAdapter(list[Row]).validate_python(card["scores"])
    modes = list(dict.fromkeys(row.bn_mode for row in scores))
    for mode, found in zip(modes, card["confirmed"].values(), strict=True):
        rows = [row for row in scores if row.bn_mode == mode]
        assert [row.condition for row in rows if row.kind == "noise"] == [NoiseRecord(0.1, clip=False)]
        (clean,) = (row for row in rows if row.kind == "clean")
        assert clean.correct == found["clean"]
        (pgd,) = (
            row for row in rows if isinstance(row.condition, AttackRecord) and row.condition.steps == 20
        )
        assert pgd.iterate == "early stopping"
        assert pgd.correct <= found["trimtab"]  # early stopping there, the last iterate here
        assert abs(found["trimtab"] - found["foolbox"]) <= 0.02 * found["n"]


@pytest.mark.parametrize(("name", "branch"), [("sample-adversarial", "main"), ("sample-mixture", "adv")])
def test_pgd_and_foolbox_leave_the_same_share_standing(name, branch):
    import foolbox

    model = on(trimtab.load(f"zoo:{name}"), branch).eval()
    x, y, ids = data.load("sample", "test").take(torch.arange(200))
    eps, steps = 8 / 255, 20
    ours = right(model, attacks.PGD(attacks.Linf(eps), steps, early_stop=False)(model, x, y, ids=ids), y)
    torch.manual_seed(1)
    wrapped = foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu")
    attack = foolbox.attacks.LinfPGD(abs_stepsize=2.5 * eps / steps, steps=steps, random_start=True)
    theirs = right(model, attack(wrapped, x, y, epsilons=eps)[1], y)
    apart = int((ours != theirs).sum())  # images on which the two random starts ended differently
    assert apart <= 10
    assert binomtest(int((ours & ~theirs).sum()), max(apart, 1)).pvalue > 1e-3
    stated = card_of(name)["confirmed"][branch]
    share = stated["foolbox"] / stated["n"]
    assert binomtest(int(theirs.sum()), 200, share).pvalue > 1e-3


def test_training_against_attacks_is_what_makes_a_network_stand():
    def share(name, branch="main"):
        found = card_of(name)["confirmed"][branch]
        return found["foolbox"] / found["n"]

    assert share("sample-standard") < 0.1
    assert share("sample-adversarial") > 0.5
    assert share("sample-mixture", "adv") > share("sample-mixture") + 0.2


def test_the_zoo_is_small_and_holds_no_checkpoints():
    files = [file for file in grammar.ZOO.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) <= 12_000_000
    kept = {"model.safetensors", "model.json", "recipe.yaml", "card.json", "README.md"}
    assert {file.name for file in files} == kept


def test_the_documented_table_is_that_of_the_cards():
    from benchmarks import zoo

    assert zoo.table() in (ROOT / "docs" / "zoo.md").read_text()


def test_the_script_puts_the_ledgers_networks_into_the_zoo(tmp_path, monkeypatch, capsys):
    from benchmarks import zoo

    from trimtab.claims.bench import Bench
    from trimtab.claims.scales import SMOKE

    monkeypatch.setattr(grammar, "ZOO", tmp_path / "zoo")
    bench = Bench(SMOKE, 0, tmp_path / "work")
    for name in ("cifar10-mixture", "cifar10-advbn"):  # the second starts from the standard network
        bench.network(zoo.LEDGER[name][1])
    words = ["--ledger", str(tmp_path), "--work", str(tmp_path / "work"), "--scale", "smoke", "--limit", "24"]
    assert zoo.main(words) == 1
    missing = capsys.readouterr().err
    assert (
        f"zoo:cifar10-apart is not trained yet: trimtab reproduce APA-1 --scale smoke --out {tmp_path}"
        in missing
    )
    made = {path.name for path in (tmp_path / "zoo").iterdir()}
    assert made == {"cifar10-standard", "cifar10-mixture", "cifar10-advbn"}
    assert all(f"zoo:{name} " not in missing for name in made)
    for name in made:
        recipe = train.read_recipe(tmp_path / "zoo" / name / "recipe.yaml")
        assert "--eps 8/255" in card_of(name)["evaluate"]
        assert card_of(name)["about"] == recipe.about
        assert recipe.about.endswith(f"seed 0 at scale smoke ({zoo.LEDGER[name][0]})")
    retrained = train.fit(recipe=tmp_path / "zoo" / "cifar10-advbn" / "recipe.yaml", folder=tmp_path / "run")
    again, kept = retrained.model.state_dict(), trimtab.load("zoo:cifar10-advbn").state_dict()
    assert again.keys() == kept.keys()  # the command on the card trains this network
    assert all(bool((again[name] == value).all()) for name, value in kept.items())


def test_the_script_puts_a_run_into_the_zoo(tmp_path, monkeypatch, capsys):
    from benchmarks import zoo

    monkeypatch.setattr(grammar, "ZOO", tmp_path / "zoo")
    monkeypatch.chdir(tmp_path)
    attack = {"kind": "pgd", "budget": {"linf": "4/255"}, "steps": 1}
    recipe = train.read_recipe("smoke", {"objective": {"kind": "mixture", "attack": attack}})
    train.fit(recipe=recipe, folder=tmp_path / "run")
    assert zoo.main(["--from", "run", "--name", "tiny", "--limit", "24"]) == 0
    assert "the zoo takes" in capsys.readouterr().out
    card = card_of("tiny")
    assert "recipe.yaml" in card["train"]
    assert "--eps 4/255" in card["evaluate"]
    assert [row["bn_mode"] for row in card["scores"]] == [
        *[{"kind": "running"}] * 4,
        *[{"kind": "branch", "name": "adv"}] * 4,
    ]
    assert "samples" in {
        flag["name"] for flag in card["flags"]
    }  # 24 images are too few, and the card says so
    x, y, _ = data.load("sample", "test").take(torch.arange(24))
    for branch, found in card["confirmed"].items():
        assert found["n"] == 24
        assert found["clean"] == int(right(on(trimtab.load("zoo:tiny"), branch), x, y).sum())
    assert card["name"] in (grammar.ZOO / "tiny" / "README.md").read_text()
    assert not (tmp_path / "zoo" / "tiny" / "checkpoints").exists()
    assert zoo.table().count("`zoo:tiny`") == 2
