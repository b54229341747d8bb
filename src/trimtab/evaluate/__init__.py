"""Evaluation that can be trusted, killed and resumed: cells of model x condition x BN mode x seed.

driver       run: a suite, and the trust card over it      suites       what quick, standard and full hold
conditions   what is done to the images (analysis,         bn_modes     which statistics normalize
             certified, published)
cells        what determines a result, and its key         engine       cells in chunks, over processes
                                                                        (chunks, collective)
store        where results are kept                        format1      reads old cards
trust        flags (model_flags, attack_flags)             probes       the measurements that they rest on
records      conditions as rows store them                 card         rows, flags, provenance
stored_runs  list, compare, export                         stored_images  adversarial images
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trimtab.evaluate import trust
    from trimtab.evaluate.analysis import Shifted, Similar
    from trimtab.evaluate.bn_modes import BNMode, BranchMode, FrozenMode, PerBatchMode, RunningMode
    from trimtab.evaluate.card import Card, EvaluationStatus, Flag, Row
    from trimtab.evaluate.conditions import Attacked, Clean, Condition, Corrupted, Noise
    from trimtab.evaluate.driver import run
    from trimtab.evaluate.store import Store
    from trimtab.evaluate.stored_images import images, rescore
    from trimtab.evaluate.stored_runs import StoredRun, compare, export, find, runs, unlike
    from trimtab.evaluate.suites import SUITES

_HOMES = {
    "Shifted": "analysis", "Similar": "analysis",
    "BNMode": "bn_modes", "BranchMode": "bn_modes", "FrozenMode": "bn_modes", "PerBatchMode": "bn_modes",
    "RunningMode": "bn_modes",
    "Card": "card", "EvaluationStatus": "card", "Flag": "card", "Row": "card",
    "Attacked": "conditions", "Clean": "conditions", "Condition": "conditions", "Corrupted": "conditions",
    "Noise": "conditions",
    "run": "driver",
    "Store": "store",
    "images": "stored_images", "rescore": "stored_images",
    "StoredRun": "stored_runs", "compare": "stored_runs", "export": "stored_runs", "find": "stored_runs",
    "runs": "stored_runs", "unlike": "stored_runs",
    "SUITES": "suites",
}  # fmt: skip
"""Where each name lives; resolved on first use, so that listing stored runs imports no torch."""

__all__ = [
    "SUITES", "Attacked", "BNMode", "BranchMode", "Card", "Clean", "Condition", "Corrupted",
    "EvaluationStatus", "Flag", "FrozenMode", "Noise", "PerBatchMode", "Row", "RunningMode", "Shifted",
    "Similar", "Store", "StoredRun", "compare", "export", "find", "images", "rescore", "run", "runs",
    "trust", "unlike",
]  # fmt: skip

_RENAMED = {
    "NormState": "BNMode",
    "Running": "RunningMode",
    "Branch": "BranchMode",
    "PerBatch": "PerBatchMode",
    "Frozen": "FrozenMode",
    "Progress": "EvaluationStatus",
    "Status": "EvaluationStatus",
    "Run": "StoredRun",
}
"""Old names, which warn."""


def __getattr__(name: str) -> Any:
    if name == "trust":
        return importlib.import_module("trimtab.evaluate.trust")
    if name in _RENAMED:
        import warnings

        new = _RENAMED[name]
        warnings.warn(f"evaluate.{name} is now evaluate.{new}", DeprecationWarning, stacklevel=2)
        name = new
    if name not in _HOMES:
        raise AttributeError(f"module 'trimtab.evaluate' has no attribute {name!r}")
    return getattr(importlib.import_module(f"trimtab.evaluate.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
