"""The site in a browser: nothing is clipped or asked of other hosts; search, sorting and schemes work."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

WAIT = 60.0
PAGES = ("index.html", "concepts/knobs.html", "results/index.html", "reference/attacks.html")

CLIPPED = """
const width = document.documentElement.clientWidth, found = [];
const scrolls = (e) => e && e !== document.body
  && (["auto", "scroll"].includes(getComputedStyle(e).overflowX) || scrolls(e.parentElement));
for (const e of document.querySelectorAll(".md-content *")) {
  const box = e.getBoundingClientRect();
  if (box.width > 0 && box.right > width + 1 && !scrolls(e))
    found.push(e.tagName + " " + e.textContent.slice(0, 60));
}
return [document.documentElement.scrollWidth <= width, found];
"""


class Quiet(SimpleHTTPRequestHandler):
    """A server of files that does not print."""

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


def opened(browser: Any, url: str, width: int = 1440, scheme: str = "light") -> None:
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    browser.get(url)


def wait(browser: Any, script: str) -> Any:
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser, WAIT).until(lambda b: b.execute_script(f"return {script}"))


@pytest.mark.parametrize("width", [1440, 390])
@pytest.mark.parametrize("page", PAGES)
def test_nothing_is_clipped(browser: Any, address: str, page: str, width: int) -> None:
    opened(browser, address + page, width)
    assert browser.execute_script(CLIPPED) == [True, []]


@pytest.mark.slow
@pytest.mark.parametrize("width", [1440, 390])
def test_nothing_is_clipped_on_any_page(browser: Any, address: str, site: Path, width: int) -> None:
    for path in sorted(site.rglob("*.html")):
        opened(browser, address + path.relative_to(site).as_posix(), width)
        assert browser.execute_script(CLIPPED) == [True, []], path.name


@pytest.mark.parametrize("page", PAGES)
def test_no_request_leaves_the_site(browser: Any, address: str, page: str) -> None:
    browser.get_log("performance")
    opened(browser, address + page)
    told = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in told if m["method"] == "Network.requestWillBeSent"]
    assert address + page in asked
    assert [url for url in asked if not url.startswith((address, "data:", "blob:"))] == []


def test_search_finds_install(browser: Any, address: str) -> None:
    opened(browser, address + "index.html")
    browser.execute_script("document.querySelector('.md-search__input').focus()")
    browser.find_element("css selector", ".md-search__input").send_keys("install")
    first = wait(browser, "document.querySelector('.md-search-result__link')?.getAttribute('href')")
    assert "start/install.html" in first


def test_a_click_on_a_heading_sorts_the_claims(browser: Any, address: str) -> None:
    opened(browser, address + "results/index.html")
    column = "[...document.querySelectorAll('.tt-sortable tbody tr')].map((row) => row.cells[3].textContent)"
    before = browser.execute_script(f"return {column}")
    heading = browser.find_elements("css selector", ".tt-sortable th")[3]
    browser.execute_script("arguments[0].click()", heading)
    ascending = browser.execute_script(f"return {column}")
    heading.send_keys("\n")
    descending = browser.execute_script(f"return {column}")
    assert before != ascending == sorted(before)
    assert descending == sorted(before, reverse=True)
    assert heading.get_attribute("aria-sort") == "descending"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_pages_follow_the_scheme_of_the_reader(browser: Any, address: str, scheme: str) -> None:
    opened(browser, address + "index.html", scheme=scheme)
    browser.execute_script("localStorage.clear()")  # what an earlier page chose
    opened(browser, address + "index.html", scheme=scheme)
    wanted = {"light": "default", "dark": "slate"}[scheme]
    assert wait(browser, "document.body.dataset.mdColorScheme") == wanted
    color = "getComputedStyle(document.querySelector('svg.tt')).getPropertyValue('--fg').trim()"
    assert browser.execute_script(f"return {color}") == {"light": "#1f2328", "dark": "#f0f6fc"}[scheme]


def test_code_has_a_copy_button(browser: Any, address: str) -> None:
    opened(browser, address + "start/install.html")
    buttons = "document.querySelectorAll('.md-code__button, .md-clipboard').length"
    assert wait(browser, buttons) >= 3
