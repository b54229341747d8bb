"""The modules that commands use, imported at their first use, so that `--help` answers at once."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__all__ = [
    "adapt", "attacks", "certify", "claims", "console", "construct", "data", "evaluate", "measure", "models",
    "norm", "report", "train",
]  # fmt: skip

if TYPE_CHECKING:
    from trimtab import (
        adapt,
        attacks,
        certify,
        claims,
        construct,
        data,
        evaluate,
        measure,
        models,
        norm,
        report,
        train,
    )
    from trimtab.cli import console
else:

    class _Lazy:
        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, attribute: str) -> Any:
            return getattr(importlib.import_module(self._name), attribute)

    for _name in __all__:
        globals()[_name] = _Lazy("trimtab.cli.console" if _name == "console" else f"trimtab.{_name}")
