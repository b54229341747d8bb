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
from trimtab.claims.scales import ROW_OF, scale_of
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
    times = ledger.times(out, scale)
    measured = {claim.id: ledger.read(claim, scale, out).rows for claim in claims}
    ordered = ledger.in_order(claims, scale, seeds)
    units = list(with_networks([Unit(claim.id, scale, seed, "") for claim, seed in ordered]))
    of_row = Counter(ROW_OF.get(unit.id) for unit in units)
    took: dict[Unit, float] = {}
    longest: dict[str, float] = {}
    for unit in units:
        seconds = times.get("networks" if unit.network else unit.id, {}).get(unit.network or str(unit.seed))
        if seconds is not None and (unit.network or unit.seed in measured[unit.id]):
            took[unit] = seconds
            longest[unit.kind] = max(seconds, longest.get(unit.kind, 0.0))
    left = 0.0
    for unit in units:
        if unit not in took:
            row = ROW_OF.get(unit.id) if scale == "desk" else None
            planned = row.hours * CORES * 3600 / of_row[row] if row else math.nan
            left += longest.get(unit.kind, planned)
    return Budget(len(units), len(took), sum(took.values()) / 3600, left / 3600)


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
            std = (test.judge(rows).detectable or math.nan) / power.detectable(1.0, len(rows), test.level)
            seeds = at.seeds if test.controlled else claim.planned(at)
            effects[str(test)] = power.detectable(std, seeds, test.level)
    return effects
