"""Inspect, adapt, attack, train and certify image classifiers through their batch-norm statistics."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "steer": "norm", "release": "norm", "add_branch": "norm", "use": "norm", "audit": "norm",
    "load": "models", "save": "models",
}  # fmt: skip
"""Where the names that users type at the top level live; resolved on first use, so importing is instant."""
_FOLDERS = (
    "adapt",
    "attacks",
    "certify",
    "construct",
    "data",
    "evaluate",
    "measure",
    "models",
    "norm",
    "report",
    "train",
)

__all__ = [*_HOMES, *_FOLDERS]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"trimtab.{_HOMES[name]}"), name)
    if name in _FOLDERS:
        return importlib.import_module(f"trimtab.{name}")
    raise AttributeError(f"module 'trimtab' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
