"""Before a run: what it costs, and the smallest effect that each test can find.

`detectable_before` takes the spread of the first edition (scale laptop in the same folder of results): where
that effect is larger than half of the paper's, a setting is too small, which is known before any number.
`budget` estimates a unit by the longest of its like (a network that was chosen may be a copy, which takes
nothing), else by the planned hours of its row.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trimtab.claims import ledger, power
from trimtab.claims.claim import Claim
from trimtab.claims.engines import Unit, with_networks
from trimtab.claims.scales import WAVE1, scale_of
from trimtab.claims.verdicts import Above

FIRST = "laptop"
"""The edition whose spread is used."""
CORES = 2
"""Number of cores that the planned hours assume."""


@dataclass(frozen=True)
class Budget:
    """The units of a run: networks to train, and measurements."""

    units: int
    """All of them."""
    done: int
    """Those with a result."""
    spent: float
    """Core hours that these took."""
    left: float
    """Estimated core hours of the others; NaN if nothing is known of some."""

    def __str__(self) -> str:
        left = "" if math.isnan(self.left) else f", about {self.left:.1f} are left"
        return f"{self.done} of {self.units} units are done; {self.spent:.1f} core hours spent{left}"


def budget(claims: Sequence[Claim], scale: str, out: Path, seeds: int | None = None) -> Budget:
    """Return the units of claims, and the hours that they took and will take.

    Args:
        claims: The claims.
        scale: Name of the scale.
        out: Folder of the results.
        seeds: Seeds per claim; by default the number that the scale plans.
    """
    seconds, rows = (
        ledger.times(out, scale),
        {claim.id: ledger.read(claim, scale, out).rows for claim in claims},
    )
    chosen = [Unit(claim.id, scale, seed, "") for claim, seed in ledger.in_order(claims, scale, seeds)]
    all_units = list(with_networks(chosen))
    row_of = {id: row for row in WAVE1 for id in row.ids} if scale == "desk" else {}
    per_row = Counter(row_of.get(unit.id) for unit in all_units)
    units: dict[str, list[float | None]] = {}  # seconds of the units of a kind; None of those to come
    planned: dict[str, float] = {}  # seconds of a unit of a kind
    for unit in all_units:
        kind = unit.networks[unit.network].key(unit.at, 0) if unit.network else unit.id
        took = seconds.get("networks" if unit.network else unit.id, {}).get(unit.network or str(unit.seed))
        valid = bool(unit.network) or unit.seed in rows[unit.id]
        units.setdefault(kind, []).append(took if valid else None)
        if row := row_of.get(unit.id):
            planned.setdefault(kind, row.hours * CORES * 3600 / per_row[row])
    left: list[float] = []
    spent, done = 0.0, 0
    for kind, all_seconds in units.items():
        known = [value for value in all_seconds if value is not None]
        each = max(known) if known else planned.get(kind, math.nan)
        left += [each] * (len(all_seconds) - len(known))
        spent, done = spent + sum(known), done + len(known)
    return Budget(done + len(left), done, spent / 3600, sum(left) / 3600)


def detectable_before(claim: Claim, scale: str, out: Path) -> dict[str, float]:
    """Return the effects that a scale can detect by the spread of the first edition, by test.

    Args:
        claim: The claim.
        scale: Name of the scale.
        out: Folder of the results, with those of the first edition.
    """
    rows = list(ledger.stored(out / FIRST / f"{claim.id}.json").get("rows", {}).values())
    at, effects = scale_of(scale, claim.paper), {}
    for test in claim.tests:
        if isinstance(test, Above) and len(rows) > 1 and all({*test.names} <= row.keys() for row in rows):
            measured = test.judge(rows).detectable or math.nan
            std = measured / power.detectable(1.0, len(rows), test.level)
            seeds = at.seeds if test.controlled else claim.planned(at)
            effects[str(test)] = power.detectable(std, seeds, test.level)
    return effects
