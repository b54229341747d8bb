"""`trimtab audit`'s drift flag: on a network's own images, on corrupted ones, and with planted faults."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.detectors.faults import SOUND, Faulty, faults
from benchmarks.detectors.networks import Case
from benchmarks.detectors.normalization import SHIFTS
from trimtab import norm
from trimtab.data import corrupt
from trimtab.norm.audit import DRIFT

IMAGES = 128
"""Images of a subset, as `trimtab audit --data` takes by default."""
SUBSETS = 8


@dataclass(frozen=True)
class Drift:
    """How far the batch statistics of a network's layers are from the running ones."""

    network: str
    kind: str
    """"sound", "shift" (corrupted images) or "fault"."""
    what: str
    mean: float
    """The largest drift of a layer's mean, in running stds; flagged from `DRIFT` on."""
    std: float
    """The largest ratio of a layer's std to the running one, or its inverse; flagged from 2 on."""

    @property
    def flagged(self) -> bool:
        """Whether some layer raises the flag."""
        return not self.mean < DRIFT or not self.std < 2


def drifts(case: Case, folder: Path, cached: bool = False) -> list[Drift]:
    """Return all drifts of a network with batch norm, from its file in the cache or measured now.

    Args:
        case: the network and its images.
        folder: where they are kept, one file per network.
        cached: whether to leave out a network that has not been measured.
    """
    path = folder / f"drift-{''.join(c if c.isalnum() else '-' for c in case.name)}.json"
    if not path.exists():
        if cached:
            return []
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps([asdict(one) for one in _measured(case)])
        partial_file = path.with_suffix(".part")
        partial_file.write_text(text)
        partial_file.rename(path)
    return [Drift(**fields) for fields in json.loads(path.read_text())]


def _measured(case: Case) -> Iterator[Drift]:
    if all(layer.kind != "batch" for layer in norm.audit(case.net).layers):
        return
    planted = faults(case)
    order = torch.randperm(len(case.images), generator=torch.Generator().manual_seed(3))
    sound = planted.pop(SOUND)
    for subset in range(min(SUBSETS, len(order) // IMAGES)):
        x = case.images.take(order[subset * IMAGES : (subset + 1) * IMAGES]).x
        yield _drift(case, "sound", f"subset {subset}", sound, x)
    first = case.images.take(order[:IMAGES])
    for what, receives in planted.items():
        yield _drift(case, "fault", what, receives, first.x)
    for name, severity in SHIFTS:
        x = corrupt(first.x, name, severity, seed=0, ids=first.ids)
        yield _drift(case, "shift", f"{name} {severity}", sound, x)


def _drift(case: Case, kind: str, what: str, receives, x: Tensor) -> Drift:  # type: ignore[no-untyped-def]
    rows = [r for r in norm.audit(Faulty(case.net, receives), [x]).layers if r.drift_mean is not None]
    ratios = [math.exp(abs(math.log(max(r.drift_std or 0.0, 1e-12)))) for r in rows]
    return Drift(case.name, kind, what, max(float(r.drift_mean or 0.0) for r in rows), max(ratios))
