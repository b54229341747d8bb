"""Which charts the cards call for: one for whatever was measured often enough to be a curve or a map."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from trimtab.evaluate import Card
from trimtab.report import plots, tables
from trimtab.report.tables import Estimate, brief, estimates, names, states

Points = TypeVar("Points")


def charts(cards: Sequence[Card], batch_sizes: Mapping[str, Mapping[int, Card]]) -> Iterator[plots.Chart]:
    """All charts of these cards, the most telling first."""
    yield from _overview(cards)
    yield from _iterations(cards)
    yield from _certified(cards)
    yield from _corruptions(cards)
    yield from _rhos(cards)
    yield from _batch_sizes(batch_sizes)


def _overview(cards: Sequence[Card]) -> Iterator[plots.Chart]:
    if len(cards) == 1:
        drawn = tables.short(tables.grid(cards[0]))
    else:
        drawn = tables.comparison([_reference(card) for card in cards])
    shortened = [brief(line.name) for line in drawn.lines]
    clear = len(set(shortened)) == len(shortened)
    called = shortened if clear else [line.name for line in drawn.lines]
    groups = {
        column: {
            name: _point(cell)
            for name, line in zip(called, drawn.lines, strict=True)
            if (cell := line.cells[i]) and cell.share
        }
        for i, column in enumerate(drawn.columns)
    }
    for part in _eights(groups):
        yield plots.overview(part)


def _iterations(cards: Sequence[Card]) -> Iterator[plots.Chart]:
    by_attack: dict[str, dict[str, dict[float, float]]] = {}
    for name, card in _shown(cards):
        for row in card.rows:
            points = tables.curve(row, tables.ITERATION)
            if len(points) > 1:
                by_attack.setdefault(row.condition, {}).setdefault(_series(cards, name, row.state), points)
    for attack, series in by_attack.items():
        for part in _eights(series):
            yield plots.iteration_curve(part, f"Accuracy over iterations: {brief(attack)}")


def _certified(cards: Sequence[Card]) -> Iterator[plots.Chart]:
    series = {}
    for name, card in _shown(cards):
        for row in card.rows:
            points = tables.curve(row, tables.RADIUS)
            if points:
                series[f"{_series(cards, name, row.state)}: {row.condition}"] = points
    for part in _eights(series):
        yield plots.certified_accuracy(part)


def _corruptions(cards: Sequence[Card]) -> Iterator[plots.Chart]:
    for name, card in _shown(cards):
        for state in states(card):
            table: dict[str, dict[int, float]] = {}
            for (kind, condition), found in estimates(card, state).items():
                named = re.fullmatch(r"(.+), severity (\d)", condition)
                if kind == "corruption" and named:
                    table.setdefault(named[1], {})[int(named[2])] = found.value
            if sum(map(len, table.values())) > 2:
                yield plots.corruption_map(table, f"Accuracy under corruption: {_series(cards, name, state)}")


def _rhos(cards: Sequence[Card]) -> Iterator[plots.Chart]:
    for name, card in zip(names(cards), cards, strict=True):
        at = {
            float(found[1]): state
            for state in states(card)
            if (found := re.fullmatch(r"adapted per batch \(rho ([\d.]+)\)", state))
        }
        if len(at) < 2:
            continue
        if tables.REFERENCE in states(card):
            at[0.0] = tables.REFERENCE
        series: dict[str, dict[float, plots.Point]] = {}
        for rho, state in at.items():
            for group, estimate in _groups(card, state).items():
                series.setdefault(group, {})[rho] = _point(estimate)
        yield plots.rho_curve(series, f"How much of the batch's statistics to take: {name}")


def _batch_sizes(batch_sizes: Mapping[str, Mapping[int, Card]]) -> Iterator[plots.Chart]:
    for name, by_size in batch_sizes.items():
        series: dict[str, dict[float, plots.Point]] = {}
        for size, card in by_size.items():
            for state in states(card):
                for group, found in _groups(card, state).items():
                    if group == "disturbed":
                        series.setdefault(state, {})[size] = _point(found)
        if series:
            yield plots.batch_size_curve(series, f"Disturbed images, batch by batch: {name}")


def _groups(card: Card, state: str) -> dict[str, Estimate]:
    found = estimates(card, state)
    kinds = {"unchanged": ("clean",), "disturbed": tables.DISTURBED, "attacked": ("attack",)}
    held = {
        group: tables.mean(e for k, e in found.items() if k[0] in of and tables.averaged(*k))
        for group, of in kinds.items()
    }
    return {group: e for group, e in held.items() if e}


def _shown(cards: Sequence[Card]) -> Iterator[tuple[str, Card]]:
    """Of one card every norm state; of several the reference, so that charts stay legible."""
    for name, card in zip(names(cards), cards, strict=True):
        yield name, card if len(cards) == 1 else _reference(card)


def _reference(card: Card) -> Card:
    first = states(card)[0]
    return replace(card, rows=tuple(row for row in card.rows if row.state == first))


def _series(cards: Sequence[Card], name: str, state: str) -> str:
    return state if len(cards) == 1 else name


def _point(found: Estimate) -> tuple[float, float, float]:
    return found.value, found.low, found.high


def _eights(groups: Mapping[str, Points]) -> Iterator[dict[str, Points]]:
    """As many series at a time as a chart tells apart."""
    held = list(groups.items())
    for start in range(0, len(held), len(plots.PALETTE)):
        yield dict(held[start : start + len(plots.PALETTE)])
