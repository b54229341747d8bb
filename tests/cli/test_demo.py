"""`trimtab demo` finds what its cards hold, says it in words, and finds it again without doing it again."""

import contextlib
import io
import json
from pathlib import Path

import pytest

from trimtab.cli import demo, main
from trimtab.evaluate import Card, PerBatchMode, Row, RunningMode
from trimtab.evaluate.records import AttackRecord, CleanRecord, ImagesRecord, NoiseRecord


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def found(folder):
    """What the quick demo prints for scripts."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        assert main(["demo", "--quick", "--json", "--out", str(folder)]) == 0
    return json.loads(said.getvalue())


def test_the_demo_measures_before_and_after_on_both_branches(found):
    assert list(found["cards"]) == sorted([demo.BEFORE, demo.MAIN, demo.ADV])
    before, after = (found["cards"][name]["rows"] for name in (demo.BEFORE, demo.ADV))
    asked = [(row["condition"], row["bn_mode"]) for row in before]
    assert asked == [(row["condition"], row["bn_mode"]) for row in after]
    kinds = {row["condition"]["kind"] for row in before}
    assert kinds == {"clean", "noise", "corruption", "attack", "statistics", "gradients"}
    assert len({row["bn_mode"]["kind"] for row in before}) == 2
    assert len(found["certified"]) == 3


def test_every_percentage_in_the_findings_is_one_that_was_measured(found):
    measured = {row["accuracy"] for card in found["cards"].values() for row in card["rows"]}
    measured |= {share for row in found["certified"].values() for _, share in row["curve"]["points"]}
    shown = {f"{share:.0%}" for share in measured}
    said = " ".join(found["findings"]).replace("%,", "% ").replace("%)", "% ").replace("%.", "% ").split()
    percentages = {word.lstrip("(") for word in said if word.endswith("%")}
    assert percentages
    assert percentages <= shown


def test_the_page_compares_the_two(found):
    page = Path(found["page"]).read_text()
    assert page.startswith("<!")
    assert demo.BEFORE in page
    assert demo.ADV in page


def test_a_second_call_reuses_everything_and_tells_people_in_words(found, folder, capsys):
    weights = folder / "mixture-quick" / "model.safetensors"
    trained, files = weights.stat().st_mtime_ns, sorted((folder / "mixture-quick").rglob("*"))
    assert main(["demo", "--quick", "--out", str(folder)]) == 0
    heard = capsys.readouterr().out
    assert "Already fine-tuned" in heard
    words = " ".join(heard.split())
    assert all(sentence in words for sentence in found["findings"])
    assert weights.stat().st_mtime_ns == trained
    assert sorted((folder / "mixture-quick").rglob("*")) == files


def card(clean, noisy, mended, attacked):
    def row(condition, mode, accuracy):
        return Row(condition, mode, ImagesRecord("d", "", 0, 1), 0, accuracy, (0.0, 1.0), 0, 1)

    running, loud = RunningMode(), NoiseRecord(0.25, clip=False)
    rows = [row(CleanRecord(), running, clean), row(loud, running, noisy)]
    rows += [row(AttackRecord("PGD", "PGD"), running, attacked), row(loud, PerBatchMode(), mended)]
    return Card("m", "d", "own", tuple(rows), ())


def test_words_follow_the_numbers():
    helped = " ".join(demo.under_stress(card(0.9, 0.3, 0.6, 0.01)))
    assert "90% of clean images" in helped
    assert "1% under attacks" in helped
    assert "images raises this: 60%" in helped
    assert "does not raise this: 20%" in " ".join(demo.under_stress(card(0.9, 0.3, 0.2, 0.01)))
    before, main_branch, adv = card(0.9, 0, 0, 0.01), card(0.88, 0, 0, 0.02), card(0.8, 0, 0, 0.5)
    brought = " ".join(demo.after_tuning({demo.BEFORE: before, demo.MAIN: main_branch, demo.ADV: adv}))
    assert "classifies 50% correctly" in brought
    assert "before: 1%" in brought
    assert "keeps 88%" in brought
