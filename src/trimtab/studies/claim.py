"""A claim is one definition: what the paper says, its figures, the tests that decide, and how to measure.

    @claim("MIX-4", "Mixture BN restores robustness ...", figures={...}, tests=[...], networks=[ADV, MIXED])
    def mixture_restores(bench): return {"MBN adv, robust": ..., ...}

The function gets a `Bench` for one seed and returns its rows: numbers by name, or (`unit="image"`) one value
per image and name. Tests name rows, and are declared with the claim: nothing is decided after a number was
seen. Rows that no test names are controls and context: they are reported, and no verdict rests on them.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trimtab.studies.verdicts import Needs, Test
from trimtab.types import BadInput

if TYPE_CHECKING:
    from trimtab.studies.bench import Bench
    from trimtab.studies.nets import Net
    from trimtab.studies.scales import Scale

PAPERS = ("MIX", "ADV", "APA", "ADA", "LIG")


@dataclass(frozen=True, eq=False)
class Claim:
    id: str
    sentence: str
    figures: Mapping[str, str]
    """The paper's own figures, for the side-by-side column: judged is only the direction."""
    tests: Sequence[Test]
    measure: Callable[[Bench], Mapping[str, Any]]
    """One seed's rows."""
    networks: Sequence[Net] | Callable[[Scale], Sequence[Net]] = ()
    """Those it may ask the bench for: trained first, shared with other claims, counted once in a budget."""
    headline: bool = False
    """One of those that come first, with more seeds."""
    unit: str = "seed"
    """What an interval is over: "seed", or "image" where training is not what varies."""
    needs: Sequence[Needs] = ()
    """What must hold for the tests to tell anything."""
    tables: Callable[[Scale], Any] | None = None
    """What else its numbers depend on: amounts of its own, which neither scale nor networks show."""
    minutes: float = 1.0
    """A guess of what measuring costs per seed at laptop scale, beyond the networks."""
    version: int = 1
    """Raised whenever a change of `measure` moves numbers."""

    def nets(self, scale: Scale) -> list[Net]:
        """Its networks at a scale."""
        return list(self.networks(scale) if callable(self.networks) else self.networks)

    @property
    def paper(self) -> str:
        return self.id.partition("-")[0].lower()


def claim(
    id: str, sentence: str, *, figures: Mapping[str, str], tests: Sequence[Test], **more: Any
) -> Callable[[Callable[[Bench], Mapping[str, Any]]], Claim]:
    """Make the decorated function the measurement of a claim."""
    return lambda measure: Claim(id, sentence, figures, tuple(tests), measure, **more)


def everything() -> dict[str, Claim]:
    """Every claim of the five papers by its id, in the order of the papers."""
    from trimtab.studies import ada, adv, apa, lig, mix

    defined = [
        value
        for paper in (mix, adv, apa, ada, lig)
        for value in vars(paper).values()
        if isinstance(value, Claim)
    ]
    order = sorted(defined, key=lambda one: (PAPERS.index(one.paper.upper()), int(one.id.partition("-")[2])))
    return {one.id: one for one in order}


def chosen(words: Sequence[str]) -> list[Claim]:
    """The claims that words on a command line mean: ids, papers, `headline` or `all`."""
    known = everything()
    found: dict[str, Claim] = {}
    for word in words:
        name = word.upper()
        if name == "ALL":
            found |= known
        elif name == "HEADLINE":
            found |= {id: one for id, one in known.items() if one.headline}
        elif name in PAPERS:
            found |= {id: one for id, one in known.items() if id.startswith(f"{name}-")}
        elif name in known:
            found[name] = known[name]
        else:
            near = difflib.get_close_matches(name, [*known, *PAPERS, "ALL", "HEADLINE"], 3)
            hint = f"did you mean {', '.join(near)}?" if near else "`trimtab reproduce --list` shows them all"
            raise BadInput(f"there is no claim {word!r}; {hint}")
    return list(found.values())
