"""The versions of attacks, conditions and constructions that measured a study's rows.

Every such method has an integer `version`, incremented when a change alters its results. A bench records the
methods that it uses; the ledger stores them with the rows, and rows of an older version are outdated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trimtab import attacks, construct, evaluate
from trimtab.claims import conditions
from trimtab.evaluate import certified
from trimtab.runtime.fingerprint import describe

PLACES = (attacks, construct, evaluate, certified, conditions)
"""Where methods that studies may use are defined."""


def used(method: Any) -> dict[str, int]:
    """Return versions by name, of a method and of those that it contains.

    >>> used(evaluate.Attacked(attacks.PGD(attacks.Linf("8/255"))))
    {'Attacked': 1, 'PGD': 1}
    """
    return dict(_walk(describe(method)))


def changed(recorded: Mapping[str, int]) -> list[str]:
    """Return the methods whose version is different now, or that no longer exist."""
    versions = {
        name: [getattr(getattr(place, name, None), "version", None) for place in PLACES] for name in recorded
    }
    return [name for name, version in recorded.items() if version not in versions[name]]


def _walk(described: Any) -> Iterator[tuple[str, int]]:
    if isinstance(described, Mapping):
        if "is" in described and "version" in described:
            yield described["is"], described["version"]
        for inner in described.values():
            yield from _walk(inner)
    elif isinstance(described, list):
        for inner in described:
            yield from _walk(inner)
