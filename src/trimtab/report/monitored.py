"""The page of a monitored stream: evidence and estimated accuracy over the images, and what moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from trimtab.io import atomic_write
from trimtab.report import plots
from trimtab.report.page import content_hash, environment, figure, vega
from trimtab.types import BadInput


def page(rows: Sequence[Mapping[str, Any]], path: str | Path, title: str, alarm_rate: float) -> Path:
    """Write the page of a monitored stream and return its path.

    Args:
        rows: The lines of the monitor's log (`adapt.Status.to_json`), the latest last.
        path: The HTML file.
        title: What is monitored.
        alarm_rate: As the monitor's.
    """
    if not rows:
        raise BadInput("there is nothing to show: the log has no line")
    charts = [plots.evidence_curve({row["images"]: row["evidence"] for row in rows}, 1 / alarm_rate)]
    estimated = {row["images"]: row["accuracy"] for row in rows if row["accuracy"] is not None}
    if estimated:
        charts.append(plots.estimate_curve(estimated))
    pages = environment()
    scripts = [Markup(vega()), Markup(pages.get_template("script.js").render())]
    text = pages.get_template("monitored.html").render(
        title=title,
        last=rows[-1],
        alarm=1 / alarm_rate,
        charts=[figure(chart) for chart in charts],
        scripts=scripts,
        hashes=" ".join(f"'sha256-{content_hash(script)}'" for script in scripts),
    )
    with atomic_write(Path(path)) as part:
        part.write_text(text, encoding="utf-8", errors="replace")
    return Path(path)
