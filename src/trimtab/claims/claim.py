"""A claim as one definition: the paper's statement and figures, the tests that judge it, and its measurement.

    @claim("MIX-4", "Mixture BN restores robustness ...", figures={...}, tests=[...], networks=[ADV, MIXED])
    def mixture_restores(bench): return {"MBN adv, robust": ..., ...}

The function takes a `Bench` for one seed and returns its rows: numbers by name (`PerImage` where they
are known image by image). Tests refer to rows by name and are declared with the claim, before any number is
known. Rows without a test are controls and context: they are reported, and do not affect the verdict.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trimtab.claims.scales import ROW_OF
from trimtab.claims.verdicts import Needs, Test
from trimtab.types import BadInput

if TYPE_CHECKING:
    from trimtab.claims.bench import Bench
    from trimtab.claims.nets import Net
    from trimtab.claims.scales import Scale

PAPERS = ("MIX", "ADV", "APA", "ADA", "LIG")
"""Prefixes of the ids, in the order of the ledger."""


@dataclass(frozen=True, eq=False)
class Claim:
    """A claim of a paper, with its tests and its measurement."""

    id: str
    """Such as MIX-4."""
    sentence: str
    """The claim in one sentence."""
    figures: Mapping[str, str]
    """The paper's own figures, shown next to ours; only the direction is tested."""
    tests: Sequence[Test]
    """All of them must hold."""
    measure: Callable[[Bench], Mapping[str, Any]]
    """Returns the rows of one seed."""
    networks: Sequence[Net] | Callable[[Scale], Sequence[Net]] = ()
    """Networks that it uses: trained first, shared with other claims, counted once in a budget."""
    controls: Sequence[Net] = ()
    """Networks that only the first `Scale.seeds` seeds have."""
    headline: bool = False
    """Whether it is a main result, which gets more seeds."""
    by_product: tuple[str, ...] = ()
    """Scales at which it is measured on the networks of other claims, with their number of seeds."""
    needs: Sequence[Needs] = ()
    """Preconditions of the tests."""
    tables: Callable[[Scale], Any] | None = None
    """What else its numbers depend on: constants that are part of neither the scale nor the networks."""
    version: int = 1
    """Incremented whenever a change of `measure` alters results."""
    changed: str = ""
    """What was changed in tests or measurement after results of this claim were known, and why."""

    def nets(self, scale: Scale, seed: int = 0) -> list[Net]:
        """Return its networks at a scale and seed."""
        networks = self.networks(scale) if callable(self.networks) else self.networks
        return [*networks, *(self.controls if seed < scale.seeds else ())]

    def planned(self, scale: Scale) -> int:
        """Return the number of seeds at a scale."""
        return scale.headline if self.headline and scale.name not in self.by_product else scale.seeds

    def tested(self, scale: Scale, seed: int) -> set[str]:
        """Return the rows of a seed that its tests and preconditions need."""
        tests = [test for test in self.tests if seed < scale.seeds or not test.controlled]
        return {name for test in tests for name in test.names} | {need.name for need in self.needs}

    @property
    def paper(self) -> str:
        """The paper, such as "mix"."""
        return self.id.partition("-")[0].lower()


def claim(
    id: str, sentence: str, *, figures: Mapping[str, str], tests: Sequence[Test], **more: Any
) -> Callable[[Callable[[Bench], Mapping[str, Any]]], Claim]:
    """Return a decorator that turns a function into the measurement of a claim.

    Args:
        id: Such as MIX-4.
        sentence: The claim in one sentence.
        figures: The paper's own figures.
        tests: The tests that judge it.
        more: Other fields of `Claim`.
    """
    return lambda measure: Claim(id, sentence, figures, tuple(tests), measure, **more)


def everything() -> dict[str, Claim]:
    """Return every claim of the five papers by its id, in the order of the papers."""
    from trimtab.claims import ada, adv, apa, lig, mix

    defined = [
        value
        for paper in (mix, adv, apa, ada, lig)
        for value in vars(paper).values()
        if isinstance(value, Claim)
    ]
    order = sorted(defined, key=lambda c: (PAPERS.index(c.paper.upper()), int(c.id.partition("-")[2])))
    return {claim.id: claim for claim in order}


def chosen(words: Sequence[str]) -> list[Claim]:
    """Return the claims named on a command line: ids, papers, `headline`, `wave1` or `all`."""
    known = everything()
    groups = {id: [id] for id in known} | {
        "ALL": [*known],
        "WAVE1": [*ROW_OF],
        "HEADLINE": [id for id, claim in known.items() if claim.headline],
        **{paper: [id for id in known if id.startswith(f"{paper}-")] for paper in PAPERS},
    }
    selected: dict[str, Claim] = {}
    for word in words:
        if word.upper() not in groups:
            near = difflib.get_close_matches(word.upper(), groups, 3)
            hint = f"did you mean {', '.join(near)}?" if near else "`trimtab reproduce --list` lists all"
            raise BadInput(f"there is no claim {word!r}; {hint}")
        selected |= {id: known[id] for id in groups[word.upper()]}
    return list(selected.values())
