"""What all tests share. torchvision lacks its compiled operators here; it imports if they are declared."""

import inspect
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

# Tests run side by side; threads that wait for each other would only slow them. `other_cpus` asks for two.
torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))

# The console takes its width once, when it is first imported: the same one, whichever test imports it.
os.environ["COLUMNS"] = "160"

_operators = torch.library.Library("torchvision", "DEF")
for _name in ("nms", "qnms"):
    if not hasattr(torch.ops.torchvision, _name):
        _operators.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def _skip_bfloat16_where_it_kills(items: list[pytest.Item]) -> None:
    """Skip what uses bfloat16 where it would end the process, as `trimtab doctor` reports."""
    narrow = [item for item in items if isinstance(item, pytest.Function) and _mentions_bfloat16(item)]
    if not narrow:
        return
    from trimtab._bfloat16 import probe

    result = probe()
    if not result.works:
        for item in narrow:
            item.add_marker(pytest.mark.skip(reason=str(result)))


def _mentions_bfloat16(item: pytest.Function) -> bool:
    """Whether a test, its parameters, or a helper of its file that it names, mention bfloat16."""
    helpers = [vars(item.module).get(name) for name in item.function.__code__.co_names]
    of_file = [h for h in helpers if getattr(h, "__module__", None) == item.module.__name__]
    with suppress(OSError, TypeError):
        texts = [item.name, *map(inspect.getsource, [item.function, *of_file])]
        return any("bfloat16" in text or "bf16" in text for text in texts)
    return False


LEFT_OUT = pytest.StashKey[list[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the tests that are marked slow as well")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    slow = [] if config.getoption("--slow") else [item for item in items if item.get_closest_marker("slow")]
    items[:] = [item for item in items if item not in slow]
    config.hook.pytest_deselected(items=slow)
    config.stash[LEFT_OUT] = [item.nodeid for item in slow]
    if hasattr(config, "workeroutput"):
        config.workeroutput["left_out"] = config.stash[LEFT_OUT]
    _skip_bfloat16_where_it_kills(items)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """A worker of xdist has ended: only it knows what it left out."""
    node.config.stash[LEFT_OUT] = getattr(node, "workeroutput", {}).get("left_out", [])


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    names = config.stash.get(LEFT_OUT, [])
    terminalreporter.write_line(
        f"slow tests left out: {len(names)}; --slow runs them" if names else "no slow test left out"
    )
    for name in names:
        terminalreporter.write_line(f"  {name}")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Chromium without a window, with an empty profile; if it is absent, its tests are skipped.

    One per file: a page that stays open would compute next to all later tests.
    """
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    driver = shutil.which("chromedriver")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not (driver and chromium):
        pytest.skip("chromedriver and Chromium are not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    profile: Path = tmp_path_factory.mktemp("profile")
    for flag in ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
                 "--no-first-run", "--disable-dev-shm-usage", f"--user-data-dir={profile}"):  # fmt: skip
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(executable_path=driver)
    with webdriver.Chrome(options=options, service=service) as opened:
        opened.set_page_load_timeout(60)
        yield opened
