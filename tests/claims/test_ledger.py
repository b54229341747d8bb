"""Results on disk: they resume, they repeat to the byte, and the page shows them."""

from __future__ import annotations

import json
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from statistics import stdev
from types import SimpleNamespace

import pytest
import torch

from trimtab import claims
from trimtab.attacks import PGD, Linf
from trimtab.claims import ledger, page, plan
from trimtab.claims.claim import Claim
from trimtab.claims.engines import Done, Unit
from trimtab.claims.nets import Net
from trimtab.claims.power import PerImage, detectable
from trimtab.claims.scales import SMOKE, WAVE1, scale_of
from trimtab.claims.verdicts import Above, Needs
from trimtab.cli import main
from trimtab.evaluate import Attacked
from trimtab.train import Diverged
from trimtab.types import BadInput

LAPTOP = Path(__file__).parents[2] / "docs" / "results" / "laptop"


def invented(measure, **more):
    return Claim("MIX-4", "a sentence", {"a": "1"}, (Above("a", "b"),), measure, **more)


def run(claim, tmp_path, monkeypatch, seeds=3, **how):
    monkeypatch.setattr("trimtab.claims.engines.everything", lambda: {claim.id: claim})
    return ledger.run([claim], "smoke", tmp_path / "out", tmp_path / "work", seeds=seeds, **how)[0]


def rows(bench):
    return {"a": 0.5 + 0.01 * bench.seed, "b": 0.1, "context": float("nan")}


def test_seeds_that_are_there_are_not_measured_again(tmp_path, monkeypatch):
    asked = []

    def counted(bench):
        asked.append(bench.seed)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return rows(bench)

    with pytest.raises(KeyboardInterrupt):
        run(invented(counted), tmp_path, monkeypatch)
    result = run(invented(counted), tmp_path, monkeypatch)
    assert asked == [0, 1, 2, 2]
    assert (result.seeds, result.verdict) == ([0, 1, 2], "reproduced")


def test_a_rerun_gives_the_same_bytes_whatever_time_it_took(tmp_path, monkeypatch):
    for name, claim in {"seeds": invented(rows), "images": invented(outcomes)}.items():
        place = tmp_path / name
        run(claim, place, monkeypatch)
        first = (place / "out" / "smoke" / "MIX-4.json").read_bytes()
        run(claim, place, monkeypatch)
        assert (place / "out" / "smoke" / "MIX-4.json").read_bytes() == first
        (place / "out" / "smoke" / "MIX-4.json").unlink()
        run(claim, place, monkeypatch)
        assert (place / "out" / "smoke" / "MIX-4.json").read_bytes() == first
        assert b"seconds" not in first


def test_a_study_that_changed_is_measured_anew(tmp_path, monkeypatch):
    run(invented(rows), tmp_path, monkeypatch)
    changed = invented(lambda bench: {"a": 0.0, "b": 0.5}, version=2)
    result = run(changed, tmp_path, monkeypatch)
    assert (result.means["a"], result.verdict) == (0.0, "not reproduced")


def test_where_a_need_is_not_met_the_setting_is_too_weak_and_says_why(tmp_path, monkeypatch):
    result = run(invented(rows, needs=[Needs("b", 0.25)]), tmp_path, monkeypatch)
    assert {one.verdict for one in result.judgements} == {"reproduced"}
    assert result.verdict == "setting too weak"
    assert result.note == "b is 0.100 (unit 0), 0.100 (unit 1), 0.100 (unit 2), needed is at least 0.25"
    assert run(invented(rows, needs=[Needs("b", 0.1)]), tmp_path, monkeypatch).verdict == "reproduced"
    held = json.loads((tmp_path / "out" / "smoke" / "MIX-4.json").read_text())
    needed = {"needed": "b at least 0.1", "by seed": {"0": 0.1, "1": 0.1, "2": 0.1}, "met": True}
    assert held["preconditions"] == [needed]


