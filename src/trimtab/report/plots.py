"""Charts of what trimtab measures. Each function takes plain numbers and returns an altair chart.

Fractions are given from 0 to 1 and drawn in percent. A point is a number, or (value, low, high) where there
is an interval, which is drawn as a band or a bar. Every chart has a title, a description for screen readers,
axes with units, and colors that color-blind people can distinguish (Okabe and Ito), with a shape to each
color. It has no theme, so that a page may show it light or dark; `save` writes it as SVG, PNG or PDF, without
a browser and without a network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import altair as alt

from trimtab.types import BadInput

Point: TypeAlias = "float | tuple[float, float, float]"
"""A value, or a value with the ends of its interval."""
Series: TypeAlias = Mapping[str, Mapping[float, Point]]
"""Points over x, by what the legend calls them."""
Chart: TypeAlias = "alt.Chart | alt.LayerChart"

PALETTE = ("#0072B2", "#E69F00", "#CC79A7", "#56B4E9", "#8C6D31", "#7B4EA3", "#7F7F7F", "#D55E00")
"""Green and red are left to better and worse; the last is a series only where seven do not suffice."""
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "stroke")
WIDTH, HEIGHT = 520, 260
ACCURACY = "accuracy (%)"
_TWO_LINES = (
    "indexof(datum.label, ', ') < 0 ? datum.label : [slice(datum.label, 0, indexof(datum.label, ', ')), "
    "slice(datum.label, indexof(datum.label, ', ') + 2)]"
)
"""Long names break at their first comma: a phone would cut them, and two might then read the same."""


def iteration_curve(series: Series, title: str = "Accuracy over the attack's iterations") -> Chart:
    """Draw accuracy over iterations. A curve that still falls at its end overstates robustness."""
    about = "Lines of the accuracy after each number of iterations of one long attack."
    return _lines(series, "iterations", "iterations (log scale)", ACCURACY, title, about, log=True)


def certified_accuracy(
    series: Series, envelopes: Sequence[str] = (), title: str = "Certified accuracy over the radius"
) -> Chart:
    """Draw the fraction of images that are certified at each l2 radius; envelopes are dashed."""
    about = "Lines of the fraction of images that are certified at each l2 radius."
    axes = ("radius", "l2 radius (pixels in 0..1)", "certified accuracy (%)")
    return _lines(series, *axes, title, about, dashed=envelopes)


def rho_curve(series: Series, title: str = "Weight rho of the batch's statistics") -> Chart:
    """Draw accuracy over the weight of the batch's own statistics."""
    about = "Lines of accuracy over rho: 0 uses the running statistics, 1 those of the batch."
    return _lines(series, "rho", "rho (0: running statistics, 1: the batch's)", ACCURACY, title, about)


def batch_size_curve(series: Series, title: str = "Accuracy by batch size") -> Chart:
    """Draw accuracy over the number of images whose statistics normalize."""
    about = "Lines of accuracy over the number of images whose statistics normalize."
    return _lines(series, "batch", "images in a batch (log scale)", ACCURACY, title, about, log=True)


def tolerance_curve(series: Series, title: str = "Tolerance to shifted statistics") -> Chart:
    """Draw accuracy over the relative size of a shift of every layer's mean or std."""
    about = "Lines of accuracy over the relative size of a shift of the normalization statistics."
    return _lines(series, "shift", "relative shift of the statistics", ACCURACY, title, about)


def estimate_curve(points: Mapping[float, Point], title: str = "Estimated accuracy of the stream") -> Chart:
    """Draw a monitor's estimate of the accuracy over the images of its stream."""
    about = "A line of the estimated accuracy over the number of images that passed."
    return _lines({"estimate": points}, "images", "images", ACCURACY, title, about)


def evidence_curve(points: Mapping[int, float], alarm: float, title: str = "Evidence of drift") -> Chart:
    """Draw a monitor's evidence over the images of its stream, and where it raises the alarm."""
    rows = [{"images": at, "evidence": float(f"{value:.4g}")} for at, value in sorted(points.items())]
    about = f"A line of the evidence over the number of images that passed; the alarm is at {alarm:g}."
    base = _base(rows, title, about).encode(
        x=alt.X("images:Q", title="images"),
        y=alt.Y("evidence:Q", title="evidence (log scale)", scale=alt.Scale(type="log")),
        tooltip=["images:Q", "evidence:Q"],
    )
    line = base.mark_line(strokeWidth=2, color=PALETTE[0])
    level = alt.Chart(alt.Data(values=[{"alarm": alarm}])).mark_rule(strokeDash=[5, 4], color=PALETTE[1])
    shared = {name: getattr(base, name) for name in ("title", "description", "width", "height")}
    layers = [_without_shared(line), level.encode(y="alarm:Q")]
    return alt.LayerChart(layer=layers, data=base.data, **shared)


