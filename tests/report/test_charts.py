"""A card gets a chart for everything that it measured often enough, and no other."""

from collections.abc import Sequence
from dataclasses import replace

from report_cards import card, row

from trimtab.evaluate import Card, Row
from trimtab.report.charts import charts


def titles(cards: Sequence[Card]) -> list[str]:
    return [str(chart.to_dict()["title"]) for chart in charts(cards, {})]


def of(*rows: Row) -> Card:
    return replace(card(), rows=rows)


def test_a_card_of_single_numbers_has_the_overview_alone() -> None:
    assert titles([of(row("clean", "clean", "running", 900))]) == ["All conditions at a glance"]


def test_an_iteration_curve_has_a_line_per_norm_state() -> None:
    marks = {"after 10": 0.3, "after 20": 0.2}
    rows = [
        row("attack", "PGD, step 1/255", state, 200, figures=marks) for state in ("running", "branch adv")
    ]
    _, curve = charts([of(*rows)], {})
    drawn = curve.to_dict()
    (data,) = drawn["datasets"].values() if "datasets" in drawn else [drawn["data"]["values"]]
    assert {point["series"] for point in data} == {"running", "branch adv"}
    assert [point["iterations"] for point in data] == [10, 20, 10, 20]


def test_certified_shares_and_several_rho_are_drawn() -> None:
    certified = row("certified", "sigma 0.5", "running", 500, figures={"radius 0": 0.5, "radius 0.5": 0.2})
    adapted = [row("noise", "noise", f"adapted per batch (rho {rho})", 500) for rho in (0.5, 1)]
    found = titles([of(certified, *adapted)])
    assert "Certified accuracy over the radius" in found
    assert any(title.startswith("How much of the batch's statistics") for title in found)


def test_extra_corruptions_do_not_move_the_mean_of_disturbed_images() -> None:
    rows = [
        row("corruption", f"{name}, severity 3", f"adapted per batch (rho {rho})", correct)
        for name, correct in (("fog", 500), ("spatter", 0))
        for rho in (0.5, 1)
    ]
    (curve,) = (one.to_dict() for one in charts([of(*rows)], {}) if "How much of the" in str(one.to_dict()))
    points = next(iter(curve["datasets"].values())) if "datasets" in curve else curve["data"]["values"]
    assert {point["value"] for point in points} == {50.0}


def test_corruptions_of_several_models_are_drawn_model_by_model() -> None:
    found = titles([card("a"), card("b")])
    assert [title for title in found if "corruption" in title] == [
        "Accuracy under corruption: a",
        "Accuracy under corruption: b",
    ]


def test_batch_sizes_are_drawn_for_each_norm_state() -> None:
    sizes = {size: of(row("noise", "noise", "running", 500)) for size in (4, 64)}
    *_, last = charts([card()], {"net": sizes})
    assert "batch by batch: net" in str(last.to_dict()["title"])
