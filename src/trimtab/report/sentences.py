"""A card in sentences: the verdict in three of them, and what each flag means.

Every number in them is a row of the card; where nothing was measured, the sentence says so.
"""

from __future__ import annotations

from collections.abc import Sequence

from trimtab.evaluate import Card, trust, unlike
from trimtab.evaluate.bn_modes import BNModeRecord
from trimtab.evaluate.records import CertificateRecord, CleanRecord, ConditionRecord
from trimtab.report.tables import CORRUPTED, Estimate, bn_modes, brief, difference, estimates, names, percent
from trimtab.types import listed

FLAGS = {
    "modes": "A submodule stays in training mode after eval(), so measuring the model changes it.",
    "stochastic": "Predictions for the same image vary. An attack on one sample says little about the next.",
    "batch": "Predictions depend on batch composition; the accuracy holds only for this batching.",
    "router": "The model chooses its statistics by the images, and an attacker can choose them too.",
    "non-finite": "Some logits are NaN or infinite. Such images can be neither classified nor attacked.",
    "normalization": "Pixels are not normalized as in training; until this is fixed, no number counts.",
    "size": "The images are not of the size that the network was trained for.",
    "classes": "Model and images have different classes, or another order, so labels may not match.",
    "shift": "Another mean and std fit better: the model's are wrong, or the images are from elsewhere.",
    "order": "The first images cover few classes, and so does whatever is estimated or measured on them.",
    "probabilities": "The model returns probabilities; attacks maximize losses of logits and stall on these.",
    "no gradient": "For some images the gradient of the loss is zero, so gradient attacks cannot move.",
    "cut": "The gradient does not reach the image, so gradient attacks cannot start.",
    "weak attack": "One step succeeds more often than many steps, so the many steps are misled.",
    "one step": "One step succeeds far less often than many: the model is fitted to single-step attacks.",
    "steps": "More iterations succeed on fewer images. A sound attack can only gain from more.",
    "budget": "A larger budget succeeds on fewer images, although it contains the smaller one.",
    "unbounded": "Images survive although any change is allowed. No classifier can do that.",
    "black box": "A search without gradients succeeds where gradient attacks failed.",
    "curve": "The accuracy was still falling at the attack's last step: it is an upper bound.",
    "constant": "Every image gets the same class, so each accuracy is the frequency of that class.",
    "untrained": "The running statistics are those that PyTorch initializes, from before any training.",
    "samples": "With this few images the true accuracy may be far from the printed one.",
}
"""Why each flag of the trust card matters."""
OF_ATTACKS = ("weak attack", "one step", "steps", "budget", "unbounded", "black box", "curve")
"""Flags that only attacks can raise."""

Named = tuple[ConditionRecord, Estimate]


def strongest(card: Card, bn_mode: BNModeRecord) -> Named | None:
    """Return the attack with the lowest accuracy in a BN mode."""
    return _worst(card, bn_mode, ("attack",))


def harshest(card: Card, bn_mode: BNModeRecord) -> Named | None:
    """Return the noise or corruption with the lowest accuracy in a BN mode."""
    return _worst(card, bn_mode, CORRUPTED)


def clean(card: Card, bn_mode: BNModeRecord) -> Estimate | None:
    """Return the clean accuracy in a BN mode."""
    return estimates(card, bn_mode).get(CleanRecord())


def checked(cards: Sequence[Card]) -> list[str]:
    """Return the flags that each of these cards could have raised."""
    attacked = all(any(row.kind == "attack" for row in card.rows) for card in cards)
    examined = attacked and all(card.provenance.get("examined", True) for card in cards)
    return [name for name in FLAGS if examined or name not in OF_ATTACKS]


def flags_in(card: Card, bn_mode: BNModeRecord) -> list[str]:
    """Return the names of the flags that a BN mode raised."""
    return list(dict.fromkeys(flag.name for flag in card.flags if flag.bn_mode == bn_mode))


def verdict(cards: Sequence[Card]) -> tuple[str, str, str]:
    """Say how accurate, how robust, and how far to be trusted."""
    return _of_one(cards[0]) if len(cards) == 1 else _of_several(cards)


def _of_one(card: Card) -> tuple[str, str, str]:
    mode = bn_modes(card)[0]
    accuracy = clean(card, mode)
    if accuracy is None:
        first = f"The accuracy of {card.model} on clean images of {card.data} was not measured."
    else:
        first = (
            f"{card.model} classifies {percent(accuracy.value)} of {accuracy.n:,} clean images "
            f"of {card.data} correctly (95 % interval {100 * accuracy.low:.1f} to {100 * accuracy.high:.1f})."
        )
    return first, _under_stress(card, mode), _trust(card, mode)


