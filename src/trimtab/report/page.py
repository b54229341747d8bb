"""One self-contained HTML file from scorecards: the results, how far to trust them, what would help.

Nothing is fetched: styles, scripts (Vega, from vl-convert's own copy), charts and images are in the file, and
its content security policy forbids the browser to request anything else, or to run any script but these (by
their hash). Names and labels are text, whatever they contain. Sections without data are left out. Of one card
every BN mode is shown; two to eight are compared, each with the one that the reader selects.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import altair as alt
import jinja2
import vl_convert
from markupsafe import Markup

from trimtab.evaluate import BranchMode, Card, unlike
from trimtab.io import atomic_write
from trimtab.norm.audit import Audit
from trimtab.report import sentences, tables
from trimtab.report.advice import Advice, advice
from trimtab.report.charts import charts
from trimtab.report.panel import Panel
from trimtab.report.pictures import Gallery
from trimtab.report.plots import PALETTE, SHAPES, Chart
from trimtab.types import BadInput, listed

MOST = 8
"""The largest number of models on one page."""


@dataclass(frozen=True)
class Extras:
    """What a page shows in addition to its cards. Models are named as in `tables.names(cards)`."""

    audits: Mapping[str, Audit] = field(default_factory=dict)
    """Per model: its normalization layers (`trimtab.audit`)."""
    trials: Mapping[str, Card] = field(default_factory=dict)
    """Per model: a card of several BN modes, for advice where the model's own card has only one."""
    batch_sizes: Mapping[str, Mapping[int, Card]] = field(default_factory=dict)
    """Per model: cards that were measured with batches of N images, by N."""
    charts: Sequence[Chart] = ()
    """Further charts, as `report.plots` makes them."""
    galleries: Sequence[Gallery] = ()
    """Example images, as `report.pictures` makes them."""
    panels: Mapping[str, Panel] = field(default_factory=dict)
    """Per model: its steering panel."""
    left_out: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Per model: what could not be tried, and why, in sentences; shown with its audit."""


def page(
    cards: Sequence[Card], path: str | Path, title: str | None = None, extras: Extras | None = None
) -> Path:
    """Write the page of one card, or of two to eight to compare, and return its path.

    Args:
        cards: the cards.
        path: where to write the HTML file; its folder must exist.
        title: the models' names if not given.
        extras: further sections, as `gather` makes them.
    """
    text = render(cards, title, extras or Extras())
    require_folder(path)
    with atomic_write(Path(path)) as part:
        part.write_text(text, encoding="utf-8", errors="replace")  # a file name need not be valid text
    return Path(path)


def require_folder(path: str | Path) -> None:
    """Refuse a path whose folder does not exist, before the work that the page shows."""
    if not Path(path).parent.is_dir():
        raise BadInput(f"the page cannot be written to {path}: there is no such folder")


def render(cards: Sequence[Card], title: str | None, extras: Extras) -> str:
    """Return the page as text."""
    if not 1 <= len(cards) <= MOST:
        raise BadInput(f"a page shows 1 to {MOST} cards, found {len(cards)}")
    empty = [card.model for card in cards if not card.rows]
    if empty:
        raise BadInput(f"the card of {empty[0]} holds no measurement; evaluate the model first")
    pages = environment()
    drawn = [figure(chart) for chart in (*charts(cards, extras.batch_sizes), *extras.charts)]
    _share_colors([each["spec"] for each in drawn])
    scripts = _scripts(pages, bool(drawn), bool(extras.panels))
    return pages.get_template("page.html").render(
        title=title or " and ".join(dict.fromkeys(card.model for card in cards)),
        cards=cards,
        names=tables.names(cards),
        verdict=sentences.verdict(cards),
        tiles=[_tiles(card) for card in cards],
        unlike=unlike(cards),
        references=[tables.bn_modes(card)[0] for card in cards],
        measured_on=[card.measured_on for card in cards],
        flags_in=sentences.flags_in,
        advised=[_advised(name, card, extras) for name, card in zip(tables.names(cards), cards, strict=True)],
        grids=[tables.grid(card) for card in cards],
        compared=tables.comparison(cards),
        short=tables.short,
        difference=tables.difference,
        figures=[tables.figures(card) for card in cards],
        meanings=sentences.FLAGS,
        checked=sentences.checked(cards),
        charts=drawn,
        branches=[
            _branches(name, card, extras) for name, card in zip(tables.names(cards), cards, strict=True)
        ],
        panels=extras.panels,
        panel_values=[asdict(panel) for panel in extras.panels.values()],
        galleries=extras.galleries,
        audits=extras.audits,
        left_out=extras.left_out,
        provenance=[_flat(card.provenance) for card in cards],
        card_values=[json.loads(card.json()) for card in cards],
        scripts=scripts,
        hashes=" ".join(f"'sha256-{content_hash(script)}'" for script in scripts),
    )


def _scripts(pages: jinja2.Environment, charts: bool, panels: bool) -> list[Markup]:
    """The scripts of a page: Vega for charts, the page's own, and that of steering panels."""
    names = ["script", "panel"] if panels else ["script"]
    scripts = [Markup(pages.get_template(f"{name}.js").render()) for name in names]
    return [Markup(vega()), *scripts] if charts else scripts


