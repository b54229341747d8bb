"""Benchmark results as rows: how many times as fast as a peer or as plain PyTorch, on published networks."""

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
}
ARMS = {"base": "folded, channels-last", "+ bfloat16, gradients only": "and bfloat16 gradients"}
"""Arms of `engine_room` that the chart shows, and what they are called there."""


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
    stored = json.loads((results / "engine-room.json").read_text())
    found = [bar for row in stored["rows"] if (bar := _bar(row)) is not None]
    order = list(NAMES.values())
    found.sort(
        key=lambda bar: (order.index(bar.group.partition(";")[0]), bar.group, bar.label != ARMS["base"])
    )
    return found, f"`{stored['command']}` on {stored['machine']}, torch {stored['torch']}"


def _bar(row: dict[str, Any]) -> Bar | None:
    if row["network"] not in NAMES or row["arm"] not in ARMS or "over_plain" not in row:
        return None
    threads = f"{row['threads']} thread{'s' if row['threads'] > 1 else ''}"
    ratio, low, high = row["over_plain"]
    return Bar(f"{NAMES[row['network']]}; {threads}", ARMS[row["arm"]], ratio, low, high)