def _under_stress(card: Card, mode: BNModeRecord) -> str:
    attack, corruption = strongest(card, mode), harshest(card, mode)
    parts = []
    if attack:
        parts.append(
            f"accuracy under the strongest attack measured, {brief(attack[0])}, is {percent(attack[1].value)}"
        )
    elif stopped := [name for name in flags_in(card, mode) if name in trust.STOPS]:
        parts.append(f"no attack was run, because of the trust card's flags ({listed(stopped)})")
    certified = [
        row for row in card.rows if isinstance(row.condition, CertificateRecord) and row.bn_mode == mode
    ]
    for row in certified[:1]:
        radii = [radius for radius, fraction in row.curve.points if fraction] if row.curve else []
        reach = f", some up to an l2 radius of {radii[-1]:g}" if len(radii) > 1 else ""
        parts.append(f"{row.condition}, {percent(row.accuracy)} are certified correctly{reach}")
    if corruption:
        condition, estimate = corruption
        parts.append(f"accuracy under the harshest corruption, {condition}, is {percent(estimate.value)}")
    text = "; ".join(parts) or "neither attacks nor corruptions were measured"
    return f"{text[0].upper()}{text[1:]}."


def _trust(card: Card, mode: BNModeRecord) -> str:
    if not card.flags:
        return "The trust card raised no flag."
    here = flags_in(card, mode)
    elsewhere = sorted({str(flag.bn_mode) for flag in card.flags if flag.bn_mode != mode})
    if not here:
        return f"The trust card raised no flag in BN mode “{mode}”, but some in “{listed(elsewhere)}”."
    raised = "one flag" if len(here) == 1 else f"{len(here)} flags"
    return (
        f"Read these numbers with care: the trust card raised {raised} in BN mode “{mode}” ({listed(here)})."
    )


def _of_several(cards: Sequence[Card]) -> tuple[str, str, str]:
    first = _ahead("On clean images", cards, [clean(card, bn_modes(card)[0]) for card in cards])
    shared = set.intersection(
        *({row.condition for row in card.rows if row.kind == "attack"} for card in cards)
    )
    worst = []
    for card in cards:
        by_condition = estimates(card, bn_modes(card)[0])
        common = [by_condition[condition] for condition in shared if condition in by_condition]
        worst.append(min(common, key=lambda e: e.value, default=None))
    second = _ahead("Under the strongest attack that was run on all", cards, worst)
    labeled = list(zip(names(cards), cards, strict=True))
    flagged = [name for name, card in labeled if flags_in(card, bn_modes(card)[0])]
    others = [name for name, card in labeled if any(flag.bn_mode != bn_modes(card)[0] for flag in card.flags)]
    if flagged:
        third = f"Read these numbers with care: the trust card raised flags for {listed(flagged)}."
    else:
        third = "The trust card raised no flag for any of them in the BN modes shown here."
    if others:
        third += f" In other BN modes it raised flags for {listed(others)}."
    return first, second, third


def _ahead(where: str, cards: Sequence[Card], compared: Sequence[Estimate | None]) -> str:
    labels = names(cards)
    if len({bn_modes(card)[0] for card in cards}) > 1:
        labels = tuple(f"{name} ({bn_modes(card)[0]})" for name, card in zip(labels, cards, strict=True))
    measured = sorted(
        ((e, name) for e, name in zip(compared, labels, strict=True) if e), key=lambda pair: -pair[0].value
    )
    if len(measured) < 2:
        return f"{where}, there is nothing to compare: fewer than two models were measured."
    (best, leader), (next_best, follower) = measured[:2]
    numbers = f"{leader} has {percent(best.value)} and {follower} {percent(next_best.value)}"
    if unlike(cards):
        return f"{where}, {numbers}, but {unlike(cards)}, so they cannot be compared."
    if difference(best, next_best).significant > 0:
        return f"{where}, {leader} is ahead: {numbers}."
    return f"{where}, no difference is significant: {numbers}."


def _worst(card: Card, mode: BNModeRecord, kinds: Sequence[str]) -> Named | None:
    candidates = [(c, e) for c, e in estimates(card, mode).items() if c.kind in kinds]
    return min(candidates, key=lambda candidate: candidate[1].value, default=None)
