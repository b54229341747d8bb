"""What is generated and committed is what the generator writes from the committed results."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from docs.generate import blocks, charts, claims, figure, findings, pages, parts, products, speed, tables

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("path", list(parts.files()), ids=lambda path: path.name)
def test_committed_files_are_up_to_date(path: Path) -> None:
    assert path.read_text() == parts.files()[path], "run python -m docs.generate"


def test_the_readme_is_short_and_has_every_part() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) < 150
    assert set(blocks.names(text)) == {"figure-caption", "evidence", "speed-source"}


def test_every_generated_part_is_on_a_page() -> None:
    assert {name for page in parts.PAGES for name in blocks.names(page.read_text())} == set(parts.PARTS)


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NOT_MEASURED = ("95 %", "2.6 % of an\n  epoch of PGD-30 training", "81, 56 and 20 % of its multiplications")
"""The confidence level, an estimate from numbers in the same sentence, and what a paper's networks are."""


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.parent.name not in ("results", "laptop", "desk")],
    ids=lambda page: page.stem,
)  # fmt: skip
def test_percentages_of_a_page_are_generated(page: Path) -> None:
    text = re.sub(r"<!-- generated: ([\w-]+) -->.*?<!-- end: \1 -->", "", page.read_text(), flags=re.S)
    text = re.sub(r"<!-- table -->.*?<!-- end of table -->", "", text, flags=re.S)  # tests/models/test_zoo.py
    text = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)  # run, or compared with what is printed
    for known in NOT_MEASURED:
        text = text.replace(known, "")
    assert re.findall(r"[^\n]*\d ?%[^\n]*", text) == []


def test_an_interval_is_that_of_the_normal_approximation() -> None:
    assert tables.widest([0.5, 0.9], 100) == pytest.approx(9.8)  # 1.96 sqrt(0.25 / 100)


def test_a_part_is_replaced_between_its_markers_only() -> None:
    text = "a\n<!-- generated: x -->\nold\n<!-- end: x -->\nb\n"
    assert blocks.replaced(text, "x", "new") == "a\n<!-- generated: x -->\nnew\n<!-- end: x -->\nb\n"
    with pytest.raises(ValueError, match="no lines"):
        blocks.replaced(text, "y", "new")


def test_effects_are_those_of_the_result_files() -> None:
    stored = json.loads((ROOT / "docs/results/laptop/APA-1.json").read_text())
    (claim,) = (claim for claim in claims.read("laptop") if claim.id == "APA-1")
    assert [test.effect for test in claim.tests] == [test["mean"] for test in stored["tests"]]
    assert claim.tests[1].paper == pytest.approx((79.05 - 76.73) / 100)  # WRN-40-2, CIFAR-100
    assert claim.tests[1].shown() == "−9.5 [−11.2, −7.8]"


def test_every_claim_is_shown_with_its_verdict_and_in_percent() -> None:
    page = pages.claims()
    found = claims.read(claims.edition())
    assert len(found) == 53
    for claim in found:
        assert f"### {claim.id}\n" in page
        for test in claim.tests:
            assert test.shown() in page
    assert sum(charts.stacked(found).count(f'title="{n} ') * n for n in range(1, 54)) == 53


def test_findings_stand_under_the_heading_of_their_verdict() -> None:
    page = findings.page()
    for claim in claims.read(claims.edition()):
        heading = findings.HEADINGS[claim.verdict]
        section = page.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
        assert f"[{claim.id}](" in section


def test_every_sentence_finds_its_numbers_in_the_first_edition() -> None:
    for claim in claims.read("laptop"):
        if claim.id in findings.SENTENCES:
            assert "{" not in findings.sentence(claim)
            assert not findings.sentence(claim).startswith("claimed")


