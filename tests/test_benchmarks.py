"""The benchmarks run, they compare medians, and what they write says what it is. Nothing is timed.

Also tests cli.bench.
"""

import json
import math
import os
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path

import pytest
import torch

from published_files import FOLDER
from trimtab.cli import bench, main

ROOT = Path(__file__).parents[1]
SECTIONS = (
    "norm", "attacks", "certify", "adapt", "statistics", "lens", "corruptions", "loader", "growth",
    "races", "train",
)  # fmt: skip
NET = "net:resnet8,width=4,classes=10"


@pytest.fixture(autouse=True)
def from_elsewhere(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.chdir(tmp_path)


def row(ratio, wanted):
    from benchmarks.race import Row

    return Row("section", "what", ratio, (ratio, ratio), wanted)


@pytest.mark.parametrize("section", SECTIONS)
def test_every_section_yields_rows(section, monkeypatch):
    import benchmarks
    from benchmarks import races

    if section == "races" and not (FOLDER / "imagenet-sample").is_dir():
        pytest.skip(f"{FOLDER} holds no published networks")
    monkeypatch.setattr(races, "NETWORKS", {"resnet20": (2, 1)})
    asked = benchmarks.Asked(threads=1, quick=True, standard=NET, robust=NET, published=FOLDER)
    before = torch.get_num_threads()
    found = list(benchmarks.run([section], asked))
    assert found
    assert all(isinstance(one, benchmarks.Row) and one.section == section for one in found)
    assert all(one.ratio > 0 and math.isfinite(one.ratio) for one in found if section != "growth")
    assert all(one.wanted.split()[0] in ("<=", ">=") for one in found if one.wanted)
    assert torch.get_num_threads() == before


def test_races_meet_every_peer_on_one_thread_and_on_several_and_without_networks_say_so():
    import benchmarks
    from benchmarks import races

    assert {*races.CONTESTANTS, *races.AUTO} == {*races.MAKERS}
    (skipped,) = benchmarks.run(["races"], benchmarks.Asked(quick=True))
    assert "--published" in skipped.why


def test_another_programs_load_is_measured(tmp_path, monkeypatch):
    from benchmarks import race

    lines = iter([(100, 0, 50, 800, 50, 0, 0, 0, 0, 0), (160, 0, 60, 820, 60, 0, 0, 0, 60, 0)])
    stat = tmp_path / "stat"

    def advance(_=0):
        stat.write_text("cpu  " + " ".join(map(str, next(lines))) + "\ncpu0 1 2 3\n")

    advance()
    monkeypatch.setattr(race, "STAT", stat)
    monkeypatch.setattr(race.time, "sleep", advance)
    assert race.busy() == pytest.approx(0.7)  # 60 + 10 of 100; guests are counted among the users


def test_a_loaded_machine_is_refused_unless_told_to(monkeypatch, capsys):
    import benchmarks

    monkeypatch.setattr(benchmarks, "busy", lambda: 0.4)
    assert main(["bench", "races"]) == 2
    err = capsys.readouterr().err
    assert "40%" in err
    assert "--anyway" in err
    assert main(["bench", "races", "--anyway"]) == 0
    assert "--published" in capsys.readouterr().err  # it went on


def test_the_sections_are_those_of_the_help():
    import benchmarks

    assert benchmarks.SECTIONS == SECTIONS
    assert all(name in bench.BenchCommand.__doc__ for name in SECTIONS)


def test_contestants_take_turns_after_a_warm_up_in_alternating_order():
    from benchmarks.race import race

    called = []
    times = race({name: lambda name=name: called.append(name) for name in "abc"}, rounds=2)
    assert "".join(called) == "abc" + "abc" + "cba"
    assert {name: len(taken) for name, taken in times.items()} == {"a": 2, "b": 2, "c": 2}


def lacking():
    import there_is_no_such_library  # noqa: F401


def dying():
    return lambda: os._exit(3)


@pytest.mark.parametrize(("maker", "told"), [(lacking, ModuleNotFoundError), (dying, BrokenProcessPool)])
def test_what_ends_a_contestant_in_a_process_of_its_own_is_raised(maker, told):
    from benchmarks.alone import alone

    with alone(maker) as run, pytest.raises(told) as why:
        run()
    assert getattr(why.value, "name", None) in (None, "there_is_no_such_library")


def counting():
    return partial(print, "printed by a contestant", flush=True)


def test_a_contestant_in_a_process_of_its_own_may_print_and_runs_many_turns():
    from benchmarks.alone import alone
    from benchmarks.race import race

    with alone(counting) as run:
        assert len(race({"alone": run}, rounds=3)["alone"]) == 3


def test_a_ratio_is_that_of_medians_and_its_spread_that_of_the_rounds():
    from benchmarks.race import compare

    found = compare(
        "s", "w", {"ours": [1.0, 2.0, 30.0], "theirs": [4.0, 4.0, 10.0]}, "ours", "theirs", "<= 1"
    )
    assert found.ratio == 0.5  # 2 / 4; the means would say 1.8
    assert found.spread == (0.375, 1.75)  # quartiles of 1/4, 1/2, 3
    assert found.seconds["ours"] == (1.5, 2.0, 16.0)
    assert found.met is True


@pytest.mark.parametrize(
    ("ratio", "wanted", "met"),
    [(1.03, "<= 1.03", True), (1.04, "<= 1.03", False), (2.0, ">= 2", True), (1.9, ">= 2", False),
     (5.0, "", None), (math.nan, "<= 1", False), (math.nan, ">= 1", False)],
)  # fmt: skip
def test_a_mark_is_met_or_missed(ratio, wanted, met):
    assert row(ratio, wanted).met is met


def test_growth_finds_the_exponent_of_a_power_law():
    from benchmarks.growth import exponent

    sizes = (1, 2, 4, 8)
    assert exponent(sizes, [3 * size**1.7 for size in sizes]) == pytest.approx(1.7)


def test_a_straight_line_has_no_bend():
    from benchmarks.train import bend

    assert bend(range(3, 9), [5 + 2 * m for m in range(3, 9)]) == pytest.approx(0, abs=1e-12)
    assert bend(range(3), [0, 1, 0]) == pytest.approx(
        2
    )  # the line is 1/3, the tip 2/3 above it, the mean 1/3


def test_what_is_written_names_its_circumstances_and_says_missed(tmp_path, capsys):
    words = [
        "bench",
        "growth",
        "lens",
        "--quick",
        "--threads",
        "1",
        "--out",
        str(tmp_path / "speed"),
        "--json",
    ]
    assert main(words) == 0
    said = json.loads(capsys.readouterr().out)
    kept = json.loads((tmp_path / "speed.json").read_text())
    assert kept == said
    assert kept["about"]["torch"] == torch.__version__
    assert kept["about"]["threads"] == 1
    assert {"machine", "commit", "command"} <= kept["about"].keys()
    page = (tmp_path / "speed.md").read_text()
    assert torch.__version__ in page
    for one in kept["rows"]:
        verdict = {None: "|  |", True: "| met |", False: "| missed |"}[one["met"]]
        (line,) = [line for line in page.splitlines() if line.startswith(f"| {one['what']} |")]
        assert verdict in line
    assert (tmp_path / "growth.svg").read_text().startswith("<svg")
    assert (tmp_path / "growth.png").read_bytes()[1:4] == b"PNG"


def test_a_missed_mark_is_a_finding_and_no_failure(monkeypatch, capsys):
    import benchmarks

    monkeypatch.setattr(benchmarks, "run", lambda *_: iter([row(9.0, "<= 1")]))
    assert main(["bench", "norm"]) == 0
    assert "missed" in capsys.readouterr().out


def test_attacks_without_networks_are_skipped_in_a_sentence(monkeypatch, capsys, tmp_path):
    from trimtab.models import grammar

    monkeypatch.setattr(grammar, "ZOO", tmp_path)
    assert main(["bench", "attacks", "--quick", "--json"]) == 0
    heard = capsys.readouterr()
    skipped = json.loads(heard.out)["skipped"]
    assert "cifar10-standard" in skipped["attacks"]
    assert "attacks is skipped" in heard.err


@pytest.mark.parametrize(
    ("words", "expected"),
    [(["dance"], "no benchmark 'dance'"), (["norm", "--rounds", "0"], "start at 1"),
     (["attacks", "--quick", "--standard", "zoo:none"], "zoo has no 'none'")],
)  # fmt: skip
def test_bad_input_is_one_line_and_exit_code_two(words, expected, capsys):
    assert main(["bench", *words]) == 2
    assert expected in capsys.readouterr().err


def test_an_installed_wheel_says_where_the_benchmarks_are(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(bench, "TREE", tmp_path)
    assert main(["bench"]) == 2
    err = capsys.readouterr().err
    assert "source tree" in err
    assert len(err.splitlines()) == 1
