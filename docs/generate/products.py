"""The page of what repair, merge, monitor and router bring, from the results of `benchmarks/`."""

from __future__ import annotations

import ast
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
NETWORKS = {"resnet20": "ResNet-20", "resnet44": "ResNet-44", "efficientnet_lite0": "EfficientNet-Lite0"}
SEVERITIES = (1, 2, 3, 4, 5)


def page(results: Path = RESULTS) -> str:
    """Return the page.

    Args:
        results: Folder of all results.
    """
    lines = [
        "# Statistics: repair, merge, monitor, router",
        "",
        "Accuracies are in % with their 95 % interval (Clopper-Pearson, over images; of one network each, so",
        "nothing is said about training). [How to use them](../howto/statistics.md). What they cost:",
        "`trimtab bench statistics`.",
        "",
    ]
    for name, section in (("repair", repair), ("merge", merge), ("monitor", monitor), ("router", router)):
        stored = json.loads((results / f"{name}.json").read_text())
        lines += [f"## {name.capitalize()}", "", *section(stored), "", *_source(name, stored["about"])]
    return "\n".join(lines)


def repair(stored: dict[str, Any]) -> list[str]:
    """Return the table of accuracies before and after.

    Args:
        stored: The results of `benchmarks.repair`.
    """
    rows = []
    for row in stored["rows"]:
        kept = "" if row["kept"] else ", not kept"
        rows.append((
            NETWORKS[row["network"]], row["damage"], row["estimated on"], row["images"],
            _percent(row, "intact"), _percent(row, "before"), _percent(row, "after") + kept,
            _percent(row, "update_bn"),
        ))  # fmt: skip
    head = ("network", "damage", "estimated on", "compared on", "intact", "before", "after", "`update_bn`")
    return [
        "Where re-estimating does not help (*not kept*), `trimtab repair` says so and keeps the original",
        "statistics; the table shows what the new ones would give.",
        "",
        *_table(head, rows),
    ]


def merge(stored: dict[str, Any]) -> list[str]:
    """Return the table of errors and accuracies of merged and of averaged statistics.

    Args:
        stored: The results of `benchmarks.merge`.
    """
    rows = [
        (
            row["cut"], f"{row['merged']['mean']:.1g}", f"{row['merged']['variance']:.1g}",
            f"{row['averaged']['variance']:.2g}", *(_percent(row, f"{t} accuracy", f"{t} interval")
            for t in ("whole", "merged", "averaged")),
        )
        for row in stored["rows"]
    ]  # fmt: skip
    head = ("cut", "mean, merged", "variance, merged", "variance, averaged")
    return [
        f"{stored['images']:,} images in {stored['parts']} parts; errors against one pass over the whole.",
        "",
        *_table((*head, "accuracy, whole", "merged", "averaged"), rows),
    ]


def monitor(stored: dict[str, Any]) -> list[str]:
    """Return false alarms, errors of the accuracy estimate, and delays.

    Args:
        stored: The results of `benchmarks.monitor`.
    """
    clean, estimates, delays = stored["false alarms"], stored["estimates"], stored["delays"]
    low, high = clean["interval"]
    lines = [
        f"**False alarms**: {clean['alarms']} on {clean['streams']} clean streams of {clean['images']:,} "
        f"images, {clean['alarms'] / clean['streams']:.1%} [{low:.1%}, {high:.1%}]. The stated rate is at "
        f"most {clean['alarm_rate']:.0%} (binomial test of a higher one: p = {clean['p_value']:.2f}).",
        "",
    ]
    errors = []
    for key, what in (("estimate", "that corruption"), ("estimate without the family", "its whole family")):
        distances = [abs(row[key] - row["accuracy"]) for row in estimates]
        worst = max(estimates, key=lambda row: abs(row[key] - row["accuracy"]))
        at = f"{worst['corruption']}, severity {worst['severity']}"
        where = f"{at}: {worst[key]:.1%}, true {worst['accuracy']:.1%}"
        errors.append((what, f"{100 * mean(distances):.1f}", f"{100 * max(distances):.1f}", where))
    head = ("left out of the calibration", "mean absolute error, points", "largest", "where")
    lines += ["**Estimated accuracy**", "", *_table(head, errors), ""]
    early = sum(row["early"] for row in delays)
    lines += [
        f"**Detection delay** in images, median of {delays[0]['streams']} streams, by severity, with the",
        "accuracy under that corruption, and the number of streams with an alarm where it is not all.",
        f"{early} of {sum(row['streams'] for row in delays)} alarms came before the change.",
        "",
    ]
    kinds = dict.fromkeys(row["corruption"] for row in delays)
    cells = {(row["corruption"], row["severity"]): _delay(row) for row in delays}
    rows = [(kind, *(cells[kind, severity] for severity in SEVERITIES)) for kind in kinds]
    return [*lines, *_table(("corruption", *map(str, SEVERITIES)), rows)]


