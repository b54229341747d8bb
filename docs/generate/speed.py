"""Benchmark results as rows: how many times as fast as a peer or as plain PyTorch, on published networks.

`races.json` (`trimtab bench races`) is against the fastest peer; where it is not measured, `engine-room.json`
is against plain PyTorch.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results"
NAMES = {
    "resnet20": "ResNet-20, 32x32",
    "resnet44": "ResNet-44, 32x32",
    "resnet50": "ResNet-50, 224x224",
    "efficientnet_b0": "EfficientNet-B0, 224x224",
    "efficientnet_lite0": "EfficientNet-Lite0, 224x224",
    "timm:resnet50": "ResNet-50, 224x224",
    "lite0": "EfficientNet-Lite0, 224x224",
}
ARMS = {"base": "folded, channels-last", "+ bfloat16, gradients only": "and bfloat16 gradients"}
"""Arms of `engine_room` that the chart shows, and what they are called there."""
RULES = {"same rule": "all steps", "early stopping": "early stopping", "AutoAttack": "AutoAttack"}
"""Rows of `races` that the chart shows, and what they are called there."""


@dataclass(frozen=True)
class Bar:
    """One ratio: the time of what it is compared with over ours."""

    group: str
    label: str
    ratio: float
    low: float
    high: float


def bars(results: Path = RESULTS) -> tuple[list[Bar], str]:
    """Return the ratios to show, and where they come from.

    Args:
        results: Folder of all results.
    """
    races = results / "races.json"
    if races.exists():
        stored = json.loads(races.read_text())
        about = stored["about"]
        found = [_race(row) for row in stored["rows"] if row["setting"].get("rule") in RULES]
        return found, f"`{about['command']}` on {about['machine']}, torch {about['torch']}"
    stored = json.loads((results / "engine-room.json").read_text())
    found = [bar for row in stored["rows"] if (bar := _bar(row)) is not None]
    order = list(dict.fromkeys(NAMES.values()))
    found.sort(
        key=lambda bar: (order.index(bar.group.partition(";")[0]), bar.group, bar.label != ARMS["base"])
    )
    return found, f"`{stored['command']}` on {stored['machine']}, torch {stored['torch']}"


def against(results: Path = RESULTS) -> str:
    """Return what a ratio of 1 is.

    Args:
        results: Folder of all results.
    """
    return "the fastest other library" if (results / "races.json").exists() else "plain PyTorch"


def _race(row: dict[str, Any]) -> Bar:
    setting = row["setting"]
    threads = f"{setting['threads']} thread{'s' if setting['threads'] != '1' else ''}"
    label = f"{RULES[setting['rule']]} (vs. {setting['peer']})"
    return Bar(f"{NAMES[setting['network']]}; {threads}", label, row["ratio"], *row["spread"])


def _bar(row: dict[str, Any]) -> Bar | None:
    if row["network"] not in NAMES or row["arm"] not in ARMS or "over_plain" not in row:
        return None
    threads = f"{row['threads']} thread{'s' if row['threads'] > 1 else ''}"
    ratio, low, high = row["over_plain"]
    return Bar(f"{NAMES[row['network']]}; {threads}", ARMS[row["arm"]], ratio, low, high)
