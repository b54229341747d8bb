"""How the cost of PGD grows: with depth and width of the network, image size, steps and images.

One quantity at a time grows from a common start: 5 steps on 64 images of 3x32x32 against a thin ResNet-8 of
width 16. All images are kept to the last iterate, so that the work is known: it is proportional to depth,
steps and images, and to the square of width and image size. The sizes of a quantity take turns; the exponent
is the slope of a straight line through log(cost) over log(size). Not a comparison with anyone: no marks.
`picture` draws the lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import altair as alt
import numpy as np
import torch

from benchmarks.race import Asked, Row, quartiles, race
from trimtab import models
from trimtab.attacks import PGD, Linf
from trimtab.report import plots

START = {"depth": 8, "width": 16, "image size": 32, "steps": 5, "images": 64}
SIZES: Mapping[str, Sequence[int]] = {
    "depth": (8, 14, 20, 32),
    "width": (8, 16, 32, 64),
    "image size": (16, 32, 64),
    "steps": (5, 10, 20, 40),
    "images": (64, 128, 256, 512),
}
SMALL_START = {"depth": 8, "width": 4, "image size": 16, "steps": 1, "images": 4}
SMALL_SIZES = {"depth": (8, 14), "width": (4, 8), "image size": (8, 16), "steps": (1, 2), "images": (4, 8)}


def rows(asked: Asked) -> Iterator[Row]:
    start, grown = (SMALL_START, SMALL_SIZES) if asked.quick else (START, SIZES)
    for quantity, sizes in grown.items():
        times = race({str(size): attack(start | {quantity: size}) for size in sizes}, asked.turns)
        exponents = [exponent(sizes, taken) for taken in zip(*times.values(), strict=True)]
        seconds = {size: quartiles(taken) for size, taken in times.items()}
        typical = exponent(sizes, [q.median for q in seconds.values()])
        low, _, high = quartiles(exponents)
        yield Row("growth", f"exponent of cost over {quantity}", typical, (low, high), "", seconds)


def attack(of: Mapping[str, int]) -> Callable[[], object]:
    torch.manual_seed(0)
    model = models.build(f"resnet{of['depth']}", classes=10, width=of["width"]).eval()
    side, n = of["image size"], of["images"]
    x, y = torch.rand(n, 3, side, side), torch.arange(n) % 10
    pgd = PGD(Linf("8/255"), of["steps"])
    return lambda: pgd(model, x, y)


def exponent(sizes: Sequence[float], cost: Sequence[float]) -> float:
    """b of cost = a size^b, by least squares in logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(cost), 1)[0])


def picture(rows: Sequence[Row], folder: Path) -> list[Path]:
    """growth.svg and growth.png: relative cost over relative size, one line for each quantity."""
    points = []
    for row in rows:
        sizes, first = list(row.seconds), next(iter(row.seconds.values())).median
        name = f"{row.what.rpartition('over ')[2]} (exponent {row.ratio:.2f})"
        for size in sizes:
            grown = {"size": int(size) / int(sizes[0]), "cost": row.seconds[size].median / first}
            points.append({"series": name, **grown})
    names = list(dict.fromkeys(point["series"] for point in points))
    title = "Cost of PGD as one quantity grows"
    log = alt.Scale(type="log", nice=False)
    identity = plots._identity(names)
    base = alt.Chart(alt.Data(values=points), title=title, width=plots.WIDTH, height=plots.HEIGHT).encode(
        x=alt.X("size:Q", title="size, relative to the smallest (log scale)", scale=log),
        y=alt.Y("cost:Q", title="time, relative to the smallest (log scale)", scale=log),
    )
    dots = base.mark_point(filled=True, size=60, opacity=1).encode(**identity)
    chart = base.mark_line(strokeWidth=2).encode(color=identity["color"]) + dots
    made = [folder / "growth.svg", folder / "growth.png"]
    for path in made:
        plots.save(chart, path)
    return made
