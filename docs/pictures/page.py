"""Make the page's pictures from a real network: train it, evaluate it, write the page, photograph it.

    python docs/pictures/page.py WORK_FOLDER     (about ten minutes on one core; goes on where it was)

Needs selenium, chromedriver and Chromium. Writes page-light.png, page-dark.png and page-phone.png beside
this file, and page.html into the work folder.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from PIL import Image
from selenium import webdriver
from selenium.webdriver.support.ui import WebDriverWait

import trimtab
from trimtab import attacks, data, evaluate, report, train
from trimtab.evaluate import Clean, Corrupted, FrozenMode, Noise, PerBatchMode, RunningMode
from trimtab.evaluate.suites import SAMPLE, curve

HERE = Path(__file__).parent
RECIPE = {
    "model": "net:resnet8,width=8",
    "data": {"name": "sample", "augment": ["flip"], "validation": 500},
    "objective": "standard",
    "optimizer": {"lr": 0.2},
    "epochs": 5,
}
BUDGET = attacks.Linf("4/255")
DRAWN = "return document.documentElement.dataset.drawn"
SHOTS = {"light": (1200, 1500, "light"), "dark": (1200, 1500, "dark"), "phone": (390, 1100, "light")}


def main(work: Path) -> None:
    torch.set_num_threads(1)
    folder = work / "run"
    run = train.runs.existing(folder) if (folder / "model.safetensors").exists() else None
    run = run or train.fit(recipe=RECIPE, folder=folder)
    model = trimtab.steer(trimtab.load(f"file:{run.folder}"))
    images = data.load("sample", "test")
    suite = [
        *(Clean(), Noise(0.1), attacks.FGSM(BUDGET), attacks.PGD(BUDGET, steps=20, early_stop=True)),
        *(curve(BUDGET, (10, 20, 50, 100)), *(Corrupted(name, s) for name in SAMPLE for s in (1, 3, 5))),
    ]
    store = work / "store.sqlite"
    states = (RunningMode(), PerBatchMode(), FrozenMode())
    name = "resnet8"
    card = evaluate.run(model, images, suite, store, limit=500, bn_modes=states, keep_images=True, name=name,
                        command=f"python docs/pictures/page.py {work}")  # fmt: skip
    photograph(report.page([card], work / "page.html", extras=report.gather(model, images, card, store)))


def photograph(page: Path) -> None:
    options = webdriver.ChromeOptions()
    for flag in ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
                 "--no-first-run", "--hide-scrollbars"):  # fmt: skip
        options.add_argument(flag)
    with webdriver.Chrome(options, webdriver.ChromeService("/usr/bin/chromedriver")) as browser:
        for name, (width, height, scheme) in SHOTS.items():
            metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
            features = [{"name": "prefers-color-scheme", "value": scheme}]
            browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
            browser.get(page.resolve().as_uri())
            WebDriverWait(browser, 60).until(lambda b: b.execute_script(DRAWN))
            path = HERE / f"page-{name}.png"
            browser.save_screenshot(str(path))
            Image.open(path).convert("P", palette=Image.Palette.ADAPTIVE, colors=128).save(
                path, optimize=True
            )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
