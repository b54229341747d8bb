"""What a card says, in words: the verdict in three sentences, and what each flag means.

Every number in them is a row of the card; where nothing was measured, that is what is said.
"""

from __future__ import annotations

from collections.abc import Sequence

from trimtab.evaluate import Card, trust
from trimtab.report.tables import (
    DISTURBED,
    Estimate,
    brief,
    difference,
    estimates,
    names,
    percent,
    states,
    unlike,
)

FLAGS = {
    "modes": "Part of the model still trains when it should only answer, so measuring it changes it.",
    "stochastic": "The same image gets different answers. An attack on one draw says little about the next.",
    "batch": "An image's answer depends on the images beside it, so an accuracy belongs to its batches.",
    "non-finite": "Some outputs are not numbers. Such images can be neither right nor attacked.",
    "normalisation": "The pixels do not arrive as in training; until that is mended, no number counts.",
    "size": "The images are not of the size that the network was made for.",
    "classes": "Model and images have other classes, or another order; a label may mean another thing to it.",
    "shift": "Another mean and deviation fit better: those of the model are wrong, or the images have moved.",
    "order": "The first images are of few classes, and so is what is estimated or judged on them.",
    "probabilities": "The model returns probabilities; attacks climb logits, and on these get stuck.",
    "no gradient": "For some images the loss has no slope to climb, so gradient attacks stand still.",
    "cut": "The model cuts the gradient off before it reaches the image, so gradient attacks cannot start.",
    "weak attack": "One step breaks more than many steps. That cannot be unless the many steps are misled.",
    "one step": "One step breaks far less than many: the model is fitted to single-step attacks.",
    "steps": "More iterations break fewer images. A sound attack can only gain from more.",
    "budget": "A larger budget breaks fewer images, although it contains the smaller one.",
    "unbounded": "Images stand although the attack may change them into anything. No classifier can do that.",
    "black box": "A search that never looks at gradients finds what gradients missed.",
    "curve": "The accuracy was still falling when the attack ended: it is an upper bound, not the value.",
    "constant": "It gives one class to every image, so no accuracy here says more than how common that is.",
    "untrained": "Its layers normalise with the numbers that PyTorch fills in before training.",
    "samples": "With this few images the true accuracy may be far from the one printed.",
}
"""Why each flag of the trust card matters."""
OF_ATTACKS = ("weak attack", "one step", "steps", "budget", "unbounded", "black box", "curve")
"""Flags that only attacks can raise."""


def strongest(card: Card, state: str) -> tuple[str, Estimate] | None:
    """The attack that leaves least in a norm state."""
    return _worst(card, state, ("attack",))


def harshest(card: Card, state: str) -> tuple[str, Estimate] | None:
    """The noise or corruption that leaves least in a norm state."""
    return _worst(card, state, DISTURBED)


def clean(card: Card, state: str) -> Estimate | None:
    return next((e for (kind, _), e in estimates(card, state).items() if kind == "clean"), None)


def checked(cards: Sequence[Card]) -> list[str]:
    """The flags that each of these cards could have raised."""
    attacked = all(any(row.kind == "attack" for row in card.rows) for card in cards)
    examined = attacked and all(card.provenance.get("examined", True) for card in cards)
    return [name for name in FLAGS if examined or name not in OF_ATTACKS]


def verdict(cards: Sequence[Card]) -> tuple[str, str, str]:
    """How good, how robust, how far to be believed."""
    return _of_one(cards[0]) if len(cards) == 1 else _of_several(cards)


def _of_one(card: Card) -> tuple[str, str, str]:
    state = states(card)[0]
    right = clean(card, state)
    if right is None:
        first = f"The accuracy of {card.model} on unchanged images of {card.data} was not measured."
    else:
        first = (
            f"{card.model} gets {percent(right.value)} of {right.n:,} images of {card.data} right "
            f"(95 % interval {100 * right.low:.1f} to {100 * right.high:.1f})."
        )
    return first, _under_stress(card, state), _trust(card, state)


