"""Tables of the guides and of the gallery, from committed measurements."""

from __future__ import annotations

import json
import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from statistics import median
from typing import Any

DOCS = Path(__file__).parents[1]


def _read(name: str) -> dict[str, Any]:
    return json.loads((DOCS / "results" / f"{name}.json").read_text())


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.1f} %"


def widest(accuracies: list[float], n: int) -> float:
    """Return half the width of the widest 95 % interval (normal approximation) in points.

    Args:
        accuracies: Fractions.
        n: Number of images of each.
    """
    return max(196 * (p * (1 - p) / n) ** 0.5 for p in accuracies)


def cost() -> str:
    """Return what a training step of each objective costs: counted and measured."""
    stored = _read("cost")
    lines = ["| objective | counted | measured (range) |", "|---|---|---|"]
    for row in stored["rows"]:
        ratios = row["measured"]
        shown = f"{median(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f})"
        lines.append(f"| {row['objective']} | {row['counted']:.1f} | {shown} |")
    lines += [
        "",
        f"`{stored['command']}`: ResNet-8 of width 16, processor time of one thread, median and range over",
    ]
    return "\n".join([*lines, f"rounds; {stored['cpu']}, torch {stored['torch']}."])


def memory() -> str:
    """Return the peak memory of each command."""
    stored = _read("memory")
    lines = ["| command | peak MB |", "|---|---|"]
    return "\n".join([*lines, *(f"| {row['what']} | {row['megabytes']} |" for row in stored["rows"])])


def hours() -> str:
    """Return what the code of the guide on several GPUs prints: hours at the papers' sizes."""
    page = (DOCS / "howto" / "scaling.md").read_text()
    (block,) = re.findall(r"^```python\n(.*?)^```", page, re.S | re.M)
    printed = StringIO()
    with redirect_stdout(printed):
        exec(compile(block, "scaling.md", "exec"), {})
    names = ("setting of the paper (ImageNet)", "epochs x batch", "devices", "R", "hours, ideal")
    head = f"| {' | '.join((*names, 'hours with all-reduce'))} |"
    return "\n".join([head, "|---|---|---|---|---|---|", printed.getvalue().rstrip()])


def gallery_networks() -> str:
    """Return the accuracies of the gallery's two networks."""
    nets = _read("gallery")["networks"]
    standard, robust = nets["standard"], nets["adversarial"]
    return (
        f"The pictures are of two CIFAR-10 networks (ResNet-8 of width 16): one standard\n"
        f"({standard['clean']:.0%}), one trained with PGD-7 at 8/255 ({robust['clean']:.0%} clean, "
        f"{robust['PGD-20']:.0%} under PGD-20). They are made by\n"
        "`python docs/pictures/lens.py --standard file:RUN --robust file:RUN`."
    )


def gallery_spectra() -> str:
    """Return the fraction of the gradient's energy at high frequencies."""
    rows = _read("gallery")["energy above half the highest frequency"]
    lines = ["| corruption | static | adapted |", "|---|---|---|"]
    return "\n".join(
        [*lines, *(f"| {k} | {row['static']:.2f} | {row['adapted']:.2f} |" for k, row in rows.items())]
    )


def gallery_advbn() -> str:
    """Return the accuracies on AdvBN images."""
    stored = _read("gallery")["AdvBN images"]
    columns = ("clean", "reconstructed", "AdvBN", "top-5")
    wide = widest([row[name] for row in stored["rows"] for name in columns], stored["images"])
    lines = [f"{stored['images']:,} test images; 95 % intervals are within ±{wide:.1f} points:", ""]
    lines += ["| network | clean | reconstructed | AdvBN images | top-5 of these |", "|---|---|---|---|---|"]
    for row in stored["rows"]:
        lines.append(f"| {row['network']} | {' | '.join(_percent(row[name]) for name in columns)} |")
    return "\n".join(lines)


def gallery_features() -> str:
    """Return the accuracies of networks that were trained on constructed sets."""
    stored = _read("gallery")["feature sets"]
    wide = widest([row[name] for row in stored["rows"] for name in ("clean", "PGD-20")], stored["images"])
    lines = [f"Seed 0; 95 % intervals are within ±{wide:.1f} points:", ""]
    lines += ["| set | made with | steps | clean | PGD-20, l_inf 1/255, early stopping | LIGS (Gaussian) |"]
    lines += ["|---|---|---|---|---|---|"]
    for row in stored["rows"]:
        shown = (_percent(row["clean"]), _percent(row["PGD-20"]), f"{row['LIGS']:.2f}")
        lines.append(f"| {row['set']} | {row['made with']} | {row['steps']} | {' | '.join(shown)} |")
    return "\n".join(lines)
