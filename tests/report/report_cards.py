"""Cards made by hand, so that every number a report derives from them can be worked out on paper."""

from collections.abc import Mapping

from trimtab.evaluate import Card, Flag, Row
from trimtab.measure.accuracy import clopper_pearson

PER_BATCH = "adapted per batch (rho 1)"
FROZEN = "frozen on 256 images (rho 1)"
PGD = "PGD-20 (l_inf 8/255)"
CURVE = "PGD-100 (l_inf 8/255)"


def row(
    kind: str,
    condition: str,
    state: str,
    correct: int,
    n: int = 1000,
    seed: int = 0,
    figures: Mapping[str, float] | None = None,
) -> Row:
    score = "any iterate" if kind == "attack" else ""
    counted = (correct / n, clopper_pearson(correct, n), correct, n)
    return Row(kind, condition, state, seed, *counted, score, figures or {}, f"{condition}/{state}/{seed}")


def card(model: str = "net", command: str | None = "trimtab evaluate file:net --data sample") -> Card:
    """Per batch: +30 points under fog, +10 under noise, -5 on clean images; frozen: nothing for certain."""
    rows = [
        row("clean", "clean", "running", 900),
        row("noise", "Gaussian noise, sigma 0.1", "running", 600),
        row("corruption", "fog, severity 3", "running", 400),
        row("corruption", "contrast, severity 3", "running", 500),
        row("corruption", "contrast, severity 5", "running", 300),
        row("attack", PGD, "running", 120),
        row("attack", CURVE, "running", 100, figures={"after 10": 0.2, "after 20": 0.12, "after 100": 0.1}),
        row("clean", "clean", PER_BATCH, 850),
        row("noise", "Gaussian noise, sigma 0.1", PER_BATCH, 700),
        row("corruption", "fog, severity 3", PER_BATCH, 700),
        row("clean", "clean", FROZEN, 902),
        row("corruption", "fog, severity 3", FROZEN, 405),
    ]
    flags = (Flag("batch", "the same images differ by 4.0%", "use running statistics", PER_BATCH),)
    provenance = {
        "trimtab": "0.1.0",
        "data": "d1",
        "model": "m1",
        "command": command,
        "pixels": {"size": [28, 28]},
    }
    return Card(model, "sample", "quick", tuple(rows), flags, provenance)