def _under_stress(card: Card, state: str) -> str:
    attack, disturbance = strongest(card, state), harshest(card, state)
    parts = []
    if attack:
        parts.append(
            f"the strongest attack measured, “{brief(attack[0])}”, leaves {percent(attack[1].value)}"
        )
    elif stopped := [flag.name for flag in card.flags if flag.name in trust.STOPS and flag.state == state]:
        parts.append(f"no attack was tried, because the trust card stopped it ({_list(stopped)})")
    if certificate := next(
        (row for row in card.rows if row.kind == "certificate" and row.state == state), None
    ):
        radii = [name for name, share in certificate.figures.items() if name.startswith("radius") and share]
        reach = f", and some up to {radii[-1]}" if len(radii) > 1 else ""
        parts.append(f"{certificate.condition}, {percent(certificate.accuracy)} are certified right{reach}")
    if disturbance:
        parts.append(f"the harshest disturbance, “{disturbance[0]}”, leaves {percent(disturbance[1].value)}")
    said = "; ".join(parts) or "neither attacks nor disturbances were measured"
    return f"{said[0].upper()}{said[1:]}."


def _trust(card: Card, state: str) -> str:
    if not card.flags:
        return "The trust card raised no flag: nothing was found that speaks against these numbers."
    here = [flag.name for flag in card.flags if flag.state == state]
    elsewhere = sorted({flag.state for flag in card.flags} - {state})
    if not here:
        return f"No flag was raised in the norm state “{state}”, but some were in “{_list(elsewhere)}”."
    count = "one flag" if len(here) == 1 else f"{len(here)} flags"
    return f"Read them with care: the trust card raised {count} ({_list(here)})."


def _of_several(cards: Sequence[Card]) -> tuple[str, str, str]:
    first = _ahead("On unchanged images", cards, [clean(card, states(card)[0]) for card in cards])
    shared = set.intersection(
        *({row.condition for row in card.rows if row.kind == "attack"} for card in cards)
    )
    worst = []
    for card in cards:
        found = estimates(card, states(card)[0])
        faced = [found["attack", name] for name in shared if ("attack", name) in found]
        worst.append(min(faced, key=lambda e: e.value, default=None))
    second = _ahead("Under the strongest attack that all faced", cards, worst)
    flagged = [
        name
        for name, card in zip(names(cards), cards, strict=True)
        if any(flag.state == states(card)[0] for flag in card.flags)
    ]
    if not flagged:
        return first, second, "The trust card raised no flag for any of them in the first norm state."
    return first, second, f"Read them with care: the trust card raised flags for {_list(flagged)}."


def _ahead(where: str, cards: Sequence[Card], found: Sequence[Estimate | None]) -> str:
    called = names(cards)
    if len({states(card)[0] for card in cards}) > 1:
        called = tuple(f"{name} ({states(card)[0]})" for name, card in zip(called, cards, strict=True))
    measured = sorted(
        ((e, name) for e, name in zip(found, called, strict=True) if e), key=lambda one: -one[0].value
    )
    if len(measured) < 2:
        return f"{where}, there is nothing to compare: fewer than two models were measured."
    (best, leader), (next_best, follower) = measured[:2]
    said = f"{leader} has {percent(best.value)} and {follower} {percent(next_best.value)}"
    if unlike(cards):
        return f"{where}, {said}, but {unlike(cards)}, so that neither can be called ahead."
    if difference(best, next_best).sure > 0:
        return f"{where}, {leader} is ahead: {said}."
    return f"{where}, no model is clearly ahead: {said}."


def _worst(card: Card, state: str, kinds: Sequence[str]) -> tuple[str, Estimate] | None:
    fit = [(name, e) for (kind, name), e in estimates(card, state).items() if kind in kinds]
    return min(fit, key=lambda one: one[1].value, default=None)


def _list(items: Sequence[str]) -> str:
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)
