"""What would help this model most, based only on what was tried on it.

An evaluation in several BN modes is an experiment: the same images, other statistics. A mode is advised if it
gains accuracy over the running statistics (the interval of the difference lies above 0) on clean images, on
corrupted ones, or under attack. The price is what it loses on the other two. Under attack, a gain counts only
if the mode raised no flag: batch statistics that an attack did not follow are no defense.

Where it does not help: a mode that gained nothing is not advised; the scorecard shows it all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trimtab.evaluate import BranchMode, Card, FrozenMode, PerBatchMode
from trimtab.evaluate.bn_modes import BNModeRecord
from trimtab.report.tables import CORRUPTED, Estimate, averaged, bn_modes, difference, estimates, mean, points

ATTACKED = "under attack"
GROUPS = {"on clean images": ("clean",), "on corrupted images": CORRUPTED, ATTACKED: ("attack",)}
"""Kinds of conditions, by what advice calls them; a gain is the mean over them."""


@dataclass(frozen=True)
class Advice:
    """One BN mode that helped."""

    what: str
    """What to do, in a clause."""
    gain: str
    """The measured gain."""
    price: str
    """What it costs; numbers are measured."""
    command: str
    """How to do it, as Python; empty for a mode without a short command."""
    size: float
    """The gain, by which advice is sorted."""
    batches: str = ""
    """A separate experiment on the batch size that the mode needs; empty if there was none."""


@dataclass(frozen=True)
class _Recipe:
    """How to bring a model into a BN mode."""

    what: str
    command: str = ""
    price: str = ""


def _recipe(mode: BNModeRecord) -> _Recipe:
    if isinstance(mode, PerBatchMode):
        blend = "" if mode.blend_of == "std" else f", blend_of={mode.blend_of!r}"
        return _Recipe(
            f"Adapt the statistics to every batch (rho {mode.rho:g}{blend and f' of {mode.blend_of}'})",
            f"adapted = trimtab.adapt.per_batch(model, rho={mode.rho!r}{blend})",
            "predictions then depend on batch composition",
        )
    if isinstance(mode, FrozenMode):
        blend = "" if mode.blend_of == "std" else f", blend_of={mode.blend_of!r}"
        return _Recipe(
            f"Recalibrate: re-estimate the statistics once on {mode.images} images as they will be met, then "
            f"keep them (rho {mode.rho:g}{blend and f' of {mode.blend_of}'})",
            f"fixed = trimtab.adapt.frozen(model, images, rho={mode.rho!r}{blend})",
            f"it takes {mode.images} images of what the model will meet, without labels",
        )
    if isinstance(mode, BranchMode):
        return _Recipe(
            f"Use the branch {mode.name}",
            f"trimtab.release(model, branch={mode.name!r})",
            "nothing at run time",
        )
    return _Recipe(f"Normalize as in the BN mode “{mode}”")


def advice(card: Card, batch_sizes: Mapping[int, Card] | None = None) -> tuple[Advice, ...]:
    """Return what helped, the largest gain first; of several rho, the best one.

    Args:
        card: an evaluation in several BN modes.
        batch_sizes: cards of the same model, measured with batches of that many images
            (`evaluate.run(..., chunk=8)`): they show how large a batch must be.
    """
    best: dict[tuple[str, str], Advice] = {}
    for mode in bn_modes(card)[1:]:
        advised = _advice_on(card, mode, batch_sizes or {})
        family = (mode.kind, mode.name if isinstance(mode, BranchMode) else "")
        if advised and (family not in best or advised.size > best[family].size):
            best[family] = advised
    return tuple(sorted(best.values(), key=lambda advised: -advised.size))


def _advice_on(card: Card, mode: BNModeRecord, batch_sizes: Mapping[int, Card]) -> Advice | None:
    gaps = gains(card, mode)
    flags = [flag.name for flag in card.flags if flag.bn_mode == mode]
    helped = {g: gap for g, gap in gaps.items() if gap.significant > 0 and not (flags and g == ATTACKED)}
    if not helped:
        return None
    first = max(helped, key=lambda group: helped[group].value)
    warning = f", not counted because of this mode's flags ({', '.join(flags)})" if flags else ""
    recipe = _recipe(mode)
    price = [
        f"{points(gap)} {group}{warning if group == ATTACKED else ''}"
        for group, gap in gaps.items()
        if group != first
    ]
    price += [recipe.price] if recipe.price else []
    return Advice(
        what=recipe.what,
        gain=f"{points(helped[first])} {first}{_batch_of(card, mode)}",
        price="; ".join(price) or "no other accuracy was measured",
        command=recipe.command,
        size=helped[first].value,
        batches=_from_which(batch_sizes, mode, first),
    )


def gains(card: Card, mode: BNModeRecord) -> dict[str, Estimate]:
    """Return how much better a BN mode is than the reference, over the conditions measured in both."""
    here, there = estimates(card, mode), estimates(card, bn_modes(card)[0])
    by_group = {}
    for group, kinds in GROUPS.items():
        both = [c for c in here if c.kind in kinds and c in there and averaged(c)]
        gap = mean(difference(here[c], there[c]) for c in both)
        if gap:
            by_group[group] = gap
    return by_group


def pays_from(batch_sizes: Mapping[int, Card], mode: BNModeRecord, group: str) -> int | None:
    """Return the smallest batch from which on every size that was tried gains."""
    smallest = None
    for size in sorted(batch_sizes, reverse=True):
        gap = gains(batch_sizes[size], mode).get(group)
        if gap is None or gap.significant <= 0:
            break
        smallest = size
    return smallest


def _batch_of(card: Card, mode: BNModeRecord) -> str:
    """The batches in which the gain was measured, where they matter."""
    sizes = sorted({row.batch_size for row in card.rows if row.bn_mode == mode and row.batch_size})
    return f", in batches of {' and '.join(map(str, sizes))}" if sizes else ""


def _from_which(batch_sizes: Mapping[int, Card], mode: BNModeRecord, group: str) -> str:
    """What the experiment with several batch sizes shows, with its own gain, images and conditions."""
    tried = sorted(size for size, card in batch_sizes.items() if mode in bn_modes(card)[1:])
    if not tried:
        return ""
    smallest = pays_from({size: batch_sizes[size] for size in tried}, mode, group)
    rows = [row for row in batch_sizes[tried[0]].rows if row.kind in GROUPS[group]]
    if not rows:
        return ""
    conditions = ", ".join(dict.fromkeys(str(row.condition) for row in rows))
    where = f"on {rows[0].n} images under {conditions}; tried: {', '.join(map(str, tried))}"
    if smallest is None:
        return f"no gain that is significant at every larger size ({where})"
    gap = gains(batch_sizes[smallest], mode)[group]
    return f"it gains from batches of {smallest} on: {points(gap)} at {smallest} ({where})"