def usefulness_against_ligs(
    runs: Mapping[str, Sequence[tuple[float, float]]],
    title: str = "Usefulness against LIGS (points grow with the epochs)",
) -> Chart:
    """Draw each training run in the plane of (LIGS, accuracy), one point per epoch."""
    rows = [
        {"series": name, "epoch": epoch, "LIGS": round(ligs, 4), "value": _percent(accuracy)}
        for name, path in runs.items()
        for epoch, (ligs, accuracy) in enumerate(path, start=1)
    ]
    about = (
        "Paths of training runs: clean accuracy against the local input gradient similarity, epoch by epoch."
    )
    base = _base(rows, title, about).encode(
        x=alt.X("LIGS:Q", title="LIGS (cosine, 1: gradients agree)", scale=alt.Scale(zero=False)),
        y=alt.Y("value:Q", title="clean accuracy (%)", scale=alt.Scale(zero=False)),
        order="epoch:Q",
        tooltip=["series:N", "epoch:Q", "LIGS:Q", alt.Tooltip("value:Q", title="accuracy (%)")],
        **_identity(list(runs)),
    )
    size = alt.Size("epoch:Q", scale=alt.Scale(range=[15, 150]), legend=None)
    return _layered(base.mark_line(strokeWidth=1.5), base.mark_point(filled=True).encode(size=size))


def landscape_walk(
    walks: Mapping[str, Mapping[float, float]], title: str = "Training loss along one gradient step"
) -> Chart:
    """Draw the loss after a step of length eta along the negative gradient."""
    rows = [
        {"series": name, "eta": eta, "loss": float(f"{loss:.4g}")}
        for name, walk in walks.items()
        for eta, loss in sorted(walk.items())
    ]
    about = "Lines of the training loss over the length of one step along the negative gradient."
    base = _base(rows, title, about).encode(
        x=alt.X("eta:Q", title="length of the step, in gradients (eta)"),
        y=alt.Y("loss:Q", title="cross-entropy (nats)", scale=alt.Scale(zero=False)),
        tooltip=["series:N", "eta:Q", "loss:Q"],
        **_identity(list(walks)),
    )
    return _layered(base.mark_line(strokeWidth=2), base.mark_point(filled=True, size=60))


def branch_statistics(
    branches: Mapping[str, Sequence[float]], statistic: str = "running mean", layer: str = ""
) -> Chart:
    """Draw one statistic of every channel, one color per branch."""
    rows = [
        {"series": name, "channel": channel, "value": float(f"{value:.4g}")}
        for name, values in branches.items()
        for channel, value in enumerate(values)
    ]
    place = f" of {layer}" if layer else ""
    title = f"{statistic[:1].upper()}{statistic[1:]}{place}, branch by branch"
    about = f"Points of the {statistic} of each channel{place}, one color per branch."
    base = _base(rows, title, about).encode(
        x=alt.X("channel:O", title="channel", axis=alt.Axis(labelOverlap=True, labelAngle=0)),
        y=alt.Y("value:Q", title=statistic),
        tooltip=["series:N", "channel:O", alt.Tooltip("value:Q", title=statistic)],
        **_identity(list(branches)),
    )
    return _layered(base.mark_point(filled=True, size=50))


def corruption_map(
    accuracies: Mapping[str, Mapping[int, float]], title: str = "Accuracy under corruption"
) -> Chart:
    """Draw a heat map: corruptions down, severity across; darker is worse."""
    rows = [
        {"corruption": name.replace("_", " "), "severity": severity, "value": _percent(value)}
        for name, by_severity in accuracies.items()
        for severity, value in sorted(by_severity.items())
    ]
    about = "A map of the accuracy under each corruption and severity; darker cells are worse."
    base = _base(rows, title, about, height=26 * len(accuracies) + 10).encode(
        x=alt.X("severity:O", title="severity", axis=alt.Axis(labelAngle=0)),
        y=alt.Y("corruption:N", title=None, sort=None),
        tooltip=["corruption:N", "severity:O", alt.Tooltip("value:Q", title=ACCURACY)],
    )
    scale = alt.Scale(scheme="viridis", domain=[0, 100])
    legend = alt.Legend(orient="bottom", titleOrient="left", gradientLength=120, tickCount=3)
    cells = base.mark_rect().encode(color=alt.Color("value:Q", title=ACCURACY, scale=scale, legend=legend))
    ink = alt.condition("datum.value > 55", alt.value("black"), alt.value("white"))
    text = base.mark_text(fontSize=11).encode(text=alt.Text("value:Q", format=".0f"), color=ink)
    return _layered(cells, text, legend=False)


def overview(groups: Mapping[str, Mapping[str, Point]], title: str = "All conditions at a glance") -> Chart:
    """Draw every condition's accuracy with its interval, one point per BN mode or model."""
    rows = [
        {"series": name, "condition": condition, **_columns(point)}
        for name, points in groups.items()
        for condition, point in points.items()
    ]
    conditions = len({row["condition"] for row in rows})
    about = "Points of accuracy with 95 % intervals, one line per condition, one color per legend entry."
    base = _base(rows, title, about, height=max(120, conditions * (32 + 4 * len(groups)))).encode(
        y=alt.Y("condition:N", title=None, sort=None, axis=alt.Axis(grid=True, labelExpr=_TWO_LINES)),
        yOffset=alt.YOffset("series:N", sort=list(groups)),
        tooltip=_tooltip("condition:N"),
    )
    scale = alt.Scale(domain=[0, 100])
    identity = _identity(list(groups))
    bars = base.mark_rule(strokeWidth=1.5).encode(
        x=alt.X("low:Q", title=ACCURACY, scale=scale),
        x2="high:Q",
        color=identity["color"],
    )
    dots = base.mark_point(filled=True, size=55, opacity=1).encode(
        x=alt.X("value:Q", title=ACCURACY, scale=scale), **identity
    )
    return _layered(bars, dots)


