"""The verdict and the advice say what the rows say, and nothing that they do not.

Also tests report.advice.
"""

import ast
import inspect
from dataclasses import replace

import pytest
import torch
from tests.report.report_cards import CLEAN, FROZEN, NOISE, PER_BATCH, PGD, RUNNING, card, corruption, row

import trimtab
from trimtab.evaluate import (
    BNMode,
    BranchMode,
    Card,
    Flag,
    FrozenMode,
    PerBatchMode,
    attack_flags,
    model_flags,
    trust,
)
from trimtab.models import build
from trimtab.report import advice, verdict
from trimtab.report.sentences import FLAGS, checked


def test_the_verdict_names_clean_accuracy_strongest_attack_harshest_disturbance_and_trust() -> None:
    first, second, third = verdict([card()])
    assert "net classifies 90.0 % of 1,000 clean images of sample correctly" in first
    assert "strongest attack measured, PGD-100 (ce), l_inf 8/255, is 10.0 %" in second
    assert "harshest corruption, contrast, severity 5, is 30.0 %" in second
    assert "no flag in BN mode “running”" in third
    assert str(PER_BATCH) in third


def test_the_verdict_says_what_was_not_measured() -> None:
    bare = replace(card(), rows=(row(NOISE, RUNNING, 5),), flags=())
    first, second, third = verdict([bare])
    assert "was not measured" in first
    assert "attack" not in second
    assert "no flag" in third
    stopped = replace(bare, flags=(Flag("normalization", "saw", "do"),))
    assert "no attack was run" in verdict([stopped])[1].lower()


def test_a_flag_in_the_first_norm_state_is_in_the_verdict() -> None:
    flagged = replace(card(), flags=(Flag("weak attack", "saw", "do"), Flag("samples", "saw", "do")))
    assert "2 flags in BN mode “running” (weak attack and samples)" in verdict([flagged])[2]


def test_a_model_is_ahead_only_beyond_the_interval() -> None:
    def scored(model: str, clean: int, attacked: int) -> Card:
        rows = (row(CLEAN, RUNNING, clean), row(PGD, RUNNING, attacked))
        return replace(card(model), rows=rows, flags=())

    first, second, third = verdict([scored("a", 900, 200), scored("b", 890, 400)])
    assert "no difference is significant" in first
    assert "b is ahead: b has 40.0 % and a 20.0 %" in second
    assert "no flag" in third


def test_no_model_is_ahead_on_other_images() -> None:
    def scored(model: str, clean: int, data: str) -> Card:
        return replace(card(model), rows=(row(CLEAN, RUNNING, clean),), provenance={"data": data})

    first, *_ = verdict([scored("a", 900, "d1"), scored("b", 500, "d2")])
    assert "a has 90.0 % and b 50.0 %, but on different images" in first
    assert "is ahead" not in first


def test_only_what_was_checked_is_listed() -> None:
    rows = (row(CLEAN, RUNNING, 900),)
    bare = replace(card(), rows=rows, provenance={})
    attacked = replace(bare, rows=(*rows, row(PGD, RUNNING, 100)))
    quick = replace(attacked, provenance={"examined": False})
    assert set(checked([attacked])) == set(FLAGS)
    for cards in ([bare], [attacked, bare], [quick]):
        assert "samples" in checked(cards)
        assert not {"weak attack", "black box", "curve"} & set(checked(cards))


def test_every_flag_that_the_trust_card_can_raise_is_explained() -> None:
    sources = [inspect.getsource(module) for module in (trust, model_flags, attack_flags)]
    nodes = [node for source in sources for node in ast.walk(ast.parse(source))]
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    raised = {
        call.args[0].value
        for call in calls
        if isinstance(call.func, ast.Name)
        and call.func.id == "Flag"
        and isinstance(call.args[0], ast.Constant)
    }
    assert len(raised) > 10
    assert raised <= set(FLAGS)


def test_advice_gives_the_mean_gain_over_what_both_states_measured_and_its_price() -> None:
    (found,) = advice(card())
    assert "Adapt the statistics to every batch" in found.what
    assert found.gain.startswith("+20.0 points")  # (70 - 60 + 70 - 40) / 2
    assert found.price.startswith("−5.0 points")
    assert found.size == pytest.approx(0.2)


def test_extra_corruptions_do_not_count_as_a_gain() -> None:
    rows = [
        row(corruption(name), state, correct)
        for name, gain in (("fog", 100), ("spatter", 500))
        for state, correct in ((RUNNING, 400), (PER_BATCH, 400 + gain))
    ]
    (found,) = advice(replace(card(), rows=tuple(rows)))
    assert found.size == pytest.approx(0.1)


def test_no_other_state_no_advice() -> None:
    alone = replace(card(), rows=tuple(r for r in card().rows if r.bn_mode == RUNNING))
    assert advice(alone) == ()


def test_a_gain_within_chance_is_not_advised() -> None:
    assert FROZEN in {r.bn_mode for r in card().rows}
    assert all("Recalibrate" not in found.what for found in advice(card()))


def test_under_attack_a_gain_counts_only_in_a_state_without_flags() -> None:
    rows = (row(PGD, RUNNING, 100), row(PGD, BranchMode("adv"), 400))
    sound = replace(card(), rows=rows, flags=())
    (found,) = advice(sound)
    assert found.gain.startswith("+30.0 points")
    assert advice(replace(sound, flags=(Flag("black box", "saw", "do", BranchMode("adv")),))) == ()


def test_of_several_rho_the_best_is_advised_once() -> None:
    rows = [row(NOISE, RUNNING, 300)]
    rows += [row(NOISE, PerBatchMode(rho), k) for rho, k in ((0.5, 600), (1, 500))]
    (found,) = advice(replace(card(), rows=tuple(rows)))
    assert "rho=0.5" in found.command


def test_advice_says_from_which_batch_size_adaptation_pays() -> None:
    def at(correct: int) -> Card:
        rows = (row(NOISE, RUNNING, 500), row(NOISE, PER_BATCH, correct))
        return replace(card(), rows=rows)

    card_gain = advice(card())[0].gain
    (found,) = advice(card(), {4: at(700), 8: at(480), 16: at(600), 64: at(700)})
    assert found.gain == card_gain
    assert "gains from batches of 16 on: +10.0 points" in found.batches
    assert "on 1000 images under Gaussian noise, sigma 0.1, unclipped; tried: 4, 8, 16, 64" in found.batches
    (found,) = advice(card(), {8: at(700), 64: at(480)})
    assert "no gain that is significant" in found.batches


MODES = [PerBatchMode(0.5), PerBatchMode(1e-05), PerBatchMode(0.5, "var"), FrozenMode(1.0, 64)]


@pytest.mark.parametrize("state", [*MODES, BranchMode("adv")], ids=str)
def test_the_advised_command_runs(state: BNMode) -> None:
    model = build("resnet8", classes=10, width=8)
    trimtab.add_branch(trimtab.steer(model), "adv", copy_of="main")
    rows = (row(NOISE, RUNNING, 100), row(NOISE, state, 900))
    (found,) = advice(replace(card(), rows=rows, flags=()))
    names = {"trimtab": trimtab, "model": model, "images": torch.rand(8, 3, 32, 32)}
    exec(found.command, names)
    made = names.get("adapted") or names.get("fixed") or model
    assert made(torch.rand(4, 3, 32, 32)).shape == (4, 10)
