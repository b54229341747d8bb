"""Write docs/methods.md from module docstrings: a method's card stands beside its code, and only there."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1] / "src" / "trimtab"
CARDS = {
    "The core": ["norm/setting", "norm/layer", "norm/moments", "norm/fold"],
    "Training": [
        *("train/adversarial", "train/mixture", "train/advbn", "train/apart"),
        *("train/sam", "train/gaussian", "train/ligs"),
    ],
    "Attacks": [
        *("attacks/pgd", "attacks/apgd", "attacks/fab", "attacks/square", "attacks/auto"),
        *("attacks/eot", "attacks/batch", "attacks/statistics", "attacks/feature"),
    ],
    "Test-time statistics": ["adapt/per_batch", "adapt/frozen", "adapt/stream"],
    "Certificates": ["certify/smoothing"],
    "Measurements": [f"measure/{name}" for name in ("ligs", "landscape", "gradients", "corruption_error")],
    "Constructed sets": [f"construct/{name}" for name in ("features", "labels", "advbn_images")],
    "Corruptions": ["data/corruptions/__init__"],
}


def on_pre_build(config: object) -> None:
    lines = ["# Method cards", "", "Each card is the docstring of the module that implements the method.", ""]
    for heading, names in CARDS.items():
        lines += [f"## {heading}", ""]
        for name in names:
            card = ast.get_docstring(ast.parse((ROOT / f"{name}.py").read_text())) or ""
            lines += [f"### {name.removesuffix('/__init__')}", "", "```text", card, "```", ""]
    page = Path(__file__).parent / "methods.md"
    text = "\n".join(lines)
    if not page.exists() or page.read_text() != text:
        page.write_text(text)


if __name__ == "__main__":
    on_pre_build(None)