def test_a_newer_edition_is_shown_once_its_ledger_is_whole(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs/results/laptop", tmp_path / "laptop")
    assert claims.edition(tmp_path) == "laptop"
    (tmp_path / "desk").mkdir()
    entry = {
        "id": "APA-1", "claim": "APART helps", "verdict": "setting too weak", "parts": "", "seeds": [0],
        "figures": {}, "command": "trimtab reproduce APA-1 --scale desk",
        "tests": [{"test": "APART > standard, 2x", "verdict": "inconclusive", "effect": 0.004,
                   "interval": [-0.001, 0.009], "level": 0.95, "the paper's effect": 0.007}],
    }  # fmt: skip
    ledger = {"units": 2, "units done": 1, "claims": [entry]}
    (tmp_path / "desk" / "ledger.json").write_text(json.dumps(ledger))
    assert claims.edition(tmp_path) == "laptop"  # an unfinished edition is not shown
    (tmp_path / "desk" / "ledger.json").write_text(json.dumps({**ledger, "units done": 2}))
    assert claims.edition(tmp_path) == "desk"
    page = pages.claims(tmp_path)
    assert "+0.4 [−0.1, +0.9] | +0.7" in page
    assert "setting too weak" in page


def test_races_against_other_libraries_take_the_place_of_plain_pytorch(tmp_path: Path) -> None:
    setting = {"network": "resnet20", "threads": "2", "rule": "same rule", "peer": "torchattacks"}
    memory = {"setting": {**setting, "rule": "same rule, memory"}, "ratio": 9.0, "spread": [9.0, 9.0]}
    row = {"setting": setting, "ratio": 1.4, "spread": [1.3, 1.6]}
    about = {"command": "trimtab bench races", "machine": "a CPU", "torch": "2.13"}
    (tmp_path / "races.json").write_text(json.dumps({"about": about, "rows": [row, memory]}))
    bars, source = speed.bars(tmp_path)
    assert [(bar.group, bar.ratio, bar.low, bar.high) for bar in bars] == [
        ("ResNet-20, 32x32; 2 threads", 1.4, 1.3, 1.6)
    ]
    assert "torchattacks" in bars[0].label
    assert "a CPU" in source
    chart = charts.speed(bars, speed.against(tmp_path))
    assert "the fastest other library = 1x" in chart
    assert "1.40x" in chart


def test_the_bars_of_speed_are_the_measured_ratios(tmp_path: Path) -> None:
    shutil.copy(ROOT / "docs/results/engine-room.json", tmp_path)
    rows = json.loads((ROOT / "docs/results/engine-room.json").read_text())["rows"]
    ratios = {row["over_plain"][0] for row in rows if row["arm"] in speed.ARMS and "over_plain" in row}
    assert {bar.ratio for bar in speed.bars(tmp_path)[0]} == ratios


def test_the_first_figure_shows_the_measured_accuracies() -> None:
    stored = figure.read()
    drawn = charts.accuracy(stored)
    for corruption in figure.CORRUPTIONS:
        for statistics in ("static", "adapted"):
            shown = 100 * figure.accuracy(stored, corruption, 5, statistics)
            assert f"{statistics} {shown:.0f} %" in drawn
    assert stored["example"]["adapted"] == stored["example"]["label"] != stored["example"]["static"]


def test_faults_are_summed() -> None:
    page = pages.faults()
    assert "487 injected faults" in page
    assert "| kill | 8 | 200 | 272 | 0 | 0 | 0 |" in page


def test_text_of_a_card_is_literal_but_for_code_and_emphasis() -> None:
    text = "x <- a * x_0, `x_0` of the *test* set"
    assert pages._escaped(text) == "x &lt;- a \\* x\\_0, `x_0` of the *test* set"


def test_a_card_is_read_row_by_row() -> None:
    text = "One: a method.\n\nIdea      first\n          second\nCost      2 passes\n\nMore text."
    assert pages.card(text) == ("One: a method.", {"Idea": "first second", "Cost": "2 passes"})


def test_the_page_of_statistics_shows_the_measured_delays_and_accuracies() -> None:
    text = products.page()
    stored = {
        name: json.loads((ROOT / f"docs/results/{name}.json").read_text()) for name in ("monitor", "repair")
    }
    for row in stored["repair"]["rows"]:
        assert f"| {row['damage']} | {row['estimated on']} | {row['images']} |" in text
        assert f" {100 * row['before']:.1f} [" in text
    for kind in {row["corruption"] for row in stored["monitor"]["delays"]}:
        (line,) = re.findall(rf"^\| {kind} \| .*", text, re.M)
        delays = [row["median"] for row in stored["monitor"]["delays"] if row["corruption"] == kind]
        expected = ["none" if delay is None else f"{delay:,.0f}" for delay in delays]
        assert [cell.split()[0] for cell in line.split(" | ")[1:]] == expected
