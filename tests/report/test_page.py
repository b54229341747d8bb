"""The page as a file: what it holds, what it leaves out, and that names stay text."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from tests.report.report_cards import RUNNING, card

import trimtab
from trimtab.evaluate import BranchMode, Flag
from trimtab.evaluate.records import OtherRecord
from trimtab.models import build
from trimtab.report import Extras, page, pictures
from trimtab.report.page import _share_colors
from trimtab.report.plots import PALETTE
from trimtab.types import BadInput

NASTY = """</script><script>window.broken=1</script><img src=x onerror="window.broken=2">&amp;'"{{7*7}}"""


class Seen(HTMLParser):
    """Tags with attributes, and the text between them by the innermost tag's id or name."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: dict[str, str] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        tag, attributes = self.tags[-1] if self.tags else ("", {})
        place = attributes.get("id") or tag
        self.words[place] = self.words.get(place, "") + data

    @property
    def sections(self) -> list[str | None]:
        return [attributes.get("id") for tag, attributes in self.tags if tag == "section"]


def written(path: Path) -> tuple[str, Seen]:
    text = path.read_text(encoding="utf-8")
    return text, Seen(text)


def test_the_page_is_under_five_megabytes_and_refers_to_nothing_outside(tmp_path: Path) -> None:
    noise = torch.rand(12, 3, 224, 224)  # what compresses worst
    gallery = pictures.examples("PGD", noise, 1 - noise, [0] * 12, [0] * 12, [1] * 12, ["boot", "bag"])
    cards = [card(f"net {i}") for i in range(8)]
    path = page(cards, tmp_path / "page.html", extras=Extras(galleries=[gallery]))
    _, seen = written(path)
    assert path.stat().st_size < 5e6
    links = [
        value for _, attributes in seen.tags for name, value in attributes.items() if name in ("src", "href")
    ]
    assert links
    assert all(str(link).startswith(("#", "data:")) for link in links)
    policy = next(a["content"] for _, a in seen.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert str(policy).startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in str(policy).split("style-src")[0]


def test_sections_without_data_are_left_out(tmp_path: Path) -> None:
    alone = replace(card(), rows=tuple(r for r in card().rows if r.bn_mode == RUNNING))
    _, seen = written(page([alone], tmp_path / "page.html"))
    assert seen.sections == ["verdict", "scorecard", "trust", "charts", "provenance"]


def test_all_sections_are_there_when_there_is_something_to_show(tmp_path: Path) -> None:
    x = torch.rand(2, 1, 8, 8)
    extras = Extras(
        audits={"net": trimtab.audit(build("resnet8", width=8))},
        galleries=[pictures.examples("PGD", x, x, [0, 1], [0, 1], [1, 1], ["boot", "bag"])],
    )
    text, seen = written(page([card()], tmp_path / "page.html", extras=extras))
    assert seen.sections == [
        "verdict",
        "advice",
        "scorecard",
        "trust",
        "charts",
        "examples",
        "audit",
        "provenance",
    ]
    assert "never trained" in text  # what the audit found
    assert "trimtab evaluate file:net --data sample" in text


def test_markup_in_names_stays_text(tmp_path: Path) -> None:
    plain, _ = written(page([card(), card("b")], tmp_path / "plain.html"))
    evil = replace(
        card(NASTY, command=NASTY), data=NASTY, flags=(Flag(NASTY, NASTY, NASTY, BranchMode(NASTY)),)
    )
    evil = replace(
        evil,
        rows=tuple(replace(r, condition=OtherRecord(NASTY + str(r.condition), r.kind)) for r in evil.rows),
    )
    x = torch.rand(1, 1, 8, 8)
    gallery = pictures.examples(NASTY, x, x, [0], [0], [0], [NASTY])
    extras = Extras(audits={NASTY: trimtab.audit(build("resnet8", width=8))}, galleries=[gallery])
    text, seen = written(page([evil, card("b")], tmp_path / "evil.html", extras=extras))
    assert plain.count("<script") == text.count("<script")
    assert not [a for tag, a in seen.tags if "onerror" in a or a.get("src") == "x"]
    assert seen.words["title"].startswith(NASTY)
    assert "49" not in seen.words["title"]


def test_the_page_carries_its_cards_as_data(tmp_path: Path) -> None:
    named = card(NASTY)
    text, _ = written(page([named], tmp_path / "page.html"))
    held = re.search(r'<script type="application/json" id="cards">(.*?)</script>', text, re.S)
    assert held
    assert json.loads(held[1]) == [json.loads(named.json())]


def test_checks_that_were_not_made_are_not_listed(tmp_path: Path) -> None:
    rows = tuple(r for r in card().rows if r.kind == "clean")
    text, _ = written(page([replace(card(), rows=rows, flags=())], tmp_path / "page.html"))
    listed = text.split("Checked: ")[1].split(".")[0].split(", ")
    assert "samples" in listed
    assert "black box" not in listed


def test_a_card_without_a_command_is_shown(tmp_path: Path) -> None:
    text, _ = written(page([replace(card(), provenance={})], tmp_path / "page.html"))
    assert "No command was recorded" in text


def test_a_title_of_ones_own_is_taken(tmp_path: Path) -> None:
    _, seen = written(page([card()], tmp_path / "page.html", title="A <b>bold</b> title"))
    assert seen.words["title"].startswith("A <b>bold</b> title")


@pytest.mark.parametrize("count", [0, 9])
def test_too_few_or_too_many_cards_are_refused(count: int, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=f"1 to 8 cards, found {count}"):
        page([card()] * count, tmp_path / "page.html")


def test_what_cannot_be_shown_or_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no measurement"):
        page([replace(card(), rows=())], tmp_path / "page.html")
    with pytest.raises(BadInput, match="cannot be written"):
        page([card()], tmp_path / "missing" / "page.html")
    assert not list(tmp_path.iterdir())


def test_advice_is_open_and_the_measured_branch_is_named(tmp_path: Path) -> None:
    net = trimtab.add_branch(trimtab.steer(build("resnet8", width=8)), "adv")
    extras = Extras(audits={"b": trimtab.audit(net)})
    text, _ = written(page([card("a"), card("b")], tmp_path / "page.html", extras=extras))
    assert "<details" not in text.split('<section id="advice"')[1].split("</section>")[0]
    scorecard = text.split('<section id="scorecard"')[1].split("</section>")[0]
    assert (
        "b has the branches main and adv; a BN mode that names no branch was measured on main." in scorecard
    )
    assert "a has the branches" not in scorecard


def test_a_series_has_one_color_in_every_chart_of_a_page() -> None:
    def scale(*names: str) -> dict[str, list[str]]:
        return {"domain": list(names), "range": list(PALETTE[: len(names)])}

    first, second = {"layer": [{"scale": scale("a", "b")}]}, {"layer": [{"scale": scale("c", "a")}]}
    crowded = {"scale": scale(*"defghij")}
    _share_colors([first, second, crowded])
    assert first["layer"][0]["scale"]["range"] == [PALETTE[0], PALETTE[1]]
    assert second["layer"][0]["scale"]["range"] == [PALETTE[2], PALETTE[0]]
    assert len(set(crowded["scale"]["range"])) == 7