def test_times_are_kept_apart(tmp_path):
    unit = Unit("MIX-4", "smoke", 1, str(tmp_path / "work"))
    ledger.note_time(tmp_path, Done(unit, {"a": 1.0}, 12.34))
    ledger.note_time(tmp_path, Done(replace(unit, network="key"), None, 5.0))
    assert ledger.times(tmp_path, "smoke") == {"MIX-4": {"1": 12.3}, "networks": {"key": 5.0}}


def test_damaged_results_are_told_in_one_sentence(tmp_path):
    (tmp_path / "smoke").mkdir()
    (tmp_path / "smoke" / "MIX-4.json").write_text("{")
    with pytest.raises(BadInput, match="move it away"):
        ledger.read(claims.everything()["MIX-4"], "smoke", tmp_path)


def test_the_page_names_every_claim_and_says_how_much_of_it_was_run(tmp_path):
    content = page.publish("laptop", tmp_path)
    text = (tmp_path / "laptop" / "ledger.md").read_text()
    assert [one["id"] for one in content["claims"]] == list(claims.everything())
    assert all(f"## {id}\n" in text for id in claims.everything())
    assert "Not run yet" in text
    assert "by\nchance" in text
    assert f"0 of {content['units']} units (trained networks and measurements" in text
    listed = json.loads((tmp_path / "laptop" / "ledger.json").read_text())
    assert {one["verdict"] for one in listed["claims"]} == {"not run yet"}


def test_the_page_is_made_from_the_data_alone(tmp_path, monkeypatch):
    run(invented(outcomes, needs=[Needs("b", 0.5)]), tmp_path, monkeypatch)
    ledger_of({"MIX-4": invented(outcomes, needs=[Needs("b", 0.5)])}, monkeypatch, tmp_path)
    page.publish("smoke", tmp_path / "out")
    place = tmp_path / "out" / "smoke"
    content = json.loads((place / "ledger.json").read_text())
    assert page.page(content) == (place / "ledger.md").read_text()
    (entry,) = content["claims"]
    assert (entry["images"], entry["planned seeds"], entry["provisional"]) == (60, 2, False)
    assert (entry["verdict"], entry["reason"][:5]) == ("setting too weak", "b is ")
    assert "- Precondition: b at least 0.5 (not met: " in page.page(content)
    assert (content["units"], content["units done"]) == (2, 2)
    assert "Unfinished" not in page.page(content)


def test_at_the_desk_the_ledger_is_that_of_the_finished_units_at_any_moment(tmp_path, monkeypatch):
    def measure(bench):
        path = tmp_path / "out" / "desk" / "ledger.json"
        content = json.loads(path.read_text()) if path.exists() else {"claims": [{"seeds": []}]}
        (entry,) = content["claims"]
        return {"a": len(entry["seeds"]), "b": 0.0}

    for place in ("claim", "engines", "page"):
        monkeypatch.setattr(f"trimtab.claims.{place}.everything", lambda: {"MIX-4": invented(measure)})
    words = ["reproduce", "MIX-4", "--scale", "desk", "--out", str(tmp_path / "out")]
    assert main([*words, "--work", str(tmp_path / "work")]) == 0
    held = json.loads((tmp_path / "out" / "desk" / "MIX-4.json").read_text())
    assert [held["rows"][seed]["a"] for seed in "012"] == [0, 1, 2]


def test_a_budget_counts_a_shared_network_once_and_a_unit_costs_what_its_like_took(tmp_path):
    (mix_4,) = claims.chosen(["MIX-4"])
    at = scale_of("laptop", "mix")
    nets = mix_4.nets(at)
    fresh = plan.budget([mix_4], "laptop", tmp_path)
    assert fresh.units == 5 * (len(nets) + 1)
    assert plan.budget([mix_4, mix_4], "laptop", tmp_path, 1).units == len(nets) + 2
    assert (fresh.done, fresh.spent) == (0, 0)
    assert math.isnan(fresh.left)
    for number, net in enumerate(nets):
        unit = Unit("MIX-4", "laptop", 0, "", network=net.key(at, 0))
        ledger.note_time(tmp_path, Done(unit, None, 3600.0 * (number + 1)))
    once = plan.budget([mix_4], "laptop", tmp_path)
    assert (once.done, once.spent) == (len(nets), pytest.approx(21))
    trained = replace(mix_4, measure=rows, tests=(), needs=())
    ledger.write(ledger.Result(trained, "laptop", {0: {"a": 1.0}}), tmp_path)
    ledger.note_time(tmp_path, Done(Unit("MIX-4", "laptop", 0, ""), {"a": 1.0}, 360.0))
    both = plan.budget([trained], "laptop", tmp_path)
    assert (both.done, both.left) == (len(nets) + 1, pytest.approx(4 * 21 + 4 * 0.1))