def save(chart: Chart, path: str | Path) -> None:
    """Write a chart as .svg, .png, .pdf, .html or .json."""
    kinds = ("svg", "png", "pdf", "html", "json")
    if Path(path).suffix.removeprefix(".") not in kinds:
        raise BadInput(f"{path} has no extension that charts are written to; take one of {', '.join(kinds)}")
    chart.save(str(path), scale_factor=2)


def _lines(
    series: Series,
    x: str,
    x_title: str,
    y_title: str,
    title: str,
    about: str,
    log: bool = False,
    dashed: Sequence[str] = (),
) -> Chart:
    if not any(series.values()):
        raise BadInput("there is nothing to draw: no series has a point")
    rows = [
        {"series": name, x: at, **_columns(point)}
        for name, points in series.items()
        for at, point in sorted(points.items())
    ]
    ticks = (
        alt.Axis(values=sorted({at for points in series.values() for at in points})) if log else alt.Axis()
    )
    scale = alt.Scale(type="log" if log else "linear", nice=False)
    base = _base(rows, title, about).encode(
        x=alt.X(f"{x}:Q", title=x_title, scale=scale, axis=ticks), tooltip=_tooltip(f"{x}:Q")
    )
    y = alt.Y("value:Q", title=y_title, scale=alt.Scale(domainMin=0))
    identity = _identity(list(series))
    line = base.mark_line(strokeWidth=2).encode(y=y, color=identity["color"])
    if dashed:
        among = alt.FieldOneOfPredicate(field="series", oneOf=list(dashed))
        line = line.encode(strokeDash=alt.condition(among, alt.value([5, 4]), alt.value([1, 0])))
    dots = base.mark_point(filled=True, size=60, opacity=1).encode(y=y, **identity)
    if not any("low" in row for row in rows):
        return _layered(line, dots)
    ends = alt.Y("low:Q", title=y_title, scale=alt.Scale(domainMin=0))
    band = base.mark_area(opacity=0.15).encode(y=ends, y2="high:Q", color=identity["color"])
    return _layered(line, dots, band)


def _base(rows: list[dict[str, Any]], title: str, about: str, height: int = HEIGHT) -> alt.Chart:
    data = alt.Data(values=rows)
    return alt.Chart(data, title=title, description=f"{title}. {about}", width=WIDTH, height=height)


def _layered(*charts: alt.Chart, legend: bool = True) -> Chart:
    """The charts on top of each other; a click in the legend highlights one series."""
    first = charts[0]
    shared = {name: getattr(first, name) for name in ("title", "description", "width", "height")}
    layers = [_without_shared(chart) for chart in charts]
    if legend:
        chosen = alt.selection_point(fields=["series"], bind="legend")
        faint = alt.condition(chosen, alt.value(1.0), alt.value(0.12))
        layers = [layer if layer.mark.type == "area" else layer.encode(opacity=faint) for layer in layers]
        layers[0] = layers[0].add_params(chosen)
    return alt.LayerChart(layer=layers, data=first.data, **shared)


def _without_shared(chart: alt.Chart) -> alt.Chart:
    """The chart without what its layers share: data, title and size."""
    copied = chart.copy()
    for name in ("data", "title", "description", "width", "height"):
        setattr(copied, name, alt.Undefined)
    return copied


def _identity(series: list[str]) -> dict[str, Any]:
    """Color and shape by series, in one legend; none for a single series."""
    if len(series) > len(PALETTE):
        raise BadInput(
            f"a chart distinguishes {len(PALETTE)} series, found {len(series)}; draw fewer at once"
        )
    count = len(series)
    legend = alt.Legend(title=None, orient="bottom", columns=2, labelLimit=280) if count > 1 else None
    color = alt.Scale(domain=series, range=list(PALETTE[:count]))
    shape = alt.Scale(domain=series, range=list(SHAPES[:count]))
    return {
        "color": alt.Color("series:N", scale=color, legend=legend),
        "shape": alt.Shape("series:N", scale=shape, legend=legend),
    }


def _tooltip(*fields: str) -> list[Any]:
    ends = [alt.Tooltip("low:Q", title="at least (%)"), alt.Tooltip("high:Q", title="at most (%)")]
    return ["series:N", *fields, alt.Tooltip("value:Q", title=ACCURACY), *ends]


def _columns(point: Point) -> dict[str, float]:
    if isinstance(point, tuple):
        return dict(zip(("value", "low", "high"), map(_percent, point), strict=True))
    return {"value": _percent(point)}


def _percent(fraction: float) -> float:
    return round(100 * fraction, 2)
