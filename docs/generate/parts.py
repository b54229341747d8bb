"""The generated parts of committed pages, and the charts: the same files give the same text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from docs.generate import blocks, charts, diagrams, figure, products, speed, tables
from docs.generate import claims as ledger
from docs.generate.claims import PAPERS, VERDICTS

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "pictures"


CAUTION = {
    "laptop": "Most settings (8 epochs on 5,000 to 10,000 images) are too weak to show an effect; read "
    '"not reproduced" as "not seen in this setting".'
}
"""What a reader of an edition must know."""


def caption() -> str:
    """Return the caption of the README's first figure."""
    stored = figure.read()
    wide = tables.widest([row["correct"] / stored["images"] for row in stored["rows"]], stored["images"])
    return (
        f"*`{stored['network']}` on the first {stored['images']:,} test images of CIFAR-10, batches of "
        f"{stored['batch']}; 95 % intervals are within \N{PLUS-MINUS SIGN}{wide:.1f} points. "
        "The image shown is the first that only the static network misclassifies. "
        f"`{stored['command']}`*"
    )


def evidence() -> str:
    """Return the README's table: per paper what was found, with intervals."""
    name = ledger.edition()
    claims = ledger.read(name)
    lines = [
        "| paper | claims | contrast | our effect in points [95 % interval] | the paper's effect |",
        "|---|---|---|---|---|",
    ]
    for key, (paper, page) in PAPERS.items():
        mine = [claim for claim in claims if claim.paper == key]
        counts = [
            (sum(claim.verdict == verdict for claim in mine), shown) for verdict, shown in VERDICTS.items()
        ]
        says = ", ".join(f"{count} {shown}" for count, shown in counts if count)
        for number, (id, text, plain) in enumerate(ledger.HEADLINES[key]):
            claim, test = ledger.contrast(claims, id, text)
            theirs = "" if test.paper is None else f"{100 * test.paper:+.1f}".replace("-", "\N{MINUS SIGN}")
            first = (f"[{paper}](docs/methods/{page}.md)", says) if not number else ("", "")
            row = (*first, f"{plain} ({id}, {claim.seeds} seeds)", test.shown(), theirs)
            lines.append(f"| {' | '.join(row)} |")
    total = len(claims)
    counts = {shown: sum(claim.verdict == verdict for claim in claims) for verdict, shown in VERDICTS.items()}
    says = ", ".join(f"{count} {shown}" for shown, count in counts.items() if count)
    head = (
        f"Of {total} claims: {says} ({ledger.EDITIONS[name]}; [all numbers](docs/results/{name}/ledger.md))."
    )
    return "\n".join([head, CAUTION.get(name, ""), "", *lines])


def speed_source() -> str:
    """Return the sentence under the chart of speed."""
    _, source = speed.bars()
    what = f"Times as fast as {speed.against()}; lines are quartiles over rounds"
    return f"*{what}. {source}.*"


PARTS: dict[str, Callable[[], str]] = {
    "figure-caption": caption,
    "evidence": evidence,
    "speed-source": speed_source,
    "cost": tables.cost,
    "memory": tables.memory,
    "hours": tables.hours,
    "gallery-networks": tables.gallery_networks,
    "gallery-spectra": tables.gallery_spectra,
    "gallery-advbn": tables.gallery_advbn,
    "gallery-features": tables.gallery_features,
}
"""Every generated part by its name in the markers."""

PAGES = [ROOT / "README.md", ROOT / "docs" / "gallery.md", ROOT / "docs" / "howto" / "scaling.md"]
"""Pages with generated parts."""


def files() -> dict[Path, str]:
    """Return the content of every file that is generated, wholly or in parts."""
    written = {
        PICTURES / "accuracy.svg": charts.accuracy(figure.read()),
        PICTURES / "speed.svg": charts.speed(speed.bars()[0], speed.against()),
        PICTURES / "knobs.svg": diagrams.knobs(),
        PICTURES / "method-apart.svg": diagrams.apart(),
        products.RESULTS / "statistics.md": products.page(),
    }
    for page in PAGES:
        text = page.read_text()
        for name in blocks.names(text):
            text = blocks.replaced(text, name, PARTS[name]())
        written[page] = text
    return written
