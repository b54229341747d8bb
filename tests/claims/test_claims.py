"""The ledger is complete, and `trimtab reproduce all --scale smoke` runs every study end to end."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from trimtab import claims
from trimtab.claims import ada, adv, apa, engines, ledger, lig, mix
from trimtab.claims.bench import Bench
from trimtab.claims.claim import Claim
from trimtab.claims.engines import Unit
from trimtab.claims.nets import closure
from trimtab.claims.scales import NAMES, SMOKE, WAVE1, scale_of
from trimtab.cli import main
from trimtab.data.corruptions import CORRUPTIONS
from trimtab.evaluate import BranchMode, Noise

COUNTS = {"MIX": 15, "ADV": 6, "APA": 8, "ADA": 10, "LIG": 14}
HEADLINE = (
    *("MIX-4", "MIX-9", "ADV-1", "APA-1", "APA-6", "APA-7", "ADA-1", "ADA-2"),
    *("ADA-4", "ADA-6", "LIG-1", "LIG-6", "LIG-8", "LIG-9"),
)
EQUIVALENCE = ("MIX-3", "MIX-4", "MIX-5", "MIX-13", "ADA-5", "LIG-7", "LIG-11", "LIG-12")


def test_a_table_has_a_row_for_every_subject_and_condition(tmp_path, monkeypatch):
    """Networks are measured with running statistics, or in the BN mode that is given with them."""
    bench = Bench(scale_of("smoke", "mix"), 0, tmp_path)
    monkeypatch.setattr(bench, "network", lambda net: net)
    monkeypatch.setattr(bench, "accuracy", lambda *what, state: (*what, state))
    adv = BranchMode("adv")
    rows = bench.table({"standard": mix.CLEAN, "MBN": (mix.MBN, adv)}, {"clean": None, "noisy": Noise(0.1)})
    assert rows == {
        "standard, clean": (mix.CLEAN, None, None), "standard, noisy": (mix.CLEAN, Noise(0.1), None),
        "MBN, clean": (mix.MBN, None, adv), "MBN, noisy": (mix.MBN, Noise(0.1), adv),
    }  # fmt: skip


def test_each_of_the_53_claims_is_defined_exactly_once():
    expected = [f"{paper}-{number}" for paper, count in COUNTS.items() for number in range(1, count + 1)]
    defined = [
        value.id
        for paper in (mix, adv, apa, ada, lig)
        for value in vars(paper).values()
        if isinstance(value, Claim)
    ]
    assert len(expected) == 53
    assert sorted(defined) == sorted(expected)
    assert list(claims.everything()) == expected


def test_every_claim_has_the_papers_figures_and_tests_that_were_written_beforehand():
    for one in claims.everything().values():
        assert one.figures
        assert one.tests
        assert one.sentence[0].isupper()
        assert not one.sentence.endswith(".")
    assert {one.id for one in claims.everything().values() if one.headline} == set(HEADLINE)


def test_a_claim_of_little_effect_is_tested_for_equivalence():
    known = claims.everything()
    for id in EQUIVALENCE:
        assert any(isinstance(test, claims.Close) for test in known[id].tests), id


def test_claims_of_closeness_and_of_networks_without_norm_need_networks_that_have_learnt():
    known = claims.everything()
    for id in (*EQUIVALENCE, "MIX-14", "MIX-15", "LIG-1", "LIG-2", "LIG-6", "LIG-9"):
        assert known[id].needs, id


def test_only_tests_that_the_papers_take_back_for_small_settings_are_exempt():
    """Those that rest on mixed training failing, and one that the paper's own CIFAR-10 network fails."""
    exempt = {one.id: [t for t in one.tests if t.exempt] for one in claims.everything().values()}
    assert {id for id, tests in exempt.items() if tests} == {
        *(f"MIX-{number}" for number in (1, 2, 4, 7, 12, 14, 15)), "APA-3",
    }  # fmt: skip
    assert all(isinstance(test, claims.Above) for tests in exempt.values() for test in tests)
    assert len(exempt["MIX-4"]) == len(exempt["APA-3"]) == 1


@pytest.mark.parametrize("scale", NAMES)
def test_every_network_has_a_recipe_at_every_scale(scale):
    for one in claims.everything().values():
        at = scale_of(scale, one.paper)
        for net in closure(one.nets(at), at, 0).values():
            recipe = net.at(at, 3)
            assert recipe.seed == (0 if net.first else 3) + 1000 * net.draw
            assert (net.draw > 0) == (net.data is not None)  # no twin of the network that made its set
            assert (recipe.data.name == at.data) or scale == "paper"


