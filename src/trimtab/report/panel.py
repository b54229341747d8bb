"""The steering panel of a page: every position of its controls, measured beforehand.

Controls    corruption and its severity, rho (weight of the batch's statistics), the size of a shift of all
            statistics (APART's sign step on the clean images, the sign that hurts), branch
Shown       the first images with their leading classes, and the accuracy over the sample, as one batch
Cost        one forward pass over the sample for each position: about 240 for a model with one branch. Where
            these would take longer than `BUDGET`, fewer positions are offered; then none.
"""

from __future__ import annotations

import base64
import io
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from trimtab import norm
from trimtab.attacks import SignStep
from trimtab.data import corrupt
from trimtab.data.sets import Batch
from trimtab.io import atomic_write, digest
from trimtab.measure import clopper_pearson
from trimtab.runtime.fingerprint import of_model

SHOWN, LEADING, SIDE = 16, 3, 64
"""Images that are shown, leading classes that are kept of each, and the largest side of an image."""
SAMPLE, VERSION = 128, 1
"""Images that accuracies are measured on, and the version of what is stored."""
BUDGET = 60.0
"""Seconds that all passes may take."""
PanelProgress = Callable[[float, str], None]
_UNIT, _OTHER = 32, 255
"""Log-probabilities are kept in steps of 1/32; this number stands for a class that never leads."""


@dataclass(frozen=True)
class ControlGrid:
    """The positions of each control."""

    corruptions: tuple[str, ...] = ("gaussian_noise", "fog")
    severities: tuple[int, ...] = (0, 1, 2, 3, 4, 5)
    rhos: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    shifts: tuple[float, ...] = (0.0, 0.025, 0.05, 0.1)

    @property
    def size(self) -> int:
        """The number of passes per branch."""
        clean = 1 if 0 in self.severities else 0
        severities = len(self.corruptions) * (len(self.severities) - clean) + clean
        return severities * len(self.rhos) * len(self.shifts)


FINE = ControlGrid()
COARSE = ControlGrid(("fog",), (0, 1, 3, 5), (0.0, 0.5, 1.0), (0.0, 0.05))


@dataclass(frozen=True)
class Panel:
    """What the panel of one model shows, as JSON values: the page's script reads its fields.

    Positions are in the order branch, corruption, severity, rho, shift.
    """

    grid: Mapping[str, Sequence[Any]]
    """The positions of each control, by the names in `ControlGrid`."""
    branches: Sequence[str]
    n: int
    """Images that each accuracy is measured on."""
    correct: Sequence[int]
    """Correctly classified images at each position."""
    bounds: Mapping[str, Sequence[float]]
    """The 95 % interval of the accuracy for each number of correct images."""
    leading: str
    """Leading classes and their log-probabilities as bytes in base64: (positions, images, LEADING, 2)."""
    unit: int
    """Steps of a log-probability per nat."""
    names: Sequence[str]
    """What the bytes of a class mean."""
    labels: Sequence[str]
    """The labels of the images that are shown."""
    sheets: Sequence[Sequence[str]]
    """Per corruption and severity: the images side by side, as JPEG in base64."""


def stored_panel(
    model: nn.Module, data: Any, folder: Path, limit: int = SAMPLE, progress: PanelProgress | None = None
) -> Panel | None:
    """Return the panel of a model, from a folder if it is there; None if it would take too long.

    Args:
        model: a steerable model.
        data: a set of images, of which the first are taken.
        folder: where panels are stored, by what determines them.
        limit: the largest number of images; at most `SAMPLE`.
        progress: called with the fraction that is done, and what is at work.
    """
    n = min(limit, SAMPLE, len(data))
    path = folder / "panels" / f"{digest([VERSION, of_model(model), data.digest, n])[:16]}.json"
    if path.is_file():
        return Panel(**json.loads(path.read_text()))
    measured = panel(model, data.take(torch.arange(n)), data.classes, progress=progress)
    if measured:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as part:
            part.write_text(json.dumps(asdict(measured)))
    return measured


