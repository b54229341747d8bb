"""Pages that are written when the site is built: claims, benchmarks, faults and method cards."""

from __future__ import annotations

import ast
import json
import re
from html import escape
from pathlib import Path
from typing import Any

from docs.generate import charts, findings, speed
from docs.generate import claims as ledger
from docs.generate.claims import PAPERS, VERDICTS, Claim

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
SOURCE = ROOT / "src" / "trimtab"


def pages() -> dict[str, str]:
    """Return the Markdown of every page by its path."""
    return {
        "results/index.md": claims(),
        "results/learned.md": findings.page(),
        "results/benchmarks.md": benchmarks(),
        "results/faults.md": faults(),
        "methods/cards.md": cards(),
    }


SMALL = """!!! note "Small settings"
    Most settings of this edition (ResNet-8, 5,000 to 10,000 images, 8 epochs) are too weak to show an effect,
    whether it exists or not: read "not reproduced" as "not seen in this setting".
    [All numbers](laptop/ledger.md)."""

# ---- claims ----------------------------------------------------------------------------------------------


def claims(results: Path = RESULTS) -> str:
    """Return the page of all claims: bars, forest plot, table, details.

    Args:
        results: Folder of all results.
    """
    name = ledger.edition(results)
    found = ledger.read(name, results)
    lines = [
        "# Claims of the five papers",
        "",
        f"{len(found)} claims, tested by rules that were fixed before the measurements. Shown: the "
        f"{ledger.EDITIONS[name]}. Effects are in percentage points with their 95 % interval (90 % where "
        "closeness is claimed) unless a unit is named. What it means: [what we learned](learned.md).",
        "",
    ]
    if name == "laptop":
        lines += [SMALL, ""]
    lines += ["## Verdicts", "", charts.stacked(found), ""]
    lines += [
        "## Headline claims",
        "",
        "Dot and line: effect and interval here. Diamond: the paper's effect, where",
    ]
    lines += ["it prints the numbers. Gray band: the margin within which two values count as close.", ""]
    lines += [charts.forest(found, ledger.HEADLINE_IDS), ""]
    lines += ["## All claims", "", "Click a heading to sort.", "", '<div class="tt-sortable" markdown>', ""]
    lines += ["| id | paper | claim | verdict | parts | seeds |", "|---|---|---|---|---|---|"]
    for claim in found:
        paper, page = PAPERS[claim.paper]
        parts = claim.parts or _parts(claim)
        cells = (
            f"[{claim.id}](#{claim.id.lower()})",
            f"[{paper}](../methods/{page}.md)",
            _cell(claim.sentence),
        )
        lines.append(f"| {' | '.join((*cells, VERDICTS[claim.verdict], parts, str(claim.seeds)))} |")
    lines += ["", "</div>", "", "## Details", ""]
    for claim in found:
        lines += _details(claim)
    return "\n".join(lines) + "\n"


def _parts(claim: Claim) -> str:
    good = sum(test.verdict == "reproduced" for test in claim.tests)
    return f"{good} of {len(claim.tests)}" if claim.tests else ""


def _details(claim: Claim) -> list[str]:
    inside = [f"{claim.sentence}.", ""]
    if claim.note:
        inside += [f"Note: {claim.note}.", ""]
    if claim.tests:
        inside += ["| contrast | effect | paper | verdict |", "|---|---|---|---|"]
        for test in claim.tests:
            paper = "" if test.paper is None else ledger.amount(test.paper, test.points)
            inside.append(f"| {_cell(test.plain)} | {test.shown()} | {paper} | {test.verdict} |")
        inside.append("")
    names = dict.fromkeys([name for name, _ in claim.measured] + [name for name, _ in claim.figures])
    if names:
        ours, theirs = dict(claim.measured), dict(claim.figures)
        inside += ["| measured | here | paper |", "|---|---|---|"]
        for name in names:
            value = ledger.plain(claim.id, name, ours[name]) if name in ours else ""
            inside.append(f"| {_cell(name)} | {value} | {_cell(theirs.get(name, ''))} |")
        inside.append("")
    inside.append(f"Command: `{claim.command}`")
    title = f"{VERDICTS[claim.verdict]}; {claim.seeds} seeds"
    return [
        f"### {claim.id}",
        "",
        f'??? note "{title}"',
        "",
        *(f"    {line}".rstrip() for line in inside),
        "",
    ]


