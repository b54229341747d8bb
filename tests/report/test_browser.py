"""The page in a real browser: silent, self-contained, drawn, usable by keyboard, on a phone, in the dark."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.report.report_cards import card
from tests.report.test_page import NASTY

import trimtab
from trimtab.models import build
from trimtab.report import Extras, page, pictures

WAIT = 60.0


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    x = torch.rand(2, 1, 8, 8)
    gallery = pictures.examples(NASTY, x, 1 - x, [0, 1], [0, 1], [1, 1], [NASTY, "bag"])
    extras = Extras(audits={"net": trimtab.audit(build("resnet8", width=8))}, galleries=[gallery])
    return page([card(NASTY)], tmp_path_factory.mktemp("page") / "one.html", extras=extras)


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    worse = tuple(replace(r, accuracy=r.accuracy / 2, interval=(0.0, r.interval[1] / 2)) for r in card().rows)
    cards = [card("a"), replace(card("b"), rows=worse), card(NASTY)]
    return page(cards, tmp_path_factory.mktemp("page") / "several.html")


def opened(browser: Any, path: Path, width: int = 1200, scheme: str = "light") -> Any:
    """The page, drawn, in a window this wide, for a reader who prefers this scheme."""
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    for kind in ("browser", "performance"):
        browser.get_log(kind)  # forget what earlier pages said
    browser.get(path.as_uri())
    drawn(browser, scheme)
    return browser


def drawn(browser: Any, scheme: str) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    ready = "return document.documentElement.dataset.drawn === arguments[0]"
    WebDriverWait(browser, WAIT).until(lambda b: b.execute_script(ready, scheme))


def press(browser: Any, *keys: str) -> None:
    from selenium.webdriver import ActionChains

    ActionChains(browser).send_keys(*keys).perform()


@pytest.mark.parametrize("name", ["one", "several"])
def test_the_page_is_silent_and_asks_for_nothing(
    browser: Any, name: str, request: pytest.FixtureRequest
) -> None:
    path: Path = request.getfixturevalue(name)
    opened(browser, path)
    assert browser.get_log("browser") == []
    told = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in told if m["method"] == "Network.requestWillBeSent"]
    assert path.as_uri() in asked
    assert [url for url in asked if url != path.as_uri() and not url.startswith("data:")] == []
    fetched = browser.execute_script("return performance.getEntriesByType('resource').map(e => e.name)")
    assert [url for url in fetched if not url.startswith("data:")] == []


def test_the_browser_itself_forbids_requests_and_foreign_scripts(browser: Any, one: Path) -> None:
    opened(browser, one)
    asks = """
    const [done, blocked] = [arguments[0], []];
    document.addEventListener('securitypolicyviolation', e => blocked.push(e.effectiveDirective));
    const script = document.createElement('script');
    script.textContent = 'window.broken = 3';
    document.body.append(script);
    fetch('https://example.org/').catch(() => setTimeout(() => done(blocked), 100));"""
    assert set(browser.execute_async_script(asks)) == {"script-src-elem", "connect-src"}
    assert browser.execute_script("return window.broken") is None


def test_names_with_markup_are_shown_as_they_are(browser: Any, one: Path, several: Path) -> None:
    opened(browser, one)
    assert browser.execute_script("return document.querySelector('h1').textContent") == NASTY
    assert browser.execute_script("return document.querySelector('img').alt").startswith(NASTY)
    assert browser.execute_script("return window.broken") is None
    opened(browser, several)
    labels = "return [...document.querySelectorAll('.plot svg text')].map(t => t.textContent)"
    assert any("</script><script>" in label for label in browser.execute_script(labels))
    assert browser.execute_script("return window.broken") is None


@pytest.mark.parametrize("name", ["one", "several"])
def test_every_chart_is_drawn_and_its_numbers_lie_beside_it(
    browser: Any, name: str, request: pytest.FixtureRequest
) -> None:
    opened(browser, request.getfixturevalue(name))
    count = """return [...document.querySelectorAll('.chart')].map(c =>
        [c.querySelectorAll('.plot svg .role-mark path').length, c.querySelectorAll('tbody tr').length])"""
    charts = browser.execute_script(count)
    assert len(charts) >= 3
    assert all(marks > 0 and rows > 0 for marks, rows in charts)


def test_the_theme_follows_the_reader_and_is_changed_by_keyboard(browser: Any, one: Path) -> None:
    from selenium.webdriver import Keys

    def paper() -> str:
        return str(browser.execute_script("return getComputedStyle(document.body).backgroundColor"))

    def pressed() -> str:
        return str(browser.execute_script("return document.getElementById('theme').ariaPressed"))

    opened(browser, one, scheme="light")
    light = paper()
    assert pressed() == "false"
    for _ in range(12):
        press(browser, Keys.TAB)
        if browser.execute_script("return document.activeElement.id") == "theme":
            break
    press(browser, Keys.ENTER)
    drawn(browser, "dark")
    dark = paper()
    assert dark != light
    assert pressed() == "true"
    press(browser, Keys.SPACE)
    drawn(browser, "light")
    assert paper() == light
    opened(browser, one, scheme="dark")
    assert paper() == dark
    assert pressed() == "true"


def test_text_has_contrast_in_light_and_dark(browser: Any, one: Path) -> None:
    ratio = """
    const channel = v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    const luminance = c => { const [r, g, b] = c.match(/[\\d.]+/g).map(Number).map(channel);
                             return 0.2126 * r + 0.7152 * g + 0.0722 * b };
    const paper = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
                         if (c !== 'rgba(0, 0, 0, 0)') return c } };
    return [...document.querySelectorAll('p, th, td, dd, dt, summary, figcaption, .range')].map(e => {
        const [a, b] = [luminance(getComputedStyle(e).color), luminance(paper(e))].sort((x, y) => y - x);
        return (a + 0.05) / (b + 0.05) })"""
    for scheme in ("light", "dark"):
        ratios = opened(browser, one, scheme=scheme).execute_script(ratio)
        assert len(ratios) > 50
        assert min(ratios) >= 4.5  # WCAG 2, level AA


def test_models_are_compared_by_keyboard(browser: Any, several: Path) -> None:
    from selenium.webdriver import Keys

    opened(browser, several)

    def captions() -> list[str]:
        shown = (
            "return [...document.querySelectorAll('.compared:not([hidden]) caption')].map(c => c.textContent)"
        )
        return list(browser.execute_script(shown))

    def gaps(kind: str) -> int:
        return int(
            browser.execute_script(
                f"return document.querySelectorAll('.compared:not([hidden]) .{kind}').length"
            )
        )

    assert captions() == ["Accuracy of each model, compared with a"]
    assert gaps("down") > 0
    assert gaps("up") == 0
    browser.execute_script("document.querySelector('input[name=baseline]').focus()")
    press(browser, Keys.ARROW_DOWN)
    assert captions() == ["Accuracy of each model, compared with b"]
    assert gaps("up") > 0
    assert gaps("down") == 0
    press(browser, Keys.ARROW_DOWN)
    assert captions() == [f"Accuracy of each model, compared with {NASTY}"]


def test_details_open_by_keyboard(browser: Any, one: Path) -> None:
    from selenium.webdriver import Keys

    opened(browser, one)
    browser.execute_script("document.querySelector('.chart summary').focus()")
    press(browser, Keys.ENTER)
    assert browser.execute_script("return document.querySelector('.chart details').open")


@pytest.mark.parametrize("name", ["one", "several"])
def test_the_page_fits_a_phone(browser: Any, name: str, request: pytest.FixtureRequest) -> None:
    opened(browser, request.getfixturevalue(name), width=375)
    assert browser.execute_script("return document.scrollingElement.scrollWidth") <= 375
    wide = "return [...document.querySelectorAll('.scores')].filter(t => t.scrollWidth > 375).length"
    assert browser.execute_script(wide) == 0  # scorecards are read without scrolling sideways
    labels = "return [...document.querySelectorAll('.scores td')].map(cell => cell.dataset.label)"
    assert all(browser.execute_script(labels))
    small = "return Math.min(...[...document.querySelectorAll('.plot svg')].map(s => s.clientWidth))"
    assert browser.execute_script(small) > 250


@pytest.mark.parametrize("name", ["one", "several"])
def test_what_a_screen_reader_meets_has_a_name(
    browser: Any, name: str, request: pytest.FixtureRequest
) -> None:
    opened(browser, request.getfixturevalue(name))
    browser.execute_script("document.querySelectorAll('details').forEach(d => d.open = true)")
    tree = browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    named = (
        "image",
        "img",
        "table",
        "region",
        "navigation",
        "button",
        "radio",
        "link",
        "heading",
        "group",
        "figure",
    )
    met: dict[str, list[str]] = {}
    for node in tree:
        role = node.get("role", {}).get("value", "")
        if not node.get("ignored") and role in named:
            met.setdefault(role, []).append(node.get("name", {}).get("value", ""))
    assert {"table", "region", "navigation", "button", "heading"} <= set(met)
    for role in ("image", "img", "table", "region", "navigation", "button", "radio", "link", "heading"):
        assert all(met.get(role, ["-"])), role
    assert {"main", "banner", "contentinfo"} <= {node.get("role", {}).get("value") for node in tree}


def test_headings_go_down_one_level_at_a_time(browser: Any, one: Path, several: Path) -> None:
    for path in (one, several):
        opened(browser, path)
        levels = "return [...document.querySelectorAll('h1, h2, h3, h4')].map(h => Number(h.tagName[1]))"
        found = browser.execute_script(levels)
        assert found[0] == 1
        assert found.count(1) == 1
        assert all(later <= sooner + 1 for sooner, later in pairwise(found))