def test_the_papers_recipes_keep_their_own_numbers_at_the_papers_scale():
    at = scale_of("paper", "mix")
    assert mix.MBN.at(at, 0).objective.attack.steps == 30
    assert (mix.MBN.at(at, 0).epochs, mix.MBN.at(at, 0).batch_size) == (110, 4096)
    assert mix.ADV_RUNNING.at(at, 0).norm.running_epochs == 10
    assert apa.STANDARD_2X.at(scale_of("paper", "apa"), 0).epochs == 400
    assert ada.ADV_INF.at(scale_of("paper", "ada"), 0).objective.attack.budget.radius == 4 / 255
    assert scale_of("paper", "adv").corruptions == CORRUPTIONS


def test_networks_are_shared_between_claims_by_what_they_are_made_of():
    at = scale_of("laptop", "mix")
    assert mix.mixed(0).key(at, 0) == mix.ADV.key(at, 0)
    assert mix.ADV.key(at, 0) != mix.ADV.key(at, 1)
    assert mix.ADV.key(at, 0) != mix.ADV_WEAK.key(at, 0)
    at = scale_of("laptop", "lig")
    assert lig.PLAIN.key(at, 0) == lig.BN.key(at, 0)
    adapted = lig.standard_networks(scale_of("desk", "lig"))  # those of row 1, and of ADV-4 and ADV-5
    others = {"ResNet": ada.BASELINE.key(scale_of("desk", "ada"), 0)}
    others["VGG"] = adv.PAINTER.key(scale_of("desk", "adv"), 0)
    assert {name: net.key(scale_of("desk", "lig"), 0) for name, net in adapted.items()} == others
    assert ada.BASELINE.key(scale_of("laptop", "ada"), 0) == adv.STANDARD.key(scale_of("laptop", "adv"), 0)


def test_advbn_images_are_made_with_a_network_that_is_not_judged_on_them():
    for name in NAMES:
        at = scale_of(name, "adv")
        painter = adv.PAINTER.key(at, 0)
        judged = [adv.STANDARD, adv.ADVBN, adv.EQUAL, adv.RANDOM]
        assert painter not in {net.key(at, 0) for one in judged for net in (*one.needs(at), one)}
    at = scale_of("laptop", "adv")  # trained for ADV-3 anyway
    assert adv.PAINTER.key(at, 0) == adv.OTHERS["DenseNet-121 (small: VGG-11)"][0].key(at, 0)


def test_painters_that_differ_in_anything_are_kept_apart(tmp_path):
    def about(seed=0, **changes):
        return adv.painter_about(Bench(replace(SMOKE, **changes), seed, tmp_path))

    different = [about(), about(1), about(made=65), about(decoder_epochs=9), about(data="cifar10")]
    assert len({json.dumps(one, sort_keys=True) for one in different}) == len(different)


def test_a_network_is_trained_behind_what_it_starts_from_and_is_made_with():
    order = list(closure([lig.CONFLICT["BN"]], SMOKE, 0).values())
    assert order.index(lig.ADV_BN) < order.index(lig.CONFLICT["BN"])
    assert order.index(lig.BN) < order.index(lig.CONFLICT["BN"])


def test_a_study_cannot_ask_for_a_network_that_it_does_not_declare(tmp_path):
    bench = Bench(SMOKE, 0, tmp_path, allowed=[mix.ADV])
    with pytest.raises(AssertionError, match="does not declare"):
        bench.network(mix.MBN)


def test_a_killed_training_goes_on_and_gives_the_same_network(tmp_path, monkeypatch):
    unit = Unit("MIX-8", "smoke", 0, str(tmp_path / "whole"))
    key = mix.ADV.key(SMOKE, 0)
    engines.perform(replace(unit, network=key))
    killed = Bench(SMOKE, 0, tmp_path / "killed", None)
    with monkeypatch.context() as patched:
        patched.setattr("trimtab.train._loop.loop._end_epoch", _kill)
        with pytest.raises(KeyboardInterrupt):
            killed.network(mix.ADV)
    killed.network(mix.ADV)
    whole, other = (tmp_path / name / "networks" / key / "model.safetensors" for name in ("whole", "killed"))
    assert whole.read_bytes() == other.read_bytes()


def _kill(*_):
    raise KeyboardInterrupt


