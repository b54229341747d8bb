"""The cost model of docs/howto/scaling.md counts what objectives declare; its table follows its formula."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "howto" / "scaling.md"


@pytest.fixture
def cost(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks import cost

    return cost


@pytest.mark.parametrize(
    ("name", "to_the_image"),
    [("Standard", 0), ("Adversarial, PGD-7", 7), ("Mixture, PGD-7", 7), ("APART, N = M", 0), ("SAM", 0),
     ("LIGS regularizer", 0)],
)  # fmt: skip
def test_the_count_is_that_of_the_declared_passes(cost, name, to_the_image):
    objective, counted = cost.OBJECTIVES[name]
    forward, backward = objective.passes(64)
    assert counted == pytest.approx((forward + 2 * (backward - to_the_image) + to_the_image) / 3)


def test_the_measurement_yields_a_ratio_per_round_and_objective(cost):
    ratios = cost.measured(batch=8, rounds=1)
    assert ratios.keys() == cost.OBJECTIVES.keys()
    assert ratios["Standard"] == [1.0]
    assert all(len(found) == 1 and found[0] > 0 for found in ratios.values())


def test_the_printed_table_is_what_the_printed_code_prints(capsys):
    page = PAGE.read_text()
    (block,) = re.findall(r"^```python\n(.*?)^```", page, re.S | re.M)
    exec(compile(block, str(PAGE), "exec"), {})
    assert capsys.readouterr().out in page