def test_at_the_desk_what_is_unknown_costs_its_part_of_the_planned_hours(tmp_path):
    planned = [claims.everything()[id] for row in WAVE1 for id in row.ids]
    budget = plan.budget(planned, "desk", tmp_path)
    assert budget.left == pytest.approx(plan.CORES * sum(row.hours for row in WAVE1), rel=0.01)
    assert str(budget).startswith(f"0 of {budget.units} units are done; 0.0 core hours spent, about 92")


def test_before_a_run_the_detectable_effect_follows_from_the_spread_of_the_first_edition(tmp_path):
    claim = invented(rows)
    spread = [0.1, 0.13, 0.2, 0.11]
    held = {"rows": {str(seed): {"a": value, "b": 0.0} for seed, value in enumerate(spread)}}
    (tmp_path / "laptop").mkdir()
    (tmp_path / "laptop" / "MIX-4.json").write_text(json.dumps(held))
    found = plan.detectable_before(claim, "desk", tmp_path)
    assert found == {str(claim.tests[0]): pytest.approx(detectable(stdev(spread), 3))}
    assert plan.detectable_before(replace(claim, tests=(Above("c", 0.0),)), "desk", tmp_path) == {}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("MIX-44",), "there is no claim 'MIX-44'; did you mean MIX-4"),
        ((), "give a claim"),
        (("MIX-4", "--scale", "huge"), "there is no scale 'huge'"),
        (("MIX-4", "--scale", "smoke", "--engine", "slurm"), "there is no engine 'slurm'"),
        (("MIX-4", "--scale", "smoke", "--seeds", "0"), "at least one seed"),
    ],
)
def test_bad_input_is_one_line(words, expected, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", *words]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert expected in lines[0]


def test_the_list_shows_claims_with_cost_and_status(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", "--list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert len(listed) == len(claims.everything())
    assert all(one["units"] > 0 and one["verdict"] == "not run yet" for one in listed)


def test_words_choose_claims():
    known = claims.everything()
    assert [one.id for one in claims.chosen(["all"])] == list(known)
    assert {one.id for one in claims.chosen(["headline"])} == {
        one.id for one in known.values() if one.headline
    }
    assert all(one.paper == "mix" for one in claims.chosen(["mix"]))
    assert replace(known["MIX-4"]).paper == "mix"


def ledger_of(known, monkeypatch, tmp_path):
    for place in ("engines", "page", "claim"):
        monkeypatch.setattr(f"trimtab.claims.{place}.everything", lambda: known)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("problem", "told"),
    [
        (Diverged("training diverged in step 3"), "training diverged in step 3"),
        (ZeroDivisionError("by nothing"), "ZeroDivisionError in test_ledger.py, line"),
    ],
)
def test_a_seed_that_breaks_is_kept_with_the_reason_and_the_others_go_on(
    tmp_path, monkeypatch, capsys, problem, told
):
    def broken(bench):
        if bench.seed == 1:
            raise problem
        return rows(bench)

    known = {"MIX-1": replace(invented(broken), id="MIX-1"), "MIX-4": invented(rows)}
    ledger_of(known, monkeypatch, tmp_path)
    assert main(["reproduce", "all", "--scale", "smoke", "--seeds", "3"]) == 1
    assert told in capsys.readouterr().err
    place = tmp_path / "results" / "smoke"
    held = json.loads((place / "ledger.json").read_text())["claims"]
    assert [one["verdict"] for one in held] == ["inconclusive", "reproduced"]
    assert (held[0]["seeds"], [*held[0]["failed"]]) == ([0, 2], ["1"])
    kept = json.loads((place / "MIX-1.json").read_text())
    assert told in kept["failed"]["1"]
    assert kept["command"] == "trimtab reproduce MIX-1 --scale smoke --seeds 3"
    assert "Seed 1 failed" in (place / "ledger.md").read_text()
    # Tried again, and mended, it is judged.
    known["MIX-1"] = replace(invented(rows), id="MIX-1")
    assert main(["reproduce", "MIX-1", "--scale", "smoke", "--seeds", "3"]) == 0
    kept = json.loads((place / "MIX-1.json").read_text())
    assert (kept["failed"], kept["verdict"]) == ({}, "reproduced")


def test_a_network_that_breaks_is_tried_once_and_ends_only_what_rests_on_it(tmp_path, monkeypatch):
    tried = []

    def trained(bench, net, place):
        tried.append(net)
        raise Diverged("training diverged in step 3")

    monkeypatch.setattr("trimtab.claims.bench.Bench._train", trained)
    net = Net("mix-adversarial-paper")
    known = {
        "MIX-1": replace(invented(rows), id="MIX-1", networks=[net]),
        "MIX-2": replace(invented(rows), id="MIX-2", networks=[Net("mix-bn-finetune-paper", start=net)]),
        "MIX-4": invented(rows),
    }
    ledger_of(known, monkeypatch, tmp_path)
    results = ledger.run(list(known.values()), "smoke", tmp_path, tmp_path / "work", seeds=1)
    assert [bool(one.failed) for one in results] == [True, True, False]
    assert len(tried) == 1


def test_input_that_is_missing_is_no_result(tmp_path, monkeypatch, capsys):
    def refuses(bench):
        raise BadInput("the data are not there")

    ledger_of({"MIX-4": invented(refuses)}, monkeypatch, tmp_path)
    assert main(["reproduce", "MIX-4", "--scale", "smoke"]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert not (tmp_path / "results" / "smoke" / "MIX-4.json").exists()


def test_runs_side_by_side_add_up_in_one_file(tmp_path, monkeypatch):
    claim = invented(rows)
    first, second = (ledger.read(claim, "smoke", tmp_path) for _ in range(2))
    first.rows[0] = rows(SimpleNamespace(seed=0))
    second.rows[1] = rows(SimpleNamespace(seed=1))
    second.failed[2] = "broke"
    ledger.write(first, tmp_path)
    ledger.write(second, tmp_path)
    assert ledger.read(claim, "smoke", tmp_path).seeds == second.seeds == [0, 1]
    first.rows[2] = rows(SimpleNamespace(seed=2))  # what failed there has worked here
    ledger.write(first, tmp_path)
    held = ledger.read(claim, "smoke", tmp_path)
    assert (held.seeds, held.failed) == ([0, 1, 2], {})


def test_a_file_that_would_not_change_is_not_written(tmp_path, monkeypatch):
    run(invented(rows), tmp_path, monkeypatch)
    (file,) = tmp_path.rglob("MIX-4.json")
    before = (file.stat().st_ino, file.stat().st_mtime_ns)  # written anew, it would be another file
    run(invented(rows), tmp_path, monkeypatch)
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == before


def test_rows_that_a_new_test_does_not_find_must_be_run_again(tmp_path, monkeypatch):
    run(invented(rows), tmp_path, monkeypatch)
    asks = replace(invented(lambda bench: {**rows(bench), "c": 0.0}), tests=(Above("a", "c"),))
    assert ledger.read(asks, "smoke", tmp_path / "out").verdict == "must be run again"
    ledger_of({"MIX-4": asks}, monkeypatch, tmp_path)
    page.publish("smoke", tmp_path / "out")
    assert "Must be run again" in (tmp_path / "out" / "smoke" / "ledger.md").read_text()
    assert run(asks, tmp_path, monkeypatch).verdict == "reproduced"


def test_numbers_of_an_older_attack_or_of_other_tables_must_be_run_again(tmp_path, monkeypatch):
    def measured(bench):
        bench.uses(Attacked(PGD(Linf("8/255"))))
        return rows(bench)

    claim = invented(measured)
    run(claim, tmp_path, monkeypatch)
    held = json.loads((tmp_path / "out" / "smoke" / "MIX-4.json").read_text())
    assert held["methods"] == {"Attacked": 1, "PGD": 1}
    assert ledger.read(claim, "smoke", tmp_path / "out").verdict == "reproduced"
    with monkeypatch.context() as patched:
        patched.setattr(PGD, "version", 2)
        assert ledger.read(claim, "smoke", tmp_path / "out").verdict == "must be run again"
    other = replace(claim, tables=lambda scale: (1, 2))
    assert ledger.read(other, "smoke", tmp_path / "out").verdict == "must be run again"


def test_runs_side_by_side_lose_none_of_each_others_times(tmp_path):
    def note(number):
        unit = Unit(f"MIX-{number % 4}", "smoke", number, str(tmp_path / "work"))
        ledger.note_time(tmp_path, Done(unit, {"a": 1.0}, 1.0))

    with ThreadPoolExecutor(8) as several:
        list(several.map(note, range(40)))
    assert sum(len(seeds) for seeds in ledger.times(tmp_path, "smoke").values()) == 40


def test_a_frozen_edition_is_neither_written_nor_judged_again(tmp_path, monkeypatch, capsys):
    run(invented(rows), tmp_path, monkeypatch)
    place = tmp_path / "out" / "smoke"
    held = json.loads((place / "MIX-4.json").read_text())
    (place / "MIX-4.json").write_text(json.dumps({**held, "verdict": "as it was printed", "settings": "old"}))
    (place / ledger.FROZEN).write_text("the first edition")
    before = {path: path.read_bytes() for path in place.iterdir()}
    with pytest.raises(BadInput, match="frozen edition"):
        run(invented(rows), tmp_path, monkeypatch, seeds=4)
    for refused in (
        lambda: page.publish("smoke", tmp_path / "out"),
        lambda: ledger.note_time(tmp_path / "out", Done(Unit("MIX-4", "smoke", 1, ""), {"a": 1.0}, 1.0)),
        lambda: ledger.write(
            ledger.Result(invented(rows), "smoke", {5: {"a": 1.0, "b": 0.0}}), tmp_path / "out"
        ),
    ):
        with pytest.raises(BadInput, match="frozen edition"):
            refused()
    ledger_of({"MIX-4": invented(rows)}, monkeypatch, tmp_path)
    assert main(["reproduce", "--list", "--scale", "smoke", "--out", "out", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["verdict"] == "as it was printed"
    assert {path: path.read_bytes() for path in place.iterdir()} == before


def test_the_first_edition_is_frozen():
    assert "First edition" in (LAPTOP / ledger.FROZEN).read_text()
    assert "First edition, frozen" in (LAPTOP / "ledger.md").read_text()


def outcomes(bench):
    """Per image: right by chance, and wrong."""
    drawn = torch.rand(60, generator=torch.Generator().manual_seed(bench.seed))
    return {"a": PerImage(drawn < 0.9), "b": PerImage(drawn < 0.2), "context": 0.5}


def test_per_image_outcomes_are_kept_and_every_verdict_follows_from_the_file(tmp_path, monkeypatch):
    claim = invented(outcomes)
    result = run(claim, tmp_path, monkeypatch)
    assert result.judgements[0].over == "seeds and images"
    held = json.loads((tmp_path / "out" / "smoke" / "MIX-4.json").read_text())
    assert set(held["outcomes"]["0"]) == {"a", "b"}
    assert held["parts"] == "1 of 1 parts"
    again = ledger.read(claim, "smoke", tmp_path / "out")
    assert again.judgements == result.judgements
    assert held["tests"][0]["interval"] == list(result.judgements[0].interval)
    assert again.cpu == held["cpu"] == ledger.cpu_name()


def test_what_changed_after_numbers_were_seen_is_said(tmp_path, monkeypatch):
    claim = invented(rows, changed="the margin was wrong")
    run(claim, tmp_path, monkeypatch)
    ledger_of({"MIX-4": claim}, monkeypatch, tmp_path)
    page.publish("smoke", tmp_path / "out")
    place = tmp_path / "out" / "smoke"
    assert "Changed after numbers were seen: the margin was wrong." in (place / "ledger.md").read_text()
    (listed,) = json.loads((place / "ledger.json").read_text())["claims"]
    assert "Out of reach" not in page.page(json.loads((place / "ledger.json").read_text()))
    unreachable = {"claims": [listed | {"out of reach": "too small"}], "units": 1, "units done": 1}
    text = page.page({"scale": "desk", "core hours": 1, **unreachable})
    assert "Out of reach at this scale (too small): `trimtab reproduce MIX-4 --scale paper`." in text
    assert listed["changed after numbers were seen"] == "the margin was wrong"
    assert set(listed["tests"][0]) >= {"effect", "interval", "detectable effect", "the paper's effect"}
    assert listed["cpu"] == ledger.cpu_name()
    assert listed["minutes"] >= 0


def test_a_published_network_is_loaded_and_not_trained_again(tmp_path, monkeypatch):
    net = Net("mix-adversarial-paper")
    claim = invented(lambda bench: {**rows(bench), "c": float(bench.network(net).training)}, networks=[net])
    monkeypatch.setattr("trimtab.claims.engines.everything", lambda: {claim.id: claim})
    desk = scale_of("desk", "mix")
    small = replace(SMOKE, name="desk")
    for place in ("engines", "result"):
        monkeypatch.setattr(f"trimtab.claims.{place}.scale_of", lambda name, paper: small)
    ledger.run([claim], "desk", tmp_path / "out", tmp_path / "work", seeds=1)
    key = net.key(small, 0)
    assert key != net.key(desk, 0)
    shelf = tmp_path / "out" / "desk" / "networks" / key
    assert {path.name for path in shelf.iterdir()} == set(ledger.PUBLISHED)
    (tmp_path / "out" / "desk" / "MIX-4.json").unlink()
    monkeypatch.setattr("trimtab.claims.bench.Bench._train", lambda *_: pytest.fail("trained again"))
    result = ledger.run([claim], "desk", tmp_path / "out", tmp_path / "elsewhere", seeds=1)[0]
    assert result.seeds == [0]


def test_published_networks_are_limited(tmp_path, monkeypatch):
    net = tmp_path / "work" / "networks" / "key"
    net.mkdir(parents=True)
    for name in ledger.PUBLISHED:
        (net / name).write_text("1234")
    unit = Unit("MIX-4", "desk", 0, str(tmp_path / "work"), network="key")
    monkeypatch.setattr(ledger, "MOST_PUBLISHED", 3)
    ledger.publish_network(unit, tmp_path)
    assert not ledger.networks(tmp_path, "desk").exists()
    monkeypatch.setattr(ledger, "MOST_PUBLISHED", 4)
    ledger.publish_network(replace(unit, seed=1), tmp_path)  # half of it is for seed 0
    assert not ledger.networks(tmp_path, "desk").exists()
    ledger.publish_network(unit, tmp_path)
    assert (ledger.networks(tmp_path, "desk") / "key" / "model.safetensors").read_text() == "1234"


def test_the_first_seeds_of_a_row_come_before_the_second_ones():
    chosen = claims.chosen(["ADA-1", "MIX-2", "ADA-8"])
    order = [(claim.id, seed) for claim, seed in ledger.in_order(chosen, "desk", 2)]
    assert order == [("ADA-1", 0), ("ADA-8", 0), ("ADA-1", 1), ("ADA-8", 1), ("MIX-2", 0), ("MIX-2", 1)]
