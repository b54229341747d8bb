"""Reading cards of format 1, whose rows named condition and BN mode in words.

A row's key is joined to the description of its cell in the store, which holds the fields. Where the cell is
not known, the words are kept as the name of an `OtherRecord` or `StoredMode`; they are never interpreted.
Noise of version 1 was always clipped to [0, 1].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trimtab.evaluate import bn_modes, records
from trimtab.evaluate.card import Card, Flag, Row

Described = Mapping[str, Any]
"""A method as `fingerprint.describe` wrote it: its class under "is", its version, its fields."""
_AXES = {"after ": "iterations", "radius ": "radius"}  # prefixes of curve points among the figures
_ENDS = ("", ", lower end", ", upper end")  # suffixes of a measure and its interval among the figures


def is_old(value: Any) -> bool:
    """Return whether parsed JSON looks like a card of format 1."""
    return isinstance(value, dict) and "format" not in value and {"rows", "flags", "provenance"} <= {*value}


def card(value: Mapping[str, Any], cells: Mapping[str, Described]) -> Card:
    """Return the card of format 2.

    Args:
        value: the parsed JSON of a card of format 1.
        cells: the description of each cell in the store, by key.
    """
    try:
        modes: dict[str, bn_modes.BNModeRecord] = {}
        for row in value["rows"]:
            modes[row["state"]] = _mode(row["state"], cells.get(row["key"], {}).get("state"))
        rows = tuple(_row(row, value, cells.get(row["key"], {}), modes) for row in value["rows"])
        flags = tuple(_flag(flag, modes) for flag in value["flags"])
        return Card(value["model"], value["data"], value["suite"], rows, flags, value["provenance"])
    except (KeyError, TypeError, AttributeError) as problem:
        raise ValueError(f"a card of format 1 lacks {problem}") from None


def _flag(old: Mapping[str, str], modes: Mapping[str, bn_modes.BNModeRecord]) -> Flag:
    mode = modes.get(old["state"]) or _mode(old["state"], None)
    return Flag(old["name"], old["saw"], old["advice"], mode)


def _row(
    old: Mapping[str, Any],
    whole: Mapping[str, Any],
    cell: Described,
    modes: Mapping[str, bn_modes.BNModeRecord],
) -> Row:
    figures = dict(old["figures"])
    measure = None
    if old["instead"]:
        value, low, high = (figures.pop(old["instead"] + end, None) for end in _ENDS)
        measure = records.Measure(old["instead"], value, low, high)
    digest = str(whole["provenance"].get("data", ""))
    return Row(
        condition=_condition(old, cell.get("condition")),
        bn_mode=modes[old["state"]],
        images=records.ImagesRecord(whole["data"], digest, 0, old["n"]),
        seed=old["seed"],
        accuracy=float(old["accuracy"]),
        interval=(float(old["interval"][0]), float(old["interval"][1])),
        correct=old["correct"],
        n=old["n"],
        iterate=_iterate(old["score"]),
        batch_size=cell.get("batch"),
        figures={name: v for name, v in figures.items() if not name.startswith(tuple(_AXES))},
        curve=_curve(figures),
        measure=measure,
        key=old["key"],
    )


def _iterate(score: str) -> str:
    """Return which iterate of an attack counts; format 1 names early stopping as "any ..."."""
    return records.EARLY_STOPPING if score.startswith("any ") else score


def _curve(figures: Mapping[str, float]) -> records.Curve | None:
    for prefix, axis in _AXES.items():
        names = [name for name in figures if name.startswith(prefix)]
        points = sorted((float(name.removeprefix(prefix)), figures[name]) for name in names)
        if points:
            return records.Curve(axis, tuple(points))  # type: ignore[arg-type]  # one of the two
    return None


def _mode(words: str, described: Described | None) -> bn_modes.BNModeRecord:
    kind = described.get("is") if described else None
    if words == "running" or kind == "Running":
        return bn_modes.RunningMode()
    if described and kind == "Branch":
        return bn_modes.BranchMode(described["name"])
    if described and kind == "PerBatch":
        return bn_modes.PerBatchMode(described.get("rho", 1.0), described.get("blend_of", "std"))
    if described and kind == "Frozen":
        return bn_modes.FrozenMode(
            described.get("rho", 1.0), described.get("images", 256), described.get("blend_of", "std")
        )
    return bn_modes.StoredMode(words)


def _condition(old: Mapping[str, Any], described: Described | None) -> records.ConditionRecord:
    words, kind = old["condition"], old["kind"]
    if words == kind == "clean":
        return records.CleanRecord()
    made = _OF_CLASS.get(described["is"]) if described else None
    if described is None or made is None:
        return records.OtherRecord(words, kind)
    return made(described, words)


def _attack(described: Described, words: str) -> records.ConditionRecord:
    attack = described["attack"]
    budget = attack.get("budget")
    known = isinstance(budget, Mapping) and budget.get("is") in _NORMS
    return records.AttackRecord(
        method=attack["is"],
        label=words,
        budget=records.BudgetRecord(_NORMS[budget["is"]], float(budget["eps"])) if known else None,  # type: ignore[arg-type]
        steps=attack.get("steps"),
        step_size=attack.get("step_size"),
        loss=attack.get("loss"),
        targeted=attack.get("targeted", False),
        restarts=attack.get("restarts", 1),
        early_stop=attack.get("score") == "any",
    )


def _corruption(described: Described, words: str) -> records.ConditionRecord:
    frost = described["name"] == "frost"
    ice = ("official" if described.get("frost_textures") else "grown") if frost else None
    return records.CorruptionRecord(described["name"], described.get("severity", 3), ice)  # type: ignore[arg-type]


def _certificate(d: Described, words: str) -> records.ConditionRecord:
    sigma, n0, n = float(d.get("sigma", 0.25)), d.get("n0", 100), d.get("n", 10_000)
    return records.CertificateRecord(sigma, n0, n, d.get("alpha", 0.001))


_NORMS = {"Linf": "l_inf", "L2": "l_2"}
_OF_CLASS: dict[str, Callable[[Described, str], records.ConditionRecord]] = {
    "Clean": lambda d, words: records.CleanRecord(),
    "Noise": lambda d, words: records.NoiseRecord(
        float(d.get("sigma", 0.1)), d.get("clip", d.get("version", 1) < 2)
    ),
    "Corrupted": _corruption,
    "Attacked": _attack,
    "Certified": _certificate,
    "Shifted": lambda d, words: records.ShiftRecord(float(d.get("eps", 0.2))),
    "Similar": lambda d, words: records.SimilarityRecord(float(d.get("size", 0.01))),
}
