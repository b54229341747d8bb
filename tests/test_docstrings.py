"""The examples in the docstrings of src/ run and print what they show."""

import doctest
import importlib
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src"
MODULES = [
    ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted(SRC.rglob("*.py"))
    if ">>> " in path.read_text()
]


@pytest.mark.parametrize("module", MODULES)
def test_examples_hold(module, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    loaded = importlib.import_module(module)
    assert "doctest: +SKIP" not in Path(str(loaded.__file__)).read_text()
    outcome = doctest.testmod(loaded)
    assert outcome.attempted > 0
    assert outcome.failed == 0
