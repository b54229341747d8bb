"""Charts: SVG files that follow the reader's light or dark scheme, and HTML that reflows on a phone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from docs.generate import figure
from docs.generate.claims import PAPERS, VERDICTS, Claim, Test
from docs.generate.speed import Bar

STYLE = """<style>
svg.tt { --fg: #1f2328; --soft: #59636e; --grid: #d1d9e0; --a: #0b7285; --b: #b35900; background: none }
@media (prefers-color-scheme: dark) {
svg.tt { --fg: #f0f6fc; --soft: #9198a1; --grid: #3d444d; --a: #3bc9db; --b: #ffa94d } }
.tt text { font: 13px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: var(--fg) }
.tt .soft { fill: var(--soft) } .tt .bold { font-weight: 600 } .tt .end { text-anchor: end }
.tt .middle { text-anchor: middle } .tt .grid { stroke: var(--grid); fill: none }
.tt .a { stroke: var(--a); fill: none; stroke-width: 2.5 }
.tt .b { stroke: var(--b); fill: none; stroke-width: 2.5 }
.tt .fa { fill: var(--a) } .tt .fb { fill: var(--b) } .tt .line { stroke: var(--fg); stroke-width: 1.3 }
</style>"""


def svg(width: int, height: int, title: str, parts: Iterable[str], crops: Sequence[str] = ()) -> str:
    """Return an SVG file.

    Args:
        width: Width in pixels.
        height: Height in pixels.
        title: What the chart shows, for readers who do not see it.
        parts: The elements.
        crops: View boxes of its parts, which a phone shows one below the other.
    """
    narrow = f' data-crops="{"|".join(crops)}"' if crops else ""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="tt" viewBox="0 0 {width} {height}" width="{width}" '
        f'role="img" aria-label="{escape(title)}"{narrow}>'
    )
    return "\n".join([head, STYLE, *parts, "</svg>"]) + "\n"


def text(x: float, y: float, words: str, kind: str = "") -> str:
    """Return an SVG text.

    Args:
        x: Position from the left.
        y: Position of the base line from the top.
        words: The text.
        kind: CSS classes.
    """
    return f'<text x="{x:g}" y="{y:g}" class="{kind}">{escape(words)}</text>'


def accuracy(stored: dict[str, Any]) -> str:
    """Return the README's first figure.

    Args:
        stored: What `figure.measure` returned.
    """
    parts: list[str] = []
    width, top, bottom = 165, 48, 238
    for number, (corruption, name) in enumerate(figure.CORRUPTIONS.items()):
        left = 60 + number * (width + 142)
        parts.append(text(left, 24, f"Accuracy under {name}", "bold"))
        for percent in (0, 25, 50, 75, 100):
            y = bottom - (bottom - top) * percent / 100
            parts.append(f'<line class="grid" x1="{left}" x2="{left + width}" y1="{y:g}" y2="{y:g}"/>')
            parts.append(text(left - 7, y + 4, f"{percent} %" if not number else f"{percent}", "soft end"))
        for severity in range(6):
            x = left + width * severity / 5
            parts.append(text(x, bottom + 20, "clean" if not severity else f"{severity}", "soft middle"))
        parts.append(text(left + width / 2, bottom + 40, "corruption severity", "soft middle"))
        for kind, statistics in (("b", "static"), ("a", "adapted")):
            values = [figure.accuracy(stored, corruption, severity, statistics) for severity in range(6)]
            points = [(left + width * s / 5, bottom - (bottom - top) * v) for s, v in enumerate(values)]
            line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            parts.append(f'<polyline class="{kind}" points="{line}"/>')
            parts += [f'<circle class="f{kind}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>' for x, y in points]
            x, y = points[-1]
            parts.append(text(x + 9, y + 5, f"{statistics} {100 * values[-1]:.0f} %", "bold"))
    example, left = stored["example"], 672
    about = f"{figure.CORRUPTIONS[example['corruption']].capitalize()}, severity {example['severity']}"
    parts += [
        text(left, 24, about, "bold"),
        f'<image x="{left}" y="40" width="150" height="150" style="image-rendering: pixelated" '
        f'href="data:image/png;base64,{example["png"]}"/>',
        text(left, 213, f"label: {example['label']}"),
        text(left, 236, f"static: {example['static']} \N{MULTIPLICATION SIGN}"),
        text(left, 259, f"adapted: {example['adapted']} \N{CHECK MARK}", "bold"),
    ]
    crops = ("0 0 336 290", "336 0 324 290", "660 30 170 245")
    return svg(830, 290, "Accuracy under Gaussian noise and fog, static and adapted statistics", parts, crops)


def speed(bars: Sequence[Bar], against: str = "plain PyTorch") -> str:
    """Return the chart of speed.

    Args:
        bars: The ratios.
        against: What a ratio of 1 is.
    """
    groups = list(dict.fromkeys(bar.group for bar in bars))
    left, y = 10, 44.0
    scale = (370 if any("folded" in bar.label for bar in bars) else 220) / max(2.5, *(b.high for b in bars))
    parts = []
    plain = any(bar.label == "folded, channels-last" for bar in bars)
    legend = (
        ("folded, channels-last", "and bfloat16 gradients") if plain else ("PGD, all steps", "fewer steps")
    )
    for kind, label, x in (("a", legend[0], left), ("b", legend[1], left + 190)):
        parts += [f'<rect class="f{kind}" x="{x}" y="8" width="12" height="12"/>', text(x + 18, 19, label)]
    for group in groups:
        parts.append(text(left, y + 10, group.replace(";", ",")))
        y += 17
        for bar in (bar for bar in bars if bar.group == group):
            kind = "a" if bar.label.startswith(("folded", "all steps")) else "b"
            parts.append(
                f'<rect class="f{kind}" x="{left}" y="{y:g}" width="{bar.ratio * scale:.1f}" height="14"/>'
                f'<line class="line" x1="{left + bar.low * scale:.1f}" x2="{left + bar.high * scale:.1f}" '
                f'y1="{y + 7:g}" y2="{y + 7:g}"/>'
            )
            shown = f"{bar.ratio:.2f}x" if plain else f"{bar.ratio:.2f}x {bar.label}"
            parts.append(text(left + max(bar.ratio, bar.high) * scale + 8, y + 12, shown, "bold"))
            y += 18
        y += 10
    one = left + scale
    parts.insert(0, f'<line class="grid" x1="{one:.1f}" x2="{one:.1f}" y1="28" y2="{y:g}"/>')
    parts.append(text(one, y + 16, f"{against} = 1x", "soft middle"))
    return svg(450, int(y) + 26, f"Speed of attacks on published networks over {against}", parts)


# ---- HTML for the pages: it reflows on a phone -----------------------------------------------------------


def stacked(claims: Sequence[Claim]) -> str:
    """Return one stacked bar of verdicts per paper.

    Args:
        claims: The claims of an edition.
    """
    lines = ['<div class="tt-bars">']
    for key, (name, page) in PAPERS.items():
        mine = [claim for claim in claims if claim.paper == key]
        parts = []
        for verdict, shown in VERDICTS.items():
            count = sum(claim.verdict == verdict for claim in mine)
            if count:
                slug = shown.replace(" ", "-")
                title = f"{count} {shown}"
                parts.append(f'<span class="tt-{slug}" style="flex:{count}" title="{title}">{count}</span>')
        lines.append(f'<a href="../methods/{page}.html">{name}</a><div>{"".join(parts)}</div>')
    used = [shown for verdict, shown in VERDICTS.items() if any(claim.verdict == verdict for claim in claims)]
    legend = "".join(f'<span class="tt-{shown.replace(" ", "-")}"></span>{shown} ' for shown in used)
    return "\n".join([*lines, "</div>", f'<p class="tt-legend">{legend}</p>'])


def forest(claims: Sequence[Claim], ids: Sequence[str]) -> str:
    """Return a forest plot of claims' contrasts in percentage points.

    Args:
        claims: The claims of an edition.
        ids: Which of them.
    """
    chosen = [claim for id in ids for claim in claims if claim.id == id]
    shown = [(claim, test) for claim in chosen for test in claim.tests if test.points and test.interval]
    limit = max((abs(v) for _, test in shown for v in (*test.interval, test.paper or 0)), default=0.1)  # type: ignore[misc]
    limit = min(limit, 0.35)
    lines = ['<div class="tt-forest">', '<div class="tt-axis"><span></span><div>']
    for value in (-0.3, -0.2, -0.1, 0.0, 0.1, 0.2, 0.3):
        if abs(value) <= limit:
            label = f"{100 * value:+.0f}".replace("-", "\N{MINUS SIGN}").replace("+0", "0")
            lines.append(f'<i style="left:{_place(value, limit)}%">{label}</i>')
    lines.append("</div><span>points [interval]</span></div>")
    last = ""
    for claim, test in shown:
        if claim.id != last:
            lines.append(f'<h4><a href="#{claim.id.lower()}">{claim.id}</a> {escape(claim.sentence)}</h4>')
            last = claim.id
        lines.append(_row(test, limit))
    return "\n".join([*lines, "</div>"])


def _row(test: Test, limit: float) -> str:
    low, high = test.interval  # type: ignore[misc]
    start, end, at = _place(low, limit), _place(high, limit), _place(test.effect, limit)
    kind = VERDICTS.get(test.verdict, "inconclusive").replace(" ", "-")
    marks = [f'<b class="tt-zero" style="left:{_place(0, limit)}%"></b>']
    if test.bound is not None:
        left, right = (_place(value, limit) for value in test.bound)
        marks.insert(0, f'<b class="tt-margin" style="left:{left}%;width:{round(right - left, 1)}%"></b>')
    marks.append(
        f'<b class="tt-range tt-{kind}" style="left:{start}%;width:{max(0.5, round(end - start, 1))}%"></b>'
    )
    marks.append(f'<b class="tt-dot tt-{kind}" style="left:{at}%"></b>')
    if test.paper is not None:
        paper = f"{100 * test.paper:+.1f}".replace("-", "\N{MINUS SIGN}")
        marks.append(
            f'<b class="tt-paper" style="left:{_place(test.paper, limit)}%" title="paper: {paper}"></b>'
        )
        says = f"{test.shown()}; paper {paper}"
    else:
        says = test.shown()
    cells = f"<span>{escape(test.plain)}</span><div>{''.join(marks)}</div><span>{says}</span>"
    return f'<div class="tt-row">{cells}</div>'


def _place(value: float, limit: float) -> float:
    """Percent from the left; what lies outside is drawn at the border."""
    return round(50 + 50 * max(-1.0, min(1.0, value / limit)), 1)
