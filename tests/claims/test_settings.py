"""Settings of the second edition: choices on held-out images, controls, tails that are forked, limits."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from trimtab import measure, train
from trimtab.attacks import Scaled
from trimtab.claims import apa, engines, ledger, mix
from trimtab.claims.bench import Bench
from trimtab.claims.claim import Claim
from trimtab.claims.conditions import Rescaled
from trimtab.claims.engines import Unit
from trimtab.claims.nets import Choice, Net
from trimtab.claims.result import Result
from trimtab.claims.scales import SMOKE, scale_of
from trimtab.claims.verdicts import Above, Needs
from trimtab.cli import main
from trimtab.evaluate import Store
from trimtab.train import Diverged
from trimtab.train.optimizers import rate
from trimtab.types import BadInput

DESK = scale_of("desk", "apa")


# ---- a choice -----------------------------------------------------------------------------------------


def test_candidates_are_the_four_settings_trained_once_for_all_seeds():
    tried = [(net.at(DESK, 5).objective.eps, net.at(DESK, 5).objective.stop_gradient, net.at(DESK, 5).seed)
             for net in apa.CHOICE.candidates]  # fmt: skip
    assert sorted(tried) == [(eps, stop, 0) for eps in (0.05, 0.1) for stop in (False, True)]
    assert tried[0][:2] == (0.1, True)  # the public code's, which a tie keeps
    assert apa.CHOICE.images == 1000
    for net in (apa.APART, apa.RANDOM, apa.APART_SAM):
        assert list(net.needs(DESK)) == apa.CHOICE.candidates
        assert len({net.key(DESK, seed) for seed in range(3)}) == 3
        assert list(net.needs(scale_of("paper", "apa"))) == []  # its recipes are as shipped
    assert len({net.key(DESK, seed) for net in apa.CHOICE.candidates for seed in range(3)}) == 4


def test_what_a_network_may_choose_is_part_of_its_key():
    other = replace(apa.CHOICE, tried=apa.CHOICE.tried[:2])
    fewer = replace(apa.CHOICE, images=500)
    plain = replace(apa.APART, choice=None)
    nets = [apa.APART, plain, replace(apa.APART, choice=other), replace(apa.APART, choice=fewer)]
    assert len({net.key(DESK, 0) for net in nets}) == 4


def test_the_most_accurate_candidate_on_held_out_images_is_trained(tmp_path, monkeypatch):
    bench = Bench(SMOKE, 1, tmp_path)
    seen = []

    def correct(self, model, *, images, n):
        seen.append(images.ids.tolist())
        return torch.full((n,), [0.25, 0.5, 0.75, 0.75][(len(seen) - 1) % 4])

    monkeypatch.setattr(Bench, "correct", correct)
    decided = bench.decided(apa.APART)
    first = apa.APART.at(SMOKE, 0).data.images
    assert seen == 4 * [list(range(first, first + len(seen[0])))]  # the images after those of training
    assert decided.changes == apa.CHOICE.tried[2]  # the first of two equal ones
    control = bench.decided(apa.RANDOM).at(SMOKE, 1).objective
    assert (control.attack, control.eps) == ("random", 0.1)
    assert not control.stop_gradient
    bench.network(apa.APART)
    folder = tmp_path / "networks" / apa.APART.key(SMOKE, 1)
    assert train.read_recipe(folder / "recipe.yaml").objective == decided.at(SMOKE, 1).objective
    # With seed 0 it is the candidate itself, which is not trained again.
    monkeypatch.setattr("trimtab.train.fit", lambda *_, **__: pytest.fail("trained again"))
    Bench(SMOKE, 0, tmp_path).network(apa.APART)
    copied, chosen = (
        tmp_path / "networks" / net.key(SMOKE, 0) / "model.safetensors"
        for net in (apa.APART, apa.CHOICE.candidates[2])
    )
    assert copied.read_bytes() == chosen.read_bytes()


def test_a_choice_without_held_out_images_is_refused(tmp_path):
    everything = Choice(Net("mix-adversarial-paper", {"data.images": 10**6}), ({"epochs": 1},))
    with pytest.raises(BadInput, match="no training images are left"):
        Bench(SMOKE, 0, tmp_path).held_out(everything)


# ---- controls -----------------------------------------------------------------------------------------


def test_the_controls_of_apart_have_three_seeds_and_what_is_judged_eight():
    claim = apa.accuracy
    assert (claim.planned(DESK), DESK.seeds) == (8, 3)
    names = {name: set(map(id, claim.nets(DESK, seed))) for name, seed in (("few", 2), ("rest", 3))}
    assert names["rest"] == {id(apa.STANDARD_2X), id(apa.APART)}
    assert names["few"] - names["rest"] == {
        id(net) for net in (apa.STANDARD, apa.GHOST, apa.RANDOM, apa.SAM, apa.APART_SAM)
    }
    assert apa.statistics_attacks.planned(DESK) == 3
    assert apa.statistics_attacks.planned(scale_of("laptop", "apa")) == 5


def test_a_test_of_a_control_is_over_its_seeds_and_the_others_over_all(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    tests = (Above("new", "control", controlled=True), Above("new", "equal"))
    claim = Claim("APA-1", "a sentence", {"a": "1"}, tests, lambda bench: {}, headline=True)
    rows = {seed: {"new": 0.7 + rng.normal(0, 0.01), "equal": 0.68} for seed in range(8)}
    for seed in range(3):
        rows[seed]["control"] = 0.6
    result = Result(claim, "desk", rows)
    for judged, name, seeds in zip(result.judgements, ("control", "equal"), (3, 8), strict=True):
        contrasts = [rows[seed]["new"] - rows[seed][name] for seed in range(seeds)]
        expected = stats.ttest_1samp(contrasts, 0).confidence_interval(0.95)
        assert judged.interval == pytest.approx((expected.low, expected.high))
        assert judged.units == seeds
    ledger.write(result, tmp_path)
    held = json.loads((tmp_path / "desk" / "APA-1.json").read_text())
    assert [part["units"] for part in held["tests"]] == [3, 8]
    again = ledger.read(claim, "desk", tmp_path)
    assert (again.seeds, again.outdated, again.verdict) == (list(range(8)), False, result.verdict)
    del rows[1]["control"]  # a seed that should have it must be measured again
    ledger.replace_text(
        tmp_path / "desk" / "APA-1.json", held | {"rows": {str(s): row for s, row in rows.items()}}
    )
    assert ledger.read(claim, "desk", tmp_path).seeds == [0, 2, 3, 4, 5, 6, 7]
    late = Result(claim, "desk", {5: rows[5]})  # no seed of the control yet: nothing is concluded
    assert (late.verdict, late.judgements[0].interval) == ("inconclusive", None)


# ---- scaled statistics --------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["mean", "sigma"])
def test_scaled_statistics_are_those_of_figure_2_image_by_image(tmp_path, what):
    bench = Bench(SMOKE, 0, tmp_path)
    model = bench.network(apa.STANDARD)
    with torch.no_grad():
        model.net.fc.bias += torch.randn(10, generator=torch.Generator().manual_seed(0))  # predicts several
    batches = [(batch.x, batch.y) for batch in bench.batches(bench.images(n=32), 8)]
    expected = measure.tolerance(model, batches, (0.4,), (f"scaled {what}",), seed=2)[0]["accuracy"]
    row = bench.accuracy(model, Rescaled(Scaled(0.4, what), 2))
    assert float(row) == pytest.approx(expected)
    assert len(row.values) == 32


# ---- a forked tail ------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", ["smoke", "desk"])
def test_both_tails_continue_one_network_at_one_percent_of_its_peak_rate(scale):
    at = scale_of(scale, "mix")
    for name, (batch, running, _) in mix.policies(at).items():
        trunk = mix.POLICY[name][0]
        assert batch.start is running.start is trunk
        recipes = [net.at(at, 0) for net in (batch, running)]
        peak = trunk.at(at, 0).optimizer.lr
        for recipe in recipes:
            rates = [recipe.optimizer.lr * rate(recipe.schedule, step, 10, 20) for step in range(20)]
            assert max(rates) <= 0.01 * peak * (1 + 1e-9), name
        assert [recipe.norm.running_epochs for recipe in recipes] == [0, at.running_epochs]
        assert replace(recipes[1], norm=recipes[0].norm) == recipes[0]
        assert recipes[0].epochs == at.running_epochs
        assert recipes[0].objective == trunk.at(at, 0).objective
    paper = scale_of("paper", "mix")
    assert mix.policies(paper) is mix.POLICY  # one run each, which agree until the last epochs


def test_mixture_bn_is_trained_with_statistics_of_32_images_at_the_desk():
    at = scale_of("desk", "mix")
    for net in (mix.ADV, mix.MIXED, mix.MBN, mix.CLEAN, mix.TO_ADV, mix.tail(mix.MBN, True)):
        recipe = net.at(at, 0)
        assert recipe.batch_size / recipe.accumulate == 32
    attack = mix.MBN.at(at, 0).objective.attack
    assert (attack.steps, attack.targeted, attack.budget.radius) == (7, True, 16 / 255)
    assert mix.judge(Bench(at, 0, "")).marks[-1] == 50


# ---- units are short ----------------------------------------------------------------------------------


def test_a_unit_that_takes_too_long_is_stopped_and_continued_and_gives_the_same_network(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("trimtab.claims.bench.STOP_EVERY", 1)
    key = mix.ADV.key(SMOKE, 0)
    unit = Unit("MIX-8", "smoke", 0, str(tmp_path / "whole"))
    engines.perform(replace(unit, network=key))
    limits = iter([0.0, 0.0])  # each of the first two parts is stopped after a step
    calls = []
    perform = engines.perform

    def limited(part, progress=None):
        calls.append(part.network)
        monkeypatch.setattr(engines, "LONGEST", next(limits, 1000.0))
        return perform(part, progress)

    monkeypatch.setattr(engines, "perform", limited)
    short = replace(unit, folder=str(tmp_path / "short"))
    monkeypatch.setattr("trimtab.claims.mix.batch_against_running", unmeasured())
    done = [done for done in engines.run([short]) if done.unit.network == key]
    assert len(done) == 1
    assert calls.count(key) == 3
    assert done[0].seconds > 0
    whole, other = (tmp_path / name / "networks" / key / "model.safetensors" for name in ("whole", "short"))
    assert whole.read_bytes() == other.read_bytes()


def unmeasured():
    return replace(mix.batch_against_running, measure=lambda bench: {}, networks=[mix.ADV], needs=())


def test_a_measurement_that_takes_too_long_keeps_its_finished_chunks(tmp_path):
    bench = Bench(replace(SMOKE, test=600), 0, tmp_path)
    model = bench.network(mix.ADV)
    late = replace(bench, until=0.0)
    whole = len(bench.images(n=600)) // 256 + 1
    assert whole > 1
    for _ in range(whole):
        with pytest.raises(train.Stopped):
            late.accuracy(model)  # one chunk more each time
    assert len(late.accuracy(model).values) == len(bench.images(n=600))
    assert len(Store(tmp_path / "store.sqlite").cells()) == 1


def test_what_makes_the_rest_vain_is_said_at_once(tmp_path, monkeypatch, capsys):
    def train(self, net, path):
        sum(range(100_000))  # takes time
        raise Diverged("training diverged in step 3")

    monkeypatch.setattr(Bench, "_train", train)
    needs = [Needs("learned", 0.9)]
    known = {
        "MIX-4": Claim("MIX-4", "a", {"a": "1"}, [Above("a", 0.0)], lambda bench: {}, networks=[mix.ADV]),
        "MIX-5": Claim(
            "MIX-5", "b", {"a": "1"}, [Above("a", 0.0)], lambda bench: {"a": 1, "learned": 0.2}, needs=needs
        ),
    }
    for place in ("claim", "engines", "page"):
        monkeypatch.setattr(f"trimtab.claims.{place}.everything", lambda: known)
    words = ["reproduce", "MIX-4", "MIX-5", "--scale", "smoke", "--seeds", "1", "--out", str(tmp_path / "o")]
    assert main([*words, "--work", str(tmp_path / "w")]) == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("MIX")]
    assert lines == [
        "MIX-4, seed 0: training diverged in step 3",
        "MIX-5, seed 0: learned is 0.200 (unit 0), needed is at least 0.9",
        "MIX-4, seed 0, could not be measured: training diverged in step 3",
    ]
