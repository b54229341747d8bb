"""What would help this very model most, judged by what was tried on it and by nothing else.

An evaluation in several norm states is an experiment: the same images, other statistics. A state is advised
if it gains accuracy over the running statistics (the interval of the difference lies above 0) on unchanged
images, on disturbed ones, or under attack. The price is what it loses on the other two. Under attack, a gain
counts only if the state raised no flag: batch statistics that an attack did not follow are no defence.

Where didn't it help? A state that gained nothing is not advised, and the scorecard shows it all the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from trimtab.evaluate import Card
from trimtab.report.tables import (
    DISTURBED,
    Estimate,
    averaged,
    difference,
    estimates,
    mean,
    points,
    states,
)

ATTACKED = "under attack"
GROUPS = {"on unchanged images": ("clean",), "on disturbed images": DISTURBED, ATTACKED: ("attack",)}
"""Kinds of conditions, by what advice calls them; a gain is the mean over them."""


@dataclass(frozen=True)
class Advice:
    what: str
    """What to do, in a clause."""
    gain: str
    """The measured gain."""
    price: str
    """What it costs; numbers are measured."""
    command: str
    """How to do it, as Python; empty if this state has no short way."""
    size: float
    """The gain, by which advice is sorted."""


@dataclass(frozen=True)
class _Way:
    """How to bring a model into a norm state."""

    pattern: str
    what: str
    price: str
    command: str


_WAYS = (
    _Way(
        r"adapted per batch \(rho (?P<rho>[\d.]+)\)",
        "Adapt the statistics to every batch (rho {rho})",
        "an image's answer then depends on its batch",
        "adapted = trimtab.adapt.per_batch(model, rho={rho})",
    ),
    _Way(
        r"frozen on (?:the first )?(?P<n>\d+) images \(rho (?P<rho>[\d.]+)\)",
        "Recalibrate: estimate the statistics on {n} images as they come, then keep them (rho {rho})",
        "it takes {n} images of what the model will see, without labels",
        "fixed = trimtab.adapt.frozen(model, images, rho={rho})",
    ),
    _Way(
        r"branch (?P<name>.+)",
        "Use the branch {name}",
        "nothing at run time",
        "trimtab.release(model, branch={name!r})",
    ),
)


def advice(card: Card, batch_sizes: Mapping[int, Card] | None = None) -> tuple[Advice, ...]:
    """What helped, the largest gain first; of several rho, the best one.

    `batch_sizes` are cards of the same model that were measured with batches of that many images
    (`evaluate.run(..., chunk=8)`): from them follows how large a batch must be.
    """
    best: dict[str, Advice] = {}
    for state in states(card)[1:]:
        found = _advice_on(card, state, batch_sizes or {})
        family = state if state.startswith("branch ") else re.split(r"[\d(]", state)[0]
        if found and (family not in best or found.size > best[family].size):
            best[family] = found
    return tuple(sorted(best.values(), key=lambda one: -one.size))


def _advice_on(card: Card, state: str, batch_sizes: Mapping[int, Card]) -> Advice | None:
    gaps = gains(card, state)
    flags = [flag.name for flag in card.flags if flag.state == state]
    helped = {g: gap for g, gap in gaps.items() if gap.sure > 0 and not (flags and g == ATTACKED)}
    if not helped:
        return None
    first = max(helped, key=lambda group: helped[group].value)
    doubt = f", which this state's flags ({', '.join(flags)}) forbid to count" if flags else ""
    price = [
        f"{points(gap)} {group}{doubt if group == ATTACKED else ''}"
        for group, gap in gaps.items()
        if group != first
    ]
    way, words = _way(state)
    if way:
        price.append(way.price.format(**words))
    return Advice(
        what=way.what.format(**words) if way else f"Normalise as in “{state}”",
        gain=f"{points(helped[first])} {first}{_from_which(batch_sizes, state, first)}",
        price="; ".join(price) or "no other accuracy was measured",
        command=way.command.format(**words) if way else "",
        size=helped[first].value,
    )


def gains(card: Card, state: str) -> dict[str, Estimate]:
    """By how much a norm state is better than the reference, over the conditions measured in both."""
    here, there = estimates(card, state), estimates(card, states(card)[0])
    found = {}
    for group, kinds in GROUPS.items():
        both = [k for k in here if k[0] in kinds and k in there and averaged(*k)]
        gap = mean(difference(here[k], there[k]) for k in both)
        if gap:
            found[group] = gap
    return found


def pays_from(batch_sizes: Mapping[int, Card], state: str, group: str) -> int | None:
    """The smallest batch from which on every size that was tried gains."""
    smallest = None
    for size in sorted(batch_sizes, reverse=True):
        gap = gains(batch_sizes[size], state).get(group)
        if gap is None or gap.sure <= 0:
            break
        smallest = size
    return smallest


def _from_which(batch_sizes: Mapping[int, Card], state: str, group: str) -> str:
    tried = sorted(size for size, card in batch_sizes.items() if state in states(card)[1:])
    if not tried:
        return ""
    smallest = pays_from({size: batch_sizes[size] for size in tried}, state, group)
    sizes = ", ".join(map(str, tried))
    rows = [row for row in batch_sizes[tried[0]].rows if row.kind in GROUPS[group]]
    on = f"{rows[0].n} images under {', '.join(dict.fromkeys(row.condition for row in rows))}"
    if smallest is None:
        return f"; of batches of {sizes} (on {on}), not even the largest gained for certain"
    return f"; it pays from batches of {smallest} (tried: {sizes}, on {on})"


def _way(state: str) -> tuple[_Way | None, dict[str, str]]:
    for way in _WAYS:
        found = re.fullmatch(way.pattern, state)
        if found:
            return way, found.groupdict()
    return None, {}