@pytest.mark.timeout(600)
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_reproduce_all_at_smoke_scale_runs_every_study_end_to_end(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", "all", "--scale", "smoke", "--threads", "1", "--json"]) == 0
    shown = {one["id"]: one for one in json.loads(capsys.readouterr().out)}
    assert len(shown) == 53
    for id, one in shown.items():
        held = json.loads((tmp_path / "results" / "smoke" / f"{id}.json").read_text())
        assert len(held["rows"]) == 2
        assert ledger.read(claims.everything()[id], "smoke", tmp_path / "results").seeds == [0, 1]
        assert len(one["tests"]) == len(claims.everything()[id].tests)
        assert all(math.isfinite(value) for value in one["means"].values() if value is not None)
    text = (tmp_path / "results" / "smoke" / "ledger.md").read_text()
    assert "Of 53 claims 53 were run" in text
    # What needs no training has its answer already at this scale.
    assert shown["APA-8"]["verdict"] == shown["ADV-6"]["verdict"] == "reproduced"


def test_the_first_wave_is_headlines_first_and_costs_two_days():
    wave = [one.id for one in claims.chosen(["wave1"])]
    assert wave[:7] == ["ADA-1", "ADA-6", "ADA-7", "ADA-8", "ADA-9", "ADA-10", "LIG-13"]
    planned = [id for row in WAVE1 for id in row.ids]
    assert wave == planned
    assert len({*planned}) == len(planned) == 31
    assert sum(row.hours for row in WAVE1) == 46
    assert sum(row.hours for row in WAVE1[:6]) == 37


def test_the_desk_trains_on_all_of_cifar_and_apart_where_the_standard_network_fits():
    desk = {paper: scale_of("desk", paper) for paper in ("mix", "adv", "apa", "ada", "lig")}
    epochs = {
        (ada.BASELINE, "ada"): (None, 16), (ada.RAND, "ada"): (None, 16), (ada.ADV_INF, "ada"): (None, 9),
        (ada.ADV_2, "ada"): (None, 9), (mix.ADV, "mix"): (None, 9), (lig.BN, "lig"): (None, 30),
        (apa.APART, "apa"): (5000, 100), (apa.STANDARD, "apa"): (5000, 100),
        (apa.STANDARD_2X, "apa"): (5000, 200), (adv.ADVBN, "adv"): (None, 8),
    }  # fmt: skip
    for (net, paper), expected in epochs.items():
        recipe = net.at(desk[paper], 0)
        assert (recipe.data.images, recipe.epochs) == expected, (paper, recipe.about)
    assert apa.STANDARD_2X.at(desk["apa"], 0).schedule.milestones == (100, 150)
    assert apa.APART.at(desk["apa"], 0).model == "net:preact18,width=16"
    assert (desk["ada"].corrupted, desk["ada"].severities, desk["ada"].test) == (1000, (1, 2, 3, 4, 5), None)
    assert (desk["apa"].headline, desk["ada"].certified, desk["mix"].attacked) == (8, 300, 1000)


def test_a_file_pause_stops_a_run_after_the_unit_at_hand(tmp_path):
    units = [Unit(id, "smoke", 0, str(tmp_path)) for id in ("APA-8", "ADV-6")]
    run = engines.run(units)
    assert not next(run).problem
    (tmp_path / "PAUSE").touch()
    assert list(run) == []
    (tmp_path / "PAUSE").unlink()
    assert [done.unit.id for done in engines.run(units) if done.rows is not None] == ["APA-8", "ADV-6"]


def test_a_file_pause_ends_a_training_whose_state_is_saved(tmp_path, monkeypatch):
    unit, key = Unit("MIX-8", "smoke", 0, str(tmp_path / "whole")), mix.ADV.key(SMOKE, 0)
    engines.perform(replace(unit, network=key))
    paused = iter([False, True])  # at the second step of the training
    monkeypatch.setattr("trimtab.claims.bench.STOP_EVERY", 1)
    monkeypatch.setattr("trimtab.claims.bench.paused", lambda folder: next(paused, True))
    monkeypatch.setattr("trimtab.claims.engines.paused", lambda folder: True)
    other = replace(unit, folder=str(tmp_path / "paused"), network=key)
    assert engines.perform(other).stopped
    assert not other.bench().trained(key)
    monkeypatch.setattr("trimtab.claims.bench.paused", lambda folder: False)
    assert not engines.perform(other).stopped
    whole, resumed = (
        tmp_path / name / "networks" / key / "model.safetensors" for name in ("whole", "paused")
    )
    assert whole.read_bytes() == resumed.read_bytes()


@pytest.mark.filterwarnings("default")  # of the worker processes' start
def test_several_workers_give_the_bytes_that_one_gives(tmp_path):
    selected = claims.chosen(["MIX-8", "MIX-10"])  # they share a network, and one starts from another
    for workers in (1, 2):
        place = tmp_path / str(workers)
        ledger.run(selected, "smoke", place, place / "work", 1, workers=workers, threads=1)
    for claim in selected:
        one, two = (tmp_path / str(workers) / "smoke" / f"{claim.id}.json" for workers in (1, 2))
        assert one.read_bytes() == two.read_bytes()
    assert len(ledger.times(tmp_path / "2", "smoke")["networks"]) == 6
