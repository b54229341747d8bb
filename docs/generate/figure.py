"""The README's first figure: accuracy under noise and fog, with static and with adapted statistics."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

STORED = Path(__file__).parents[1] / "results" / "figure.json"
NETWORK, DATA, IMAGES, BATCH = "zoo:cifar10-standard", "cifar10", 2000, 250
CORRUPTIONS = {"gaussian_noise": "Gaussian noise", "fog": "fog"}
EXAMPLE = ("fog", 5)


def measure() -> dict[str, Any]:
    """Measure accuracies under corruption, and find an example; returns what `STORED` holds."""
    import torch
    from PIL import Image

    import trimtab
    from trimtab import adapt, data
    from trimtab.claims.ledger import cpu_name

    model = trimtab.load(NETWORK)
    networks = {"static": model, "adapted": adapt.per_batch(model)}
    images = data.load(DATA, "test").subset(slice(0, IMAGES))
    batches = list(images.batches(BATCH))
    rows, predictions = [], {}
    for corruption in CORRUPTIONS:
        for severity in range(6):
            for batch in batches:
                x = batch.x
                if severity:
                    x = data.corrupt(x, corruption, severity=severity, seed=0, ids=batch.ids)
                for name, network in networks.items():
                    with torch.no_grad():
                        key = corruption, severity, name
                        predictions.setdefault(key, []).append(network(x).argmax(1))
    labels = torch.cat([batch.y for batch in batches])
    correct = {key: torch.cat(parts) == labels for key, parts in predictions.items()}
    for (corruption, severity, name), hits in correct.items():
        count = int(hits.sum())
        rows.append({"corruption": corruption, "severity": severity, "statistics": name, "correct": count})
    right = correct[(*EXAMPLE, "adapted")] & ~correct[(*EXAMPLE, "static")] & correct[EXAMPLE[0], 0, "static"]
    position = int(right.nonzero()[0])
    batch = batches[position // BATCH]
    x = data.corrupt(batch.x, EXAMPLE[0], severity=EXAMPLE[1], seed=0, ids=batch.ids)[position % BATCH]
    picture = Image.fromarray((x * 255).round().byte().permute(1, 2, 0).numpy())
    png = io.BytesIO()
    picture.save(png, "PNG")
    says = {name: int(torch.cat(predictions[(*EXAMPLE, name)])[position]) for name in networks}
    return {
        "command": "python -m docs.generate --measure",
        "network": NETWORK, "data": DATA, "images": IMAGES, "batch": BATCH, "cpu": cpu_name(),
        "rows": rows,
        "example": {
            "image": position, "corruption": EXAMPLE[0], "severity": EXAMPLE[1],
            "label": images.classes[int(labels[position])],
            **{name: images.classes[number] for name, number in says.items()},
            "png": base64.b64encode(png.getvalue()).decode(),
        },
    }  # fmt: skip


def read() -> dict[str, Any]:
    """Return what was measured."""
    return json.loads(STORED.read_text())


def accuracy(stored: dict[str, Any], corruption: str, severity: int, statistics: str) -> float:
    """Return one accuracy.

    Args:
        stored: What was measured.
        corruption: Name of the corruption.
        severity: 0 (clean) to 5.
        statistics: "static" or "adapted".
    """
    wanted = {"corruption": corruption, "severity": severity, "statistics": statistics}
    (row,) = (row for row in stored["rows"] if wanted.items() <= row.items())
    return row["correct"] / stored["images"]
