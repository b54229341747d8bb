"""The steering panel in a browser: arrow keys and touch move it to what was measured there."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.report.report_cards import card
from tests.report.test_browser import opened, press

import trimtab
from trimtab.data import load
from trimtab.report import Extras, page
from trimtab.report.panel import FINE, Panel, panel

STRIDES = (240, 120, 20, 4, 1)  # branch, corruption, severity, rho, shift
assert FINE.size == 11 * 20


@pytest.fixture(scope="module")
def steered(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Panel]:
    images = load("sample", "test")
    measured = panel(
        trimtab.load("zoo:sample-mixture"), images.take(torch.arange(32)), images.classes, budget=1e9
    )
    assert measured is not None
    path = tmp_path_factory.mktemp("panel") / "page.html"
    return page([card()], path, extras=Extras(panels={"net": measured})), measured


def state(browser: Any) -> tuple[list[str], str, list[str], list[float]]:
    """The positions, the counted images, the predicted classes, and where the point is."""
    read = """
    const text = (e) => e.textContent.trim();
    const all = (what) => [...document.querySelectorAll(what)];
    const point = document.querySelector('.curve circle');
    return [all('.knob output').map(text), text(document.querySelector('.interval')),
            all('.tile-image .name').map(text), ['cx', 'cy'].map((at) => Number(point.getAttribute(at)))]
    """
    return tuple(browser.execute_script(read))  # type: ignore[return-value]


def expected(measured: Panel, *position: int) -> tuple[str, list[str]]:
    """The counted images, and the classes that lead, at a position."""
    number = sum(stride * at for stride, at in zip(STRIDES, position, strict=True))
    leading = torch.tensor(list(base64.b64decode(measured.leading))).view(-1, 16, 3, 2)
    names = [measured.names[k] for k in leading[number, :, 0, 0].tolist()]
    return f"{measured.correct[number]} of {measured.n} images", names


def focus(browser: Any, knob: str) -> None:
    browser.execute_script(f"document.querySelector('[data-knob={knob}]').focus()")


def test_arrow_keys_move_every_control(browser: Any, steered: tuple[Path, Panel]) -> None:
    from selenium.webdriver import Keys

    path, measured = steered
    opened(browser, path)
    at = [0, 1, 3, 0, 0]  # branch, corruption, severity, rho, shift

    def check(*outputs: str) -> list[float]:
        shown, counted, names, point = state(browser)
        count, leading = expected(measured, *at)
        assert shown == list(outputs)
        assert counted.endswith(count)
        assert names == leading
        return point

    first = check("3 of 5", "0", "0", "main")
    focus(browser, "rho")
    press(browser, Keys.END)
    at[3] = 4
    adapted = check("3 of 5", "1", "0", "main")
    assert adapted[0] == first[0]
    assert adapted[1] < first[1]  # a higher accuracy, under fog
    focus(browser, "severity")
    press(browser, Keys.ARROW_RIGHT)
    at[2] = 4
    assert check("4 of 5", "1", "0", "main")[0] > first[0]
    focus(browser, "shift")
    press(browser, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    at[4] = 2
    check("4 of 5", "1", "0.05", "main")
    focus(browser, "branch")
    press(browser, Keys.ARROW_RIGHT)
    at[0] = 1
    check("4 of 5", "1", "0.05", "adv")
    browser.execute_script("document.querySelector('.panel input[type=radio]:checked').focus()")
    press(browser, Keys.ARROW_LEFT)
    at[1] = 0
    check("4 of 5", "1", "0.05", "adv")


def test_the_curve_is_the_measured_one(browser: Any, steered: tuple[Path, Panel]) -> None:
    path, measured = steered
    opened(browser, path)
    points = browser.execute_script("return document.querySelector('.curve .current').getAttribute('points')")
    heights = [float(point.split(",")[1]) for point in points.split()]
    fractions = [measured.correct[120 + 20 * severity] / measured.n for severity in range(6)]
    top, bottom = 26, 230  # the axis reaches from 100 % to 0 %
    wanted = [top + (bottom - top) * (1 - fraction) for fraction in fractions]
    assert heights == pytest.approx(wanted, abs=0.01)


def test_a_finger_moves_a_slider_on_a_phone(browser: Any, steered: tuple[Path, Panel]) -> None:
    path, measured = steered
    opened(browser, path, width=390)
    browser.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": True})
    try:
        place = """const e = document.querySelector('[data-knob=rho]'); e.scrollIntoView({block: 'center'});
        const box = e.getBoundingClientRect();
        return [box.left, box.top + box.height / 2, box.width, box.height]"""
        browser.execute_script("document.documentElement.style.scrollBehavior = 'auto'")
        left, y, width, height = browser.execute_script(place)
        assert height >= 24  # WCAG 2.2, target size
        for kind, x in (("touchStart", left + 12), ("touchMove", left + width / 2), ("touchEnd", None)):
            points = [] if x is None else [{"x": x, "y": y}]
            browser.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
        shown, counted, _, _ = state(browser)
        assert shown[1] == "0.5"
        assert counted.endswith(expected(measured, 0, 1, 3, 2, 0)[0])
        assert browser.execute_script("return document.scrollingElement.scrollWidth") <= 390
    finally:
        browser.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": False})


def test_the_panel_is_silent_and_its_pictures_have_names(browser: Any, steered: tuple[Path, Panel]) -> None:
    path, measured = steered
    opened(browser, path)
    assert browser.get_log("browser") == []
    fetched = browser.execute_script("return performance.getEntriesByType('resource').map(e => e.name)")
    assert [url for url in fetched if not url.startswith("data:")] == []
    named = "return [...document.querySelectorAll('.tile-image [role=img]')].map(e => e.ariaLabel)"
    labels = browser.execute_script(named)
    assert [label.split(";")[0] for label in labels] == [f"label: {label}" for label in measured.labels]
