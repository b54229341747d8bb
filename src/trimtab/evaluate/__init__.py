"""Evaluation that can be trusted, killed and resumed: cells of model x condition x BN mode x seed.

driver       run: a suite, and the trust card over it      suites       what quick, standard and full hold
conditions   what is done to the images (analysis,         bn_modes     which statistics normalize
             certified)
cells        what determines a result, and its key         engine       cells in chunks, over processes
                                                                        (chunks, collective)
store        where results are kept                        format1      reads old cards
trust        flags (model_flags, attack_flags)             probes       the measurements that they rest on
records      conditions as rows store them                 card         rows, flags, provenance
runs         list, compare, export                         images       stored adversarial images
"""

from __future__ import annotations

from typing import Any

from trimtab.evaluate import trust
from trimtab.evaluate.analysis import Shifted, Similar
from trimtab.evaluate.bn_modes import BNMode, BranchMode, FrozenMode, PerBatchMode, RunningMode
from trimtab.evaluate.card import Card, Flag, Row, Status
from trimtab.evaluate.conditions import Attacked, Clean, Condition, Corrupted, Noise
from trimtab.evaluate.driver import run
from trimtab.evaluate.images import images, rescore
from trimtab.evaluate.runs import StoredRun, compare, export, find, runs
from trimtab.evaluate.store import Store
from trimtab.evaluate.suites import SUITES

__all__ = [
    "SUITES", "Attacked", "BNMode", "BranchMode", "Card", "Clean", "Condition", "Corrupted", "Flag",
    "FrozenMode", "Noise", "PerBatchMode", "Row", "RunningMode", "Shifted", "Similar", "Status", "Store",
    "StoredRun", "compare", "export", "find", "images", "rescore", "run", "runs", "trust",
]  # fmt: skip

_RENAMED = {
    "NormState": "BNMode",
    "Running": "RunningMode",
    "Branch": "BranchMode",
    "PerBatch": "PerBatchMode",
    "Frozen": "FrozenMode",
    "Progress": "Status",
    "Run": "StoredRun",
}
"""Old names, which warn."""


def __getattr__(name: str) -> Any:
    if name in _RENAMED:
        import warnings

        new = _RENAMED[name]
        warnings.warn(f"evaluate.{name} is now evaluate.{new}", DeprecationWarning, stacklevel=2)
        return globals()[new]
    raise AttributeError(f"module 'trimtab.evaluate' has no attribute {name!r}")