def panel(
    model: nn.Module,
    batch: Batch,
    classes: Sequence[str],
    budget: float = BUDGET,
    progress: PanelProgress | None = None,
) -> Panel | None:
    """Measure the panel of a model; None if even few positions would take longer than the budget.

    Also None for fewer images than are shown.

    Args:
        model: a steerable model; it is not changed.
        batch: the images to measure on, and the first of them to show.
        classes: the names of the classes.
        budget: seconds that the passes may take.
        progress: called with the fraction that is done, and what is at work.
    """
    if len(batch.y) < SHOWN:
        return None
    copied = norm.steer(norm.clone(model)).eval()
    branches = norm.branches(copied)
    like = next(copied.parameters())
    x, y = batch.x.to(like), batch.y.to(like.device)
    began = time.perf_counter()
    with torch.no_grad(), norm.use(copied, source="batch", update=False):
        copied(x)
    seconds = time.perf_counter() - began
    fits = [grid for grid in (FINE, COARSE) if grid.size * len(branches) * seconds <= budget]
    return _measured(copied, batch, x, y, classes, fits[0], progress) if fits else None


def _measured(
    copied: nn.Module,
    batch: Batch,
    x: Tensor,
    y: Tensor,
    classes: Sequence[str],
    grid: ControlGrid,
    progress: PanelProgress | None,
) -> Panel:
    images = {
        (name, severity): corrupt(batch.x, name, severity, ids=batch.ids) if severity else batch.x
        for name, severity in product(grid.corruptions, grid.severities)
    }
    known: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    rows = []
    for branch in norm.branches(copied):
        with norm.use(copied, branch=branch):
            shifts = {
                eps: SignStep(eps, source="running")(copied, x, y) if eps else None for eps in grid.shifts
            }
        for name, severity, rho, eps in product(grid.corruptions, grid.severities, grid.rhos, grid.shifts):
            key = branch, name if severity else "", severity, rho, eps  # clean images have no corruption
            if key not in known:
                with (
                    torch.no_grad(),
                    norm.use(copied, branch=branch, source="blend", rho=rho, update=False, shift=shifts[eps]),
                ):
                    logits = copied(images[name, severity].to(x))
                likely = logits[:SHOWN].float().log_softmax(1).topk(min(LEADING, logits.shape[1]))
                known[key] = (logits.argmax(1) == y).sum(), likely.indices.cpu(), likely.values.cpu()
                if progress:
                    progress(len(known) / (grid.size * len(norm.branches(copied))), "steering panel")
            rows.append(known[key])
    correct, top, scores = zip(*rows, strict=True)
    index = torch.stack(top)  # (positions, SHOWN, LEADING)
    numbers, count = index.unique(return_counts=True)
    kept = numbers[count.argsort(descending=True, stable=True)[:_OTHER]]
    table = torch.full((int(numbers.max()) + 1,), _OTHER, dtype=torch.uint8)
    table[kept] = torch.arange(len(kept), dtype=torch.uint8)
    quantized = (-_UNIT * torch.stack(scores)).round().clamp(0, 255).byte()
    called = dict(enumerate(classes))
    counts = [int(hits) for hits in correct]
    ends = {hits: clopper_pearson(hits, len(y)) for hits in sorted(set(counts))}
    return Panel(
        grid=asdict(grid),
        branches=norm.branches(copied),
        n=len(y),
        correct=counts,
        bounds={str(hits): [round(end, 4) for end in both] for hits, both in ends.items()},
        leading=_text(torch.stack([table[index], quantized], dim=-1).numpy().tobytes()),
        unit=_UNIT,
        names=[called.get(k, f"class {k}") for k in kept.tolist()],
        labels=[called.get(k, f"class {k}") for k in y[:SHOWN].tolist()],
        sheets=[
            [_sheet(images[name, severity][:SHOWN]) for severity in grid.severities]
            for name in grid.corruptions
        ],
    )


def _sheet(images: Tensor) -> str:
    """Images (N, C, H, W) side by side, reduced to at most SIDE pixels, as JPEG in base64."""
    pixels = (images.float().clamp(0, 1) * 255).round().byte().expand(-1, 3, -1, -1)
    n, _, height, width = pixels.shape
    strip = Image.fromarray(pixels.permute(2, 0, 3, 1).reshape(height, n * width, 3).contiguous().numpy())
    if max(height, width) > SIDE:
        side = (max(1, width * SIDE // max(height, width)), max(1, height * SIDE // max(height, width)))
        strip = strip.resize((n * side[0], side[1]), Image.Resampling.LANCZOS)
    out = io.BytesIO()
    strip.save(out, "JPEG", quality=85)
    return _text(out.getvalue())


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()