def _delay(row: dict[str, Any]) -> str:
    median = "none" if row["median"] is None else f"{row['median']:,.0f}"
    found = "" if row["found"] == row["streams"] else f" ({row['found']} of {row['streams']})"
    return f"{median}{found} [{row['accuracy']:.0%}]"


def router(stored: dict[str, Any]) -> list[str]:
    """Return the tables of accuracies by condition and branch.

    Args:
        stored: The results of `benchmarks.router`.
    """
    lines = [
        "**A router is no defense**: compare its accuracy under adaptive PGD with that of the better branch.",
    ]
    for network in stored["networks"]:
        other = network["auxiliary"]
        titles = ("main", other, "oracle", "router", "router, blend", "router, batches of 100")
        rows = []
        for row in network["rows"]:
            cells = [_interval(row["accuracy"][title], *row["interval"][title]) for title in titles]
            chosen = row.get("auxiliary chosen")
            rows.append((row["condition"], *cells, "" if chosen is None else f"{chosen:.0%}"))
        known = [row["accuracy"] for row in network["rows"] if "PGD" not in row["condition"]]
        averages = [f"{100 * mean(row[title] for row in known):.1f}" for title in titles]
        rows.append(("mean of clean and corrupted", *averages, ""))
        best = max(titles[3:], key=lambda title: mean(row[title] for row in known))
        single = max(mean(row[title] for row in known) for title in titles[:2])
        gain = 100 * (mean(row[best] for row in known) - single)
        alone = ", ".join(f"{k} {v:.1%}" for k, v in network["router under each attack"].items())
        head = ("condition", *titles, f"images sent to {other}")
        lines += ["", f"`{network['model']}`, {stored['images']} images:", "", *_table(head, rows), ""]
        lines += [
            f"On average over clean and corrupted images the best router ({best}) is {gain:+.1f} points",
            f"from the better single branch. The router under each attack: {alone}.",
        ]
    return lines


def _percent(row: dict[str, Any], key: str, interval: str | None = None) -> str:
    return _interval(row[key], *row[interval or f"{key} interval"])


def _interval(value: float, low: float, high: float) -> str:
    return f"{100 * value:.1f} [{100 * low:.0f}, {100 * high:.0f}]"


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    return lines + [f"| {' | '.join(map(str, row))} |" for row in rows]


def _source(name: str, about: dict[str, Any]) -> list[str]:
    """How it was measured: the benchmark's docstring, and what was run where."""
    text = ast.get_docstring(ast.parse((ROOT / "benchmarks" / f"{name}.py").read_text())) or ""
    body = ["```text", *text.splitlines(), "```"]
    software = f"torch {about['torch']}, threads: {about['threads']}, commit {about['commit']}"
    return [
        f"`{about['command']}` on {about['machine']}; {software}.",
        "",
        '??? note "How it was measured"',
        "",
        *(f"    {line}".rstrip() for line in body),
        "",
    ]
