"""A griffe extension: the default of `field(default_factory=lambda: X)` is shown as X."""

from __future__ import annotations

import re
from typing import Any

import griffe


class Defaults(griffe.Extension):
    """Rewrite the parameters of dataclasses, after griffe has made them of the fields."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Visit a loaded package.

        Args:
            pkg: The package.
        """
        self._visit(pkg)

    def _visit(self, thing: griffe.Object) -> None:
        for member in thing.members.values():
            if isinstance(member, griffe.Module | griffe.Class):
                self._visit(member)
            elif isinstance(member, griffe.Function) and member.name == "__init__":
                for parameter in member.parameters:
                    value = re.fullmatch(r"\(lambda: (.*)\)\(\)", str(parameter.default), re.S)
                    if value:
                        parameter.default = value.group(1)