def environment() -> jinja2.Environment:
    """Return what renders the templates of pages."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("trimtab.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"percent": tables.percent, "points": tables.points, "data_uri": _data_uri}
    return made


@dataclass(frozen=True)
class Tile:
    """One of the key numbers."""

    label: str
    condition: str
    estimate: tables.Estimate | None


def _tiles(card: Card) -> list[Tile]:
    """Of the first BN mode: clean, the strongest attack, the harshest corruption."""
    mode = tables.bn_modes(card)[0]
    accuracy = sentences.clean(card, mode)
    tiles = [Tile("clean images", f"{mode} statistics" if accuracy else "", accuracy)]
    for label, worst in (
        ("strongest attack", sentences.strongest(card, mode)),
        ("harshest corruption", sentences.harshest(card, mode)),
    ):
        tiles.append(Tile(label, tables.brief(worst[0]), worst[1]) if worst else Tile(label, "", None))
    return tiles


def _advised(name: str, card: Card, extras: Extras) -> tuple[Advice, ...] | None:
    """None where no other BN mode was tried."""
    if len(tables.bn_modes(card)) < 2:
        card = extras.trials.get(name, card)
    return advice(card, extras.batch_sizes.get(name)) if len(tables.bn_modes(card)) > 1 else None


def _branches(name: str, card: Card, extras: Extras) -> str:
    """A sentence on which branch was measured, of a model that is known to have several."""
    audit = extras.audits.get(name)
    known = [branch for layer in (audit.layers if audit else ()) for branch in layer.branches]
    known += [mode.name for mode in tables.bn_modes(card) if isinstance(mode, BranchMode)]
    others = [branch for branch in dict.fromkeys(known) if branch != "main"]
    if not others:
        return ""
    return (
        f"{name} has the branches main and {listed(others)}; a BN mode that names no branch was measured on "
        "main."
    )


def figure(chart: Chart) -> dict[str, Any]:
    """Return a chart as a page needs it: a specification of responsive width, and its numbers as a table."""
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


def _share_colors(specs: Sequence[dict[str, Any]]) -> None:
    """Give a series the same color and shape in every chart of a page, as long as there are enough."""
    number: dict[str, int] = {}
    for spec in specs:
        scales = list(_scales(spec))
        series = list(dict.fromkeys(name for scale in scales for name in scale["domain"]))
        for name in series:
            number.setdefault(name, len(number))
        places = [number[name] % len(PALETTE) for name in series]
        if len(set(places)) < len(series):
            continue  # two would look the same: this chart keeps its own
        at = dict(zip(series, places, strict=True))
        for scale in scales:
            kinds = PALETTE if scale["range"][0] in PALETTE else SHAPES
            scale["range"] = [kinds[at[name]] for name in scale["domain"]]


def _scales(value: Any) -> Iterator[dict[str, Any]]:
    """All scales of a specification that assign colors or shapes to names."""
    if isinstance(value, dict):
        if "domain" in value and isinstance(value.get("range"), list):
            yield value
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _scales(item)


def _flat(nested: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested provenance as lines of name and value; what is unknown is left out."""
    lines: list[tuple[str, str]] = []
    for name, value in nested.items():
        if isinstance(value, Mapping):
            lines += _flat(value, f"{prefix}{name}.")
        elif value is not None:
            lines.append((prefix + name, str(value)))
    return lines


@cache
def vega() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script that requests nothing."""
    version = ".".join(alt.SCHEMA_VERSION.split(".")[:2])
    bundle = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", version)
    if "</script" in bundle.lower() or "<!--" in bundle:
        raise RuntimeError("this Vega bundle would end its script tag early; take another vl-convert-python")
    return str(bundle)


def content_hash(script: str) -> str:
    """Return a script's hash as a content security policy names it."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _data_uri(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"
