"""Every chart is valid, drawn offline, named, and legible to the color-blind.

Also tests report.pictures.
"""

import io
import re
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
import vl_convert
from PIL import Image

from trimtab.report import pictures, plots
from trimtab.types import BadInput

SPREAD = (0.5, 0.4, 0.6)
SERIES = {"first": {10: SPREAD, 20: 0.4, 100: 0.3}, "second": {10: 0.6, 100: 0.5}}
CHARTS: dict[str, Callable[[], plots.Chart]] = {
    "iterations": lambda: plots.iteration_curve(SERIES),
    "certified": lambda: plots.certified_accuracy(
        {"first": {0.0: 0.8, 0.5: 0.2}, "second": {0.0: 0.9, 0.5: 0.4}}, envelopes=["second"]
    ),
    "rho": lambda: plots.rho_curve({"first": {0: 0.1, 1: SPREAD}, "second": {0: 0.2}}),
    "batch": lambda: plots.batch_size_curve({"first": {8: SPREAD}, "second": {64: SPREAD}}),
    "tolerance": lambda: plots.tolerance_curve({"first": {0.0: 0.9, 0.1: 0.5}, "second": {0.0: 0.9}}),
    "ligs": lambda: plots.usefulness_against_ligs(
        {"first": [(0.9, 0.5), (0.8, 0.7)], "second": [(0.9, 0.6)]}
    ),
    "landscape": lambda: plots.landscape_walk(
        {"first": {0.0: 2.3, 0.1: 1.9}, "second": {0.0: 2.3, 0.1: 2.6}}
    ),
    "branches": lambda: plots.branch_statistics({"first": [0.1, -0.2], "second": [0.0, 0.3]}),
    "overview": lambda: plots.overview({"first": {"clean": SPREAD}, "second": {"clean": SPREAD}}),
    "corruptions": lambda: plots.corruption_map(
        {"fog": {1: 0.9, 5: 0.2}, "jpeg_compression": {1: 0.8, 5: 0.7}}
    ),
}


@pytest.mark.parametrize("name", CHARTS)
def test_a_chart_is_drawn_with_title_units_and_a_sentence_for_those_who_cannot_see_it(name: str) -> None:
    chart = CHARTS[name]().to_dict()
    svg = vl_convert.vegalite_to_svg(chart)
    assert chart["title"] in svg
    assert len(chart["description"]) > len(chart["title"]) + 20
    titles = "".join(re.findall(r">([^<]+)</text>", svg)).replace(chart["title"], "")
    assert name == "branches" or "(" in titles  # an axis or legend with its unit; log ratios have none


@pytest.mark.parametrize("name", sorted(set(CHARTS) - {"corruptions"}))
def test_two_series_have_a_legend_two_colors_and_two_shapes(name: str) -> None:
    svg = vl_convert.vegalite_to_svg(CHARTS[name]().to_dict())
    assert ">first<" in svg
    assert ">second<" in svg
    assert plots.PALETTE[0].lower() in svg.lower()
    assert plots.PALETTE[1].lower() in svg.lower()


def test_shares_are_drawn_in_percent() -> None:
    chart = plots.rho_curve({"first": {0: (0.5, 0.25, 0.75)}}).to_dict()
    (rows,) = chart["datasets"].values() if "datasets" in chart else [chart["data"]["values"]]
    assert rows == [{"series": "first", "rho": 0, "value": 50.0, "low": 25.0, "high": 75.0}]


def test_an_envelope_is_dashed_and_a_certificate_is_not() -> None:
    both = vl_convert.vegalite_to_svg(CHARTS["certified"]().to_dict())
    only = plots.certified_accuracy({"first": {0.0: 0.8, 0.5: 0.2}})
    assert 'stroke-dasharray="5,4"' in both
    assert 'stroke-dasharray="5,4"' not in vl_convert.vegalite_to_svg(only.to_dict())


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_charts_are_saved_without_a_browser(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"chart.{kind}"
    plots.save(CHARTS["rho"](), path)
    begins = {"svg": b"<svg", "png": b"\x89PNG"}[kind]
    assert path.read_bytes().startswith(begins)


def test_what_cannot_be_drawn_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="8 series"):
        plots.rho_curve({str(i): {0: 0.1} for i in range(9)})
    with pytest.raises(BadInput, match="nothing to draw"):
        plots.rho_curve({})
    with pytest.raises(BadInput, match="svg"):
        plots.save(CHARTS["rho"](), tmp_path / "chart.gif")


# Machado, Oliveira and Fernandes 2009: linear RGB as seen with protanopia and deuteranopia.
SEEN = {
    "protanopia": [
        0.152286,
        1.052583,
        -0.204868,
        0.114503,
        0.786281,
        0.099216,
        -0.003882,
        -0.048116,
        1.051998,
    ],
    "deuteranopia": [
        0.367322,
        0.860646,
        -0.227968,
        0.280085,
        0.672501,
        0.047413,
        -0.01182,
        0.04294,
        0.968881,
    ],
}


@pytest.mark.parametrize("eye", SEEN)
def test_the_first_five_colors_differ_for_the_color_blind(eye: str) -> None:
    seen = [_lab(np.array(SEEN[eye]).reshape(3, 3) @ _linear(color)) for color in plots.PALETTE[:5]]
    assert min(np.linalg.norm(a - b) for a, b in combinations(seen, 2)) > 10  # 2.3 is just noticeable


def test_colors_that_come_close_have_another_shape() -> None:
    assert len(set(plots.SHAPES)) == len(set(plots.PALETTE)) == 8


def _linear(color: str) -> np.ndarray:
    c = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def _lab(linear: np.ndarray) -> np.ndarray:
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    x, y, z = np.cbrt(to_xyz @ linear.clip(0, 1) / np.array([0.9505, 1.0, 1.089]))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def test_a_picture_keeps_its_pixels() -> None:
    image = torch.tensor([[[0.0, 1.0], [0.5, 0.2]]])
    read = np.array(Image.open(io.BytesIO(pictures.png(image, scale=3))))
    assert read.shape == (6, 6, 3)
    assert read[::3, ::3, 0].tolist() == [[0, 255], [128, 51]]


def test_a_gradient_is_gray_where_it_is_zero_and_white_or_black_at_its_largest() -> None:
    drawn = pictures.gradient(torch.tensor([[[0.0, 2.0], [-2.0, 1.0]]]))
    assert drawn.tolist() == [[[0.5, 1.0], [0.0, 0.75]]]


def test_a_grid_holds_every_image_under_its_names() -> None:
    images = torch.rand(3, 3, 8, 8)
    whole = Image.open(
        io.BytesIO(pictures.grid([images, images], ["clean", "fog"], ["a", "b", "c"], scale=2))
    )
    assert whole.width > 3 * 16
    assert whole.height > 2 * 16
    with pytest.raises(BadInput, match="name per row"):
        pictures.grid([images], ["clean", "fog"], ["a", "b", "c"])


def test_examples_show_what_the_model_said_before_and_after() -> None:
    x = torch.rand(2, 1, 8, 8)
    made = pictures.examples("PGD", x, 1 - x, [0, 1], [0, 0], [1, 1], ["boot", "bag"])
    assert [one.caption for one in made.pictures] == ["boot → bag", "boot → bag (a bag)"]
    with pytest.raises(BadInput, match="as many"):
        pictures.examples("PGD", x, x, [0], [0, 1], [1, 1], ["boot", "bag"])
