"""The code in the README and in the guides runs as it is printed."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
sys.path.insert(0, str(ROOT / "tests" / "docs"))


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.S | re.M)


@pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec:FutureWarning")  # Lightning's own code
@pytest.mark.filterwarnings("ignore:The .train_dataloader. does not have many workers:UserWarning")
@pytest.mark.filterwarnings("ignore:The number of training batches:UserWarning")
@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda p: str(p.relative_to(ROOT)))
def test_python_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scope: dict[str, object] = {}
    for block in blocks(page):
        exec(compile(block, str(page), "exec"), scope)


def test_the_example_prints_what_the_readme_shows(capsys):
    from tests.docs.numbers_alike import assert_alike

    text = (ROOT / "README.md").read_text()
    example, shown = re.search(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", text, re.S | re.M).groups()
    exec(compile(example, "README.md", "exec"), {})
    assert_alike(capsys.readouterr().out, shown)


def test_links_of_the_readme_lead_somewhere():
    targets = re.findall(r"\]\(([\w./-]+)\)", (ROOT / "README.md").read_text())
    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []
