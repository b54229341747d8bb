"""The versions of attacks, conditions and constructions that measured a study's rows.

Every such method has an integer `version`, incremented when a change alters its results. A bench records the
methods that it uses; the ledger stores them with the rows, and rows of an older version are outdated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

from trimtab import attacks, construct, evaluate
from trimtab.claims import conditions
from trimtab.evaluate.certified import Certified
from trimtab.runtime.fingerprint import describe


def used(method: Any) -> dict[str, int]:
    """Return versions by name, of a method and of those that it contains.

    >>> used(evaluate.Attacked(attacks.PGD(attacks.Linf("8/255"))))
    {'Attacked': 1, 'PGD': 1}
    """
    return dict(_walk(describe(method)))


def changed(recorded: Mapping[str, int]) -> list[str]:
    """Return the methods whose version is different now, or that no longer exist."""
    now = current()
    return [name for name, version in recorded.items() if now.get(name) != version]


def current() -> dict[str, int]:
    """Return the versions of all methods that studies may use."""
    places: tuple[ModuleType, ...] = (attacks, construct, evaluate, conditions)
    known = {name: value for place in places for name, value in vars(place).items()}
    known["Certified"] = Certified
    versions = {
        name: getattr(kind, "version", None) for name, kind in known.items() if isinstance(kind, type)
    }
    return {name: version for name, version in versions.items() if isinstance(version, int)}


def _walk(described: Any) -> Iterator[tuple[str, int]]:
    if isinstance(described, Mapping):
        if "is" in described and "version" in described:
            yield described["is"], described["version"]
        for inner in described.values():
            yield from _walk(inner)
    elif isinstance(described, list):
        for inner in described:
            yield from _walk(inner)
