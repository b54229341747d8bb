"""Photograph the steering panel of the demo's page.

    trimtab demo
    python docs/pictures/page.py trimtab-demo/page.html

Needs selenium, chromedriver and Chromium. Writes panel.png next to this file.
"""

from __future__ import annotations

import base64
import shutil
import sys
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.support.ui import WebDriverWait

PICTURE = Path(__file__).parent / "panel.png"
MOVED = """
const slider = document.querySelector("[data-knob=rho]");
slider.value = 3;
slider.dispatchEvent(new Event("input", {bubbles: true}));
const box = document.getElementById("panel").getBoundingClientRect();
return [box.x, box.y + scrollY, box.width, box.height];
"""


def main(page: Path) -> None:
    options = webdriver.ChromeOptions()
    for flag in ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(flag)
    service = webdriver.ChromeService(executable_path=shutil.which("chromedriver"))
    with webdriver.Chrome(options=options, service=service) as browser:
        size = {"width": 1000, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.get(page.resolve().as_uri())
        drawn = "return document.documentElement.dataset.drawn"
        WebDriverWait(browser, 60).until(lambda b: b.execute_script(drawn))
        x, y, width, height = browser.execute_script(MOVED)
        clip = {"x": x, "y": y, "width": width, "height": height, "scale": 1}
        shot = browser.execute_cdp_cmd(
            "Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip}
        )
    PICTURE.write_bytes(base64.b64decode(shot["data"]))


main(Path(sys.argv[1]))
