"""The flags that rest on attacks or on logits: statistics on sound networks and on planted defects."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.detectors.faults import SOUND, Faulty, faults
from benchmarks.detectors.networks import Case
from trimtab.attacks import Linf
from trimtab.evaluate import Store, attack_flags, model_flags, trust
from trimtab.evaluate.bn_modes import RunningMode
from trimtab.evaluate.cells import Subject
from trimtab.evaluate.conditions import AFTER, Columns
from trimtab.evaluate.engine import measure
from trimtab.evaluate.probes import MARKS
from trimtab.models.corrections import SIGNIFICANCE, p_better

BUDGET = Linf("8/255")
LIMITS = {
    "stochastic": ("above", model_flags.NONDETERMINISM),
    "batch": ("above", model_flags.BATCH_EFFECT),
    "no gradient": ("above", model_flags.FLAT),
    "weak attack": ("below", SIGNIFICANCE),
    "one step": ("below", attack_flags.ONE_STEP),
    "steps": ("below", SIGNIFICANCE),
    "budget": ("below", SIGNIFICANCE),
    "unbounded": ("above", attack_flags.FEW),
    "black box": ("above", attack_flags.FEW),
    "curve": ("above", 0.016),
}
"""On which side of which value a statistic raises its flag."""


@dataclass(frozen=True)
class Agreement:
    """The statistics of one network, sound or with a planted defect."""

    network: str
    family: str
    defect: str
    """"" for a sound network."""
    statistics: dict[str, float]
    flags: tuple[str, ...]
    """Those that the trust card raised."""


class _Zero(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        return x.clone()

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        return torch.zeros_like(grad)


class _MisleadingOnGrid(torch.autograd.Function):
    """Gradients of the wrong sign at whole levels of 255, right ones elsewhere."""

    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        (x,) = ctx.saved_tensors
        off_grid = ((x * 255) - (x * 255).round()).abs().amax((1, 2, 3), keepdim=True) > 1e-3
        return torch.where(off_grid, grad, -grad)


class _WithDropout(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.dropout(self.net(x), 0.3)


DEFECTS = {
    "quantized input": ("no gradient", lambda x: (x * 15).round() / 15),
    "zero gradients": ("no gradient", _Zero.apply),
    "fitted to one step": ("one step", _MisleadingOnGrid.apply),
    "rippled input": ("black box", lambda x: x + 0.004 * torch.sin(2000 * x)),
    "dropout stays on": ("stochastic", None),
}
"""Planted defects: the flag that each must raise, and what it does to the pixels."""


def agreements(case: Case, folder: Path, defects: bool, cached: bool = False) -> Iterator[Agreement]:
    """Yield the statistics of a network, sound and with each planted defect; or only the `cached` ones."""
    for defect in ("", *(DEFECTS if defects else ())):
        name = "".join(c if c.isalnum() else "-" for c in f"{case.name} {defect}")
        path = folder / f"agreement-{name}.json"
        if cached and not path.exists():
            continue
        if not path.exists():
            receives = faults(case)[SOUND]
            change = DEFECTS[defect][1] if defect else None
            model: nn.Module = Faulty(case.net, receives if change is None else _after(change, receives))
            if defect == "dropout stays on":
                model = _WithDropout(model)
            path.parent.mkdir(parents=True, exist_ok=True)
            partial_file = path.with_suffix(".part")
            partial_file.write_text(json.dumps(asdict(_measured(case, defect, model.eval()))))
            partial_file.rename(path)
        yield Agreement(**json.loads(path.read_text()))


def _after(change, receives):  # type: ignore[no-untyped-def]
    return lambda x: receives(change(x))


def _measured(case: Case, defect: str, model: nn.Module) -> Agreement:
    order = torch.randperm(len(case.images), generator=torch.Generator().manual_seed(2))
    images = case.images.subset(order[:128])
    with tempfile.TemporaryDirectory() as folder:
        subject = Subject(model, images, Store(Path(folder) / "store.sqlite"))
        health = measure(trust.health(subject, RunningMode(), 0))
        cells = trust.probing(subject, BUDGET, RunningMode(), 0)
        probes = {role: measure(cell) for role, cell in cells.items()}
        raised = [*model_flags.health_flags(health), *attack_flags.attack_flags(BUDGET, probes)]
    flags = tuple(sorted({flag.name for flag in raised}))
    return Agreement(case.name, case.family, defect, _statistics(health, probes), flags)


def _statistics(health: Columns, probes: dict[str, Columns]) -> dict[str, float]:
    robust = {role: columns["correct"] for role, columns in probes.items()}
    curve = [probes["PGD"][f"{AFTER}{mark}"] for mark in MARKS]
    clean = probes["FGSM"]["broken_at"] != 0
    halves = ((robust["FGSM"], robust["FGSM at half"]), (curve[2], robust["PGD at half"]))
    return {
        "stochastic": float(health["repeated"].max()),
        "batch": float(health["rebatched"].max()),
        "no gradient": _fraction(health["flat"] & health["correct"]),
        "weak attack": p_better(robust["PGD"], robust["FGSM"]),
        "one step": attack_flags.one_step_ratio(clean, robust["FGSM"], robust["PGD"]),
        "steps": min(p_better(late, early) for early, late in pairwise(curve)),
        "budget": min(p_better(large, small) for large, small in halves),
        "unbounded": _fraction(robust["anything"]),
        "black box": _fraction(attack_flags.missed_by_gradients(probes)),
        "curve": _fraction(curve[-2]) - _fraction(curve[-1]),
    }


def _fraction(images: Tensor) -> float:
    return float(images.double().mean())