def verdicts_of(paper: str) -> str:
    """Return the block of a method's page: what was measured of its paper's claims.

    Args:
        paper: First letters of the claims' ids.
    """
    name = ledger.edition()
    found = [claim for claim in ledger.read(name) if claim.paper == paper]
    counts = [
        (sum(claim.verdict == verdict for claim in found), shown) for verdict, shown in VERDICTS.items()
    ]
    lines = [f"{len(found)} claims ({ledger.EDITIONS[name]}): "
             + ", ".join(f"{count} {shown}" for count, shown in counts if count) + ".", ""]  # fmt: skip
    lines += ["| claim | verdict |", "|---|---|"]
    for claim in found:
        link = f"[{claim.id}](../results/index.md#{claim.id.lower()})"
        lines.append(f"| {link} {_cell(claim.sentence)} | {VERDICTS[claim.verdict].replace(' ', '&nbsp;')} |")
    return "\n".join(lines)


# ---- benchmarks ------------------------------------------------------------------------------------------


ABOUT = {
    "attacks": "Time of others divided by ours. *As shipped*: early stopping; *same rule*: the last iterate.",
    "train": "Time relative to a forward/backward baseline, or images per second relative to a plain script.",
    "certify": "Time of the plain procedure divided by ours.",
    "adapt": "Time relative to a plain forward pass.",
    "lens": "Time of LIGS relative to two input gradients.",
    "corruptions": "Time relative to `imagecorruptions`, and to the bare arithmetic.",
    "loader": "Fraction of a training step's time that loading takes.",
    "norm": "Time of a steered pass relative to a stock one.",
    "growth": "Exponent of the cost in the size of the problem: 1 is proportional.",
}


def benchmarks(results: Path = RESULTS) -> str:
    """Return the page of all benchmarks.

    Args:
        results: Folder of all results.
    """
    _, source = speed.bars(results)
    lines = ["# Benchmarks", "", "## Attacks on published networks", "", '<div class="tt-figure">', ""]
    lines += [charts.speed(speed.bars(results)[0], speed.against(results)).strip(), "", "</div>", ""]
    lines += [
        f"Times as fast as {speed.against(results)}; lines are quartiles over rounds. {source}.",
        "",
    ]
    lines += ["The ratio depends on network and CPU; `trimtab bench attacks --standard MODEL --robust MODEL`"]
    lines += ["measures yours. What each fast path brings: [fast paths](engine-room.md).", ""]
    lines += [
        "## All sections",
        "",
        "Ratios of median times with the quartiles of the ratios within each round. A",
    ]
    lines += [
        "target was set before the measurement; a missed one is listed like the others. Networks are ResNet-8"
    ]
    lines += [
        "of width 16 unless named: small networks favor us, so do not expect these ratios of yours.",
        "Attacks and training were measured at an earlier commit (named under each table), with a fast path",
        "that was removed since because it gained at most 1.08x.",
        "",
    ]
    stored = {name: json.loads((results / f"{name}.json").read_text()) for name in ("speed-attacks", "speed")}
    for section, about in ABOUT.items():
        newest = next((d for d in stored.values() if any(r["section"] == section for r in d["rows"])), None)
        if newest is not None:
            lines += _section(section, about, newest)
    return "\n".join(lines) + "\n"


def _section(section: str, about: str, stored: dict[str, Any]) -> list[str]:
    rows = [row for row in stored["rows"] if row["section"] == section]
    judged = [row for row in rows if row.get("met") is not None]
    met = (
        f"{sum(row['met'] for row in judged)} of {len(judged)} targets met" if judged else f"{len(rows)} rows"
    )
    run = stored["about"]
    inside = ["| compared | ratio | quartiles | target | met |", "|---|---|---|---|---|"]
    for row in rows:
        low, high = row["spread"]
        verdict = {True: "yes", False: "no"}.get(row.get("met"), "")
        inside.append(
            f"| {_cell(row['what'])} | {row['ratio']:.3g} | {low:.3g} to {high:.3g} | {row['wanted']} "
            f"| {verdict} |"
        )
    inside += [
        "",
        f"{run['machine']}; torch {run['torch']}, {run['threads']} threads, commit {run['commit']}.",
    ]
    body = [
        f"    {line}".rstrip() for line in ['<div class="tt-sortable" markdown>', "", *inside, "", "</div>"]
    ]
    heading = {"lens": "analyze"}.get(section, section)  # the command that was called lens
    return [f"### {heading}", "", f"{about}", "", f'??? note "{met}"', "", *body, ""]


