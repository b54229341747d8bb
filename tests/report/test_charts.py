"""A card gets a chart for everything that it measured often enough, and no other."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.report.report_cards import CLEAN, NOISE, PGD, RUNNING, card, corruption, row

from trimtab.evaluate import BranchMode, Card, PerBatchMode, Row
from trimtab.evaluate.records import CertificateRecord, Curve
from trimtab.report.charts import charts


def titles(cards: Sequence[Card]) -> list[str]:
    return [str(chart.to_dict()["title"]) for chart in charts(cards, {})]


def of(*rows: Row) -> Card:
    return replace(card(), rows=rows)


def test_a_card_of_single_numbers_has_the_overview_alone() -> None:
    assert titles([of(row(CLEAN, RUNNING, 900))]) == ["All conditions at a glance"]


def test_an_iteration_curve_has_a_line_per_norm_state() -> None:
    marks = Curve("iterations", ((10, 0.3), (20, 0.2)))
    rows = [row(PGD, mode, 200, curve=marks) for mode in (RUNNING, BranchMode("adv"))]
    _, curve = charts([of(*rows)], {})
    drawn = curve.to_dict()
    (data,) = drawn["datasets"].values() if "datasets" in drawn else [drawn["data"]["values"]]
    assert {point["series"] for point in data} == {"running", "branch adv"}
    assert [point["iterations"] for point in data] == [10, 20, 10, 20]


def test_certified_shares_and_several_rho_are_drawn() -> None:
    certified = row(
        CertificateRecord(0.5, 100, 1000, 0.001), RUNNING, 500, curve=Curve("radius", ((0, 0.5), (0.5, 0.2)))
    )
    adapted = [row(NOISE, PerBatchMode(rho), 500) for rho in (0.5, 1)]
    found = titles([of(certified, *adapted)])
    assert "Certified accuracy over the radius" in found
    assert any(title.startswith("Weight rho of the batch's statistics") for title in found)


def test_extra_corruptions_do_not_move_the_mean_of_disturbed_images() -> None:
    rows = [
        row(corruption(name), PerBatchMode(rho), correct)
        for name, correct in (("fog", 500), ("spatter", 0))
        for rho in (0.5, 1)
    ]
    (curve,) = (one.to_dict() for one in charts([of(*rows)], {}) if "Weight rho" in str(one.to_dict()))
    points = next(iter(curve["datasets"].values())) if "datasets" in curve else curve["data"]["values"]
    assert {point["value"] for point in points} == {50.0}


def test_corruptions_of_several_models_are_drawn_model_by_model() -> None:
    found = titles([card("a"), card("b")])
    assert [title for title in found if "corruption" in title] == [
        "Accuracy under corruption: a",
        "Accuracy under corruption: b",
    ]


def test_batch_sizes_are_drawn_for_each_norm_state() -> None:
    sizes = {size: of(row(NOISE, RUNNING, 500)) for size in (4, 64)}
    *_, last = charts([card()], {"net": sizes})
    assert "by batch size: net" in str(last.to_dict()["title"])


@pytest.mark.parametrize("rhos", [(0.25, 0.5, 1.0), (1e-05, 0.5)], ids=str)
@pytest.mark.parametrize("blend_of", ["std", "var"])
def test_every_rho_is_a_point_of_the_chart_whatever_it_blends(rhos: tuple[float, ...], blend_of: str) -> None:
    rows = [row(NOISE, PerBatchMode(rho, blend_of), 500) for rho in rhos]
    drawn = (chart.to_dict() for chart in charts([of(row(NOISE, RUNNING, 400), *rows)], {}))
    (curve,) = (chart for chart in drawn if chart["title"].startswith("Weight rho"))
    points = next(iter(curve["datasets"].values())) if "datasets" in curve else curve["data"]["values"]
    assert [point["rho"] for point in points] == [0.0, *rhos]


def test_blends_of_std_and_of_var_are_charts_of_their_own() -> None:
    rows = [row(NOISE, PerBatchMode(rho, of_), 500) for rho in (0.5, 1) for of_ in ("std", "var")]
    assert len([title for title in titles([of(*rows)]) if "rho" in title]) == 2
