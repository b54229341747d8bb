"""The built site: complete, without requests to elsewhere, and found by its search."""

from __future__ import annotations

import importlib
import inspect
import json
import re
from html import unescape
from pathlib import Path

import pytest
from docs.generate import reference

import trimtab

PACKAGES = ("trimtab", *(f"trimtab.{name}" for name in reference.PACKAGES))


def section(site: Path, package: str, name: str) -> str:
    """The HTML of the reference from a name's heading to the next name of the page."""
    page = (site / "reference" / f"{package.rpartition('.')[2]}.html").read_text()
    path = reference.identifier(importlib.import_module(package), name)
    start = page.index(f'<h3 id="{path}"')
    following = re.search(rf'<h3 id="{re.escape(package)}\.[\w.]+"', page[start + 1 :])
    return page[start : start + 1 + following.start()] if following else page[start:]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_in_the_reference_with_its_parameters(site: Path, package: str) -> None:
    module = importlib.import_module(package)
    names = reference.names(module)
    assert names
    for name in names:
        thing = getattr(module, name)
        home = reference.home(module, name)
        text = unescape(re.sub(r"<[^>]+>", "", section(site, home, name)))
        if inspect.isclass(thing) or inspect.isroutine(thing):
            try:
                parameters = inspect.signature(thing).parameters
            except ValueError:
                continue
            missing = [p for p in parameters if p not in ("self", "args", "kwargs", "kwds") and p not in text]
            assert not missing, f"{home}.{name}: {missing}"


def test_names_of_the_top_level_are_listed(site: Path) -> None:
    page = (site / "reference" / "index.html").read_text().replace("<wbr>", "")
    assert all(f"trimtab.{name}" in page for name in trimtab.__all__)


def test_no_page_asks_another_host(site: Path) -> None:
    asked = re.compile(
        r'(?:<(?:script|img|iframe|source|video)[^>]*\ssrc|<link[^>]*\shref)="((?:https?:)?//[^"]+)'
    )
    for path in site.rglob("*.html"):
        outside = [url for url in asked.findall(path.read_text()) if "squidfunk" not in url]
        assert not outside, f"{path.relative_to(site)}: {outside}"
    for path in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(?:https?:)?//", path.read_text()), path.name


def test_search_finds_install(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text())
    assert any("install" in page["title"].lower() for page in index["docs"])


def test_every_command_and_every_key_is_listed(site: Path) -> None:
    page = (site / "reference" / "cli.html").read_text()
    for name in (
        "demo",
        "data",
        "audit",
        "train",
        "evaluate",
        "adapt",
        "certify",
        "report",
        "runs",
        "doctor",
    ):
        assert f"trimtab {name}" in page
    keys = (site / "reference" / "recipes.html").read_text().replace("<wbr>", "")
    assert all(
        f"<code>{key}</code>" in keys for key in ("batch_size", "running_epochs", "label_smoothing", "eps")
    )


def test_equations_are_mathml(site: Path) -> None:
    pages = [path.read_text() for path in site.glob("methods/*.html")]
    assert any("<math" in page for page in pages)
    assert not any("arithmatex" in page for page in pages)


def test_each_kind_of_objective_and_attack_has_its_heading(site: Path) -> None:
    page = (site / "reference" / "recipes.html").read_text()
    headings = re.findall(r'<h2 id="(?:objective|attack)-([\w-]+)"', page)
    assert {"standard", "mixture", "advbn", "apart", "pgd"} <= set(headings)


def test_no_command_of_latex_is_left_in_an_equation(site: Path) -> None:
    for path in site.glob("*/*.html"):
        for equation in re.findall(r"<math.*?</math>", path.read_text(), re.S):
            assert "\\" not in equation, path.name


def test_code_can_be_copied(site: Path) -> None:
    assert "content.code.copy" in (site / "index.html").read_text()
