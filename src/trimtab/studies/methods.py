"""Which versions of attacks, conditions and constructions a study's numbers come from.

Every such method carries an integer `version`, raised when a change moves its numbers. A bench notes what it
was asked for; the ledger keeps it with the rows, and rows of a version that is no longer there are outdated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

from trimtab import attacks, construct, evaluate
from trimtab.evaluate.certified import Certified
from trimtab.keys import describe
from trimtab.studies import conditions


def used(method: Any) -> dict[str, int]:
    """Versions by name, of a method and of those that it contains.

    >>> used(evaluate.Attacked(attacks.PGD(attacks.Linf("8/255"))))
    {'Attacked': 1, 'PGD': 1}
    """
    return dict(_walk(describe(method)))


def changed(held: Mapping[str, int]) -> list[str]:
    """The methods whose version is another one now, or that are gone."""
    now = current()
    return [name for name, version in held.items() if now.get(name) != version]


def current() -> dict[str, int]:
    """The versions of all that studies may use."""
    places: tuple[ModuleType, ...] = (attacks, construct, evaluate, conditions)
    known = {name: value for place in places for name, value in vars(place).items()}
    known["Certified"] = Certified
    versions = {name: getattr(one, "version", None) for name, one in known.items() if isinstance(one, type)}
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
