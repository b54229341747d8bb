"""One self-contained HTML file from scorecards: what was found, how far to trust it, what would help.

Nothing is fetched: styles, scripts (Vega, from vl-convert's own copy), charts and images lie in the file, and
its content security policy forbids the browser to ask for anything else, or to run any script but these (by
their hash). Names and labels are text, whatever they contain. Sections without data are left out. Of one card
every norm state is shown; two to eight are compared, each against the one that the reader picks.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import altair as alt
import jinja2
import vl_convert
from markupsafe import Markup

from trimtab.evaluate import Card
from trimtab.norm.audit import Audit
from trimtab.placed import placed
from trimtab.report import tables, words
from trimtab.report.advice import Advice, advice
from trimtab.report.charts import charts
from trimtab.report.pictures import Gallery
from trimtab.report.plots import Chart
from trimtab.types import BadInput

MOST = 8
"""So many models can be told apart side by side."""


@dataclass(frozen=True)
class Extras:
    """What a page shows beyond its cards. Models are named as in `tables.names(cards)`."""

    audits: Mapping[str, Audit] = field(default_factory=dict)
    """Per model: its normalisation layers (`trimtab.audit`)."""
    trials: Mapping[str, Card] = field(default_factory=dict)
    """Per model: a card of several norm states, for advice where the model's own card has but one."""
    batch_sizes: Mapping[str, Mapping[int, Card]] = field(default_factory=dict)
    """Per model: cards that were measured with batches of so many images."""
    charts: Sequence[Chart] = ()
    """Further charts, as `report.plots` makes them."""
    galleries: Sequence[Gallery] = ()
    """Example images, as `report.pictures` makes them."""
    left_out: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Per model: what could not be tried, and why, in sentences; shown with its audit."""


def page(
    cards: Sequence[Card], path: str | Path, title: str | None = None, extras: Extras | None = None
) -> Path:
    """Write the page of one card, or of two to eight to compare; the path is returned."""
    text = render(cards, title, extras or Extras())
    require_folder(path)
    with placed(Path(path)) as part:
        part.write_text(text, encoding="utf-8", errors="replace")  # a name from a file system may be no text
    return Path(path)


def require_folder(path: str | Path) -> None:
    """Whether a page can be written there; to be asked before the work that it shows."""
    if not Path(path).parent.is_dir():
        raise BadInput(f"the page cannot be written to {path}: there is no such folder")


def render(cards: Sequence[Card], title: str | None, extras: Extras) -> str:
    """The page as text."""
    if not 1 <= len(cards) <= MOST:
        raise BadInput(f"a page shows 1 to {MOST} cards, found {len(cards)}")
    empty = [card.model for card in cards if not card.rows]
    if empty:
        raise BadInput(f"the card of {empty[0]} holds no measurement; evaluate the model first")
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("trimtab.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": tables.percent, "points": tables.points, "data_uri": _data_uri}
    drawn = [_figure(chart) for chart in (*charts(cards, extras.batch_sizes), *extras.charts)]
    scripts = [Markup(environment.get_template("script.js").render())]
    if drawn:
        scripts.insert(0, Markup(_vega()))
    return environment.get_template("page.html").render(
        title=title or " and ".join(dict.fromkeys(card.model for card in cards)),
        cards=cards,
        names=tables.names(cards),
        verdict=words.verdict(cards),
        tiles=[_tiles(card) for card in cards],
        unlike=tables.unlike(cards),
        references=[tables.states(card)[0] for card in cards],
        advised=[_advised(name, card, extras) for name, card in zip(tables.names(cards), cards, strict=True)],
        grids=[tables.grid(card) for card in cards],
        compared=tables.comparison(cards),
        short=tables.short,
        difference=tables.difference,
        figures=[tables.figures(card) for card in cards],
        meanings=words.FLAGS,
        checked=words.checked(cards),
        charts=drawn,
        galleries=extras.galleries,
        audits=extras.audits,
        left_out=extras.left_out,
        provenance=[_flat(card.provenance) for card in cards],
        held=[json.loads(card.json()) for card in cards],
        scripts=scripts,
        hashes=" ".join(f"'sha256-{_hash(script)}'" for script in scripts),
    )


@dataclass(frozen=True)
class Tile:
    """One of the numbers that a reader takes away."""

    label: str
    condition: str
    found: tables.Estimate | None


def _tiles(card: Card) -> list[Tile]:
    """Of the first norm state: clean, the strongest attack, the harshest disturbance."""
    state = tables.states(card)[0]
    right = words.clean(card, state)
    found = {
        "unchanged images": right and (f"clean, {state} statistics", right),
        "strongest attack": words.strongest(card, state),
        "harshest disturbance": words.harshest(card, state),
    }
    return [
        Tile(label, *((tables.brief(one[0]), one[1]) if one else ("", None))) for label, one in found.items()
    ]


def _advised(name: str, card: Card, extras: Extras) -> tuple[Advice, ...] | None:
    """None where no other norm state was tried."""
    if len(tables.states(card)) < 2:
        card = extras.trials.get(name, card)
    return advice(card, extras.batch_sizes.get(name)) if len(tables.states(card)) > 1 else None


def _figure(chart: Chart) -> dict[str, Any]:
    """A chart as the page needs it: its specification as wide as its place, and its numbers as a table."""
    spec = chart.to_dict()
    data = spec["data"]
    rows = data["values"] if "values" in data else spec["datasets"][data["name"]]
    spec.pop("config", None)  # the page's theme decides
    spec["width"] = "container"
    title = spec.pop("title", "")
    header = list(dict.fromkeys(key for row in rows for key in row))
    return {
        "spec": spec,
        "title": title if isinstance(title, str) else title.get("text", ""),
        "about": spec.get("description", ""),
        "header": header,
        "rows": [[row.get(key, "") for key in header] for row in rows],
    }


def _flat(held: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested provenance as lines of name and value; what is not known is left out."""
    lines: list[tuple[str, str]] = []
    for name, value in held.items():
        if isinstance(value, Mapping):
            lines += _flat(value, f"{prefix}{name}.")
        elif value is not None:
            lines.append((prefix + name, str(value)))
    return lines


@cache
def _vega() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script that asks nobody for anything."""
    version = ".".join(alt.SCHEMA_VERSION.split(".")[:2])
    bundle = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", version)
    if "</script" in bundle.lower() or "<!--" in bundle:
        raise RuntimeError("this Vega bundle would end its script tag early; take another vl-convert-python")
    return str(bundle)


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _data_uri(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"