# ---- faults ----------------------------------------------------------------------------------------------


def faults(results: Path = RESULTS) -> str:
    """Return the page of injected faults.

    Args:
        results: Folder of all results.
    """
    stored = json.loads((results / "faults.json").read_text())
    kinds: dict[str, list[dict[str, Any]]] = {}
    for row in stored["rows"]:
        kinds.setdefault(row["fault"], []).append(row)
    total = {
        key: sum(row[key] for row in stored["rows"])
        for key in ("rounds", "faults", "lost", "different", "traces")
    }
    lines = [
        "# Faults",
        "",
        f"{total['faults']} injected faults (kills, full disks, damaged files, two processes at once, "
        f"a killed rank) lost {total['lost']} results, changed {total['different']} silently and showed "
        f"{total['traces']} stack traces.",
        "",
        "| fault | commands | rounds | faults | ended with one sentence | lost | silently different |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind, rows in kinds.items():
        sums = [
            sum(row[key] for row in rows) for key in ("rounds", "faults", "reported", "lost", "different")
        ]
        lines.append(f"| {kind} | {len(rows)} | {' | '.join(map(str, sums))} |")
    lines += [
        "",
        "After each fault the same command runs again; its result is compared byte by byte with that of an",
    ]
    lines += ["undisturbed run (two ranks with one: to 1e-8 in float64).", "", f"`{stored['command']}`", ""]
    examples = stored["hostile"]["rows"]
    count = sum(row["examples"] for row in examples)
    lines += ["## Hostile input", "", f"{count:,} damaged, nonsensical or malicious inputs were"
              " read or refused in one sentence; "
              f"{sum(row['failures'] for row in examples)} failures.", ""]  # fmt: skip
    lines += ["| input | examples | failures |", "|---|---|---|"]
    lines += [f"| {row['input']} | {row['examples']:,} | {row['failures']} |" for row in examples]
    return "\n".join([*lines, "", f"`{stored['hostile']['command']}`"]) + "\n"


# ---- method cards ----------------------------------------------------------------------------------------


def cards() -> str:
    """Return the page of method cards: the docstrings of the modules that implement a method."""
    lines = ["# Method cards", "", "Each card is the docstring of the module that implements the method.", ""]
    last = ""
    for path in sorted(SOURCE.rglob("*.py")):
        text = ast.get_docstring(ast.parse(path.read_text())) or ""
        parsed = card(text)
        if not parsed[1].keys() & {"Idea", "Paper", "Papers"}:
            continue
        module = ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
        package = module.partition(".")[0]
        if package != last:
            lines += [f"## trimtab.{package}", ""]
            last = package
        lines += [f"### {module}", "", parsed[0], ""]
        for name, words in parsed[1].items():
            lines += [name, f":   {_escaped(words)}", ""]
    return "\n".join(lines)


def card(docstring: str) -> tuple[str, dict[str, str]]:
    """Return a module docstring's first paragraph, and its rows "Name   text" with their continued lines.

    Args:
        docstring: The docstring.
    """
    first, _, rest = docstring.partition("\n\n")
    rows: dict[str, str] = {}
    name = ""
    for line in rest.splitlines():
        start = re.match(r"([A-Z][a-z]+) {2,}(\S.*)", line)
        if start:
            name = start.group(1)
            rows[name] = start.group(2)
        elif name and line.startswith("   "):
            rows[name] += " " + line.strip()
        else:
            name = ""
    return " ".join(first.split()), rows


def _escaped(text: str) -> str:
    """Text of a docstring as Markdown: code between backticks and emphasis are kept, all else is literal."""
    parts = re.split(r"(`[^`]*`|(?<!\S)\*\w+\*(?!\w))", text)
    return "".join(part if number % 2 else _literal(part) for number, part in enumerate(parts))


def _literal(text: str) -> str:
    return re.sub(r"([*_\[\]])", r"\\\1", escape(text, quote=False))


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
