"""Which charts the cards call for: one for each curve or map that was measured at enough points."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from trimtab.evaluate import Card, PerBatchMode, RunningMode
from trimtab.evaluate.bn_modes import BNModeRecord
from trimtab.evaluate.records import AttackRecord, ConditionRecord, CorruptionRecord
from trimtab.report import plots, tables
from trimtab.report.tables import Estimate, bn_modes, brief, estimates, names

Points = TypeVar("Points")


def charts(cards: Sequence[Card], batch_sizes: Mapping[str, Mapping[int, Card]]) -> Iterator[plots.Chart]:
    """Yield all charts of these cards, the most informative first.

    Args:
        cards: one card, or several to compare.
        batch_sizes: per model, cards that were measured with batches of that many images.
    """
    yield from _overview(cards)
    yield from _iterations(cards)
    yield from _certified(cards)
    yield from _corruptions(cards)
    yield from _rhos(cards)
    yield from _batch_sizes(batch_sizes)


def _overview(cards: Sequence[Card]) -> Iterator[plots.Chart]:
    if len(cards) == 1:
        grid = tables.short(tables.grid(cards[0]))
    else:
        grid = tables.comparison([_reference(card) for card in cards])
    shortened = [brief(line.condition) if line.condition else line.name for line in grid.lines]
    distinct = len(set(shortened)) == len(shortened)
    labels = shortened if distinct else [line.name for line in grid.lines]
    groups = {
        column: {
            label: _point(cell)
            for label, line in zip(labels, grid.lines, strict=True)
            if (cell := line.cells[i]) and cell.percentage
        }
        for i, column in enumerate(grid.columns)
    }
    for part in _eights(groups):
        yield plots.overview(part)


def _iterations(cards: Sequence[Card]) -> Iterator[plots.Chart]:
    by_attack: dict[ConditionRecord, dict[str, dict[float, float]]] = {}
    for name, card in _shown(cards):
        for row in card.rows:
            if row.curve and row.curve.axis == "iterations" and len(row.curve.points) > 1:
                series = by_attack.setdefault(row.condition, {})
                series.setdefault(_series(cards, name, row.bn_mode), dict(row.curve.points))
    for attack, series in by_attack.items():
        for part in _eights(series):
            title = attack.brief if isinstance(attack, AttackRecord) else str(attack)
            yield plots.iteration_curve(part, f"Accuracy over iterations: {title}")


def _certified(cards: Sequence[Card]) -> Iterator[plots.Chart]:
    series = {}
    for name, card in _shown(cards):
        for row in card.rows:
            if row.curve and row.curve.axis == "radius":
                series[f"{_series(cards, name, row.bn_mode)}: {row.condition}"] = dict(row.curve.points)
    for part in _eights(series):
        yield plots.certified_accuracy(part)


def _corruptions(cards: Sequence[Card]) -> Iterator[plots.Chart]:
    for name, card in _shown(cards):
        for mode in bn_modes(card):
            by_severity: dict[str, dict[int, float]] = {}
            for condition, estimate in estimates(card, mode).items():
                if isinstance(condition, CorruptionRecord):
                    by_severity.setdefault(condition.title, {})[condition.severity] = estimate.value
            if sum(map(len, by_severity.values())) > 2:
                title = f"Accuracy under corruption: {_series(cards, name, mode)}"
                yield plots.corruption_map(by_severity, title)


def _rhos(cards: Sequence[Card]) -> Iterator[plots.Chart]:
    """One chart per kind of blend: rho of std and rho of var are different families of modes."""
    for name, card in zip(names(cards), cards, strict=True):
        adapted = [mode for mode in bn_modes(card) if isinstance(mode, PerBatchMode)]
        for blend_of in dict.fromkeys(mode.blend_of for mode in adapted):
            modes: dict[float, BNModeRecord] = {m.rho: m for m in adapted if m.blend_of == blend_of}
            if len(modes) < 2:
                continue
            if RunningMode() in bn_modes(card):
                modes[0.0] = RunningMode()
            series: dict[str, dict[float, plots.Point]] = {}
            for rho, mode in modes.items():
                for group, estimate in _groups(card, mode).items():
                    series.setdefault(group, {})[rho] = _point(estimate)
            of = "" if blend_of == "std" else f", blend of {blend_of}"
            yield plots.rho_curve(series, f"Weight rho of the batch's statistics{of}: {name}")


def _batch_sizes(batch_sizes: Mapping[str, Mapping[int, Card]]) -> Iterator[plots.Chart]:
    for name, by_size in batch_sizes.items():
        series: dict[str, dict[float, plots.Point]] = {}
        for size, card in by_size.items():
            for mode in bn_modes(card):
                for group, estimate in _groups(card, mode).items():
                    if group == "corrupted":
                        series.setdefault(str(mode), {})[size] = _point(estimate)
        if series:
            yield plots.batch_size_curve(series, f"Corrupted images, by batch size: {name}")


def _groups(card: Card, mode: BNModeRecord) -> dict[str, Estimate]:
    by_condition = estimates(card, mode)
    kinds = {"clean": ("clean",), "corrupted": tables.CORRUPTED, "attacked": ("attack",)}
    means = {
        group: tables.mean(e for c, e in by_condition.items() if c.kind in of and tables.averaged(c))
        for group, of in kinds.items()
    }
    return {group: e for group, e in means.items() if e}


def _shown(cards: Sequence[Card]) -> Iterator[tuple[str, Card]]:
    """Of one card every BN mode; of several the reference, so that charts stay legible."""
    for name, card in zip(names(cards), cards, strict=True):
        yield name, card if len(cards) == 1 else _reference(card)


def _reference(card: Card) -> Card:
    first = bn_modes(card)[0]
    return replace(card, rows=tuple(row for row in card.rows if row.bn_mode == first))


def _series(cards: Sequence[Card], name: str, mode: BNModeRecord) -> str:
    return str(mode) if len(cards) == 1 else name


def _point(estimate: Estimate) -> tuple[float, float, float]:
    return estimate.value, estimate.low, estimate.high


def _eights(groups: Mapping[str, Points]) -> Iterator[dict[str, Points]]:
    """As many series at a time as a chart can distinguish."""
    items = list(groups.items())
    for start in range(0, len(items), len(plots.PALETTE)):
        yield dict(items[start : start + len(plots.PALETTE)])
