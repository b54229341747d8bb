"""Strict conversion of plain values, as YAML gives them, to frozen dataclasses and back.

An unknown key is an error that names the nearest known key; a value of the wrong type is an error that names
its key. `kind` selects one of several classes (of objectives, of attacks); a budget is written {linf: 8/255}.
Single values are checked by pydantic in strict mode.
"""

from __future__ import annotations

import collections.abc
import difflib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from trimtab.attacks import Attack
from trimtab.train.base import Objective
from trimtab.types import L2, BadInput, Linf, number, pretty

MOST_BRACKETS = 1000
"""Limit of brackets in a file: the time to parse nested brackets grows with the square of their number."""


@dataclass(frozen=True)
class Kinds:
    """The classes that a `kind` can name.

    Args:
        objective: Objectives by name.
        attack: Attacks by name.
        budget: Budgets by name.
    """

    objective: Mapping[str, type]
    attack: Mapping[str, type]
    budget: Mapping[str, type]

    def at(self, hint: Any) -> Mapping[str, type] | None:
        """Return the classes that a field of this type can contain, if there are several."""
        if hint is Objective:
            return self.objective
        if hint is Attack or typing.get_origin(hint) is collections.abc.Callable:
            return self.attack
        return None


def parsed(text: str, where: str) -> Any:
    """Parse YAML into plain values. Aliases are refused: a few lines of them can expand beyond any memory."""
    if text.count("[") + text.count("{") > MOST_BRACKETS:
        raise BadInput(
            f"{where} contains more than {MOST_BRACKETS} brackets, which no recipe needs; remove some"
        )
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.SafeLoader)):
            raise BadInput(
                f"{where} uses YAML aliases (*name), which recipes do not support; write the values out"
            )
        _refuse_duplicates(yaml.compose(text, yaml.SafeLoader), where)
        return yaml.safe_load(text)
    except yaml.YAMLError as problem:
        raise BadInput(f"{where} is not valid YAML: {' '.join(str(problem).split())}") from None
    except RecursionError:
        raise BadInput(f"{where} is nested too deeply to be a recipe") from None
    except (ValueError, OverflowError) as problem:  # an impossible date or number
        if isinstance(problem, BadInput):
            raise
        raise BadInput(f"{where} contains a value that YAML cannot read: {problem}") from None


def _refuse_duplicates(node: Any, where: str) -> None:
    """Refuse duplicate keys, of which YAML silently takes the last."""
    if isinstance(node, yaml.MappingNode):
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        duplicate = next((name for name in names if names.count(name) > 1), None)
        if duplicate is not None:
            raise BadInput(f"{where} has the key {duplicate!r} twice; leave one of them out")
    if isinstance(node, yaml.CollectionNode):
        for item in node.value:
            for child in item if isinstance(item, tuple) else (item,):
                _refuse_duplicates(child, where)


RENAMED = {"optimiser": "optimizer", "synchronise": "synchronize"}
"""Old keys of recipes, and their new names."""


def read(kind: Any, value: Any, kinds: Kinds, at: str = "") -> Any:
    """Return a plain value as an instance of a type.

    Args:
        kind: The type.
        value: A plain value: mapping, list, string, number, bool or None.
        kinds: The classes that a `kind` can name.
        at: Dotted name of the value's place, for error messages.
    """
    options = [o for o in typing.get_args(kind) if o is not type(None)]
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        if value is None and type(None) in typing.get_args(kind):
            return None
        if set(options) == {Linf, L2}:
            return _read_budget(value, kinds, at)
        if set(options) == {float, str} or len(options) == 1:
            return read(options[0], value, kinds, at)
    choices = kinds.at(kind)
    if choices is not None:
        return _read_kind(choices, value, kinds, at)
    if is_dataclass(kind):
        return _read_fields(kind, value, kinds, at)
    return _read_leaf(kind, value, at)


def _read_fields(kind: Any, value: Any, kinds: Kinds, at: str) -> Any:
    if not isinstance(value, Mapping):
        raise BadInput(f"{at or 'a recipe'} must contain keys and values, found {value!r}")
    hints = typing.get_type_hints(kind)
    known = [f.name for f in fields(kind) if f.init]
    value = _with_current_names(value, known)
    for key in value:
        if key not in known:
            raise BadInput(f"there is no key {_dotted(at, key)!r}; {_advice(str(key), known)}")
    given = {key: read(hints[key], v, kinds, _dotted(at, key)) for key, v in value.items()}
    try:
        return kind(**given)
    except BadInput as problem:
        raise BadInput(f"{at}: {problem}" if at else str(problem)) from None


def _with_current_names(value: Mapping[str, Any], known: list[str]) -> dict[str, Any]:
    renamed = {RENAMED.get(key, key): v for key, v in value.items()}
    if "score" not in known and "early_stop" in known and renamed.get("score") in ("any", "last"):
        renamed["early_stop"] = renamed.pop("score") == "any"
    return renamed


def _read_kind(choices: Mapping[str, type], value: Any, kinds: Kinds, at: str) -> Any:
    given = {"kind": value} if isinstance(value, str) else value
    if not isinstance(given, Mapping) or "kind" not in given:
        raise BadInput(f"{at} needs a kind, one of {', '.join(choices)}; found {value!r}")
    name = given["kind"]
    if not isinstance(name, str) or name not in choices:
        raise BadInput(f"{at} cannot be of kind {name!r}; {_advice(str(name), list(choices))}")
    return _read_fields(choices[name], {k: v for k, v in given.items() if k != "kind"}, kinds, at)


def _read_budget(value: Any, kinds: Kinds, at: str) -> Any:
    if not isinstance(value, Mapping) or len(value) != 1 or next(iter(value)) not in kinds.budget:
        raise BadInput(f"{at} is written {{linf: 8/255}} or {{l2: 0.5}}, found {value!r}")
    norm, eps = next(iter(value.items()))
    return kinds.budget[norm](eps)


def _read_leaf(kind: Any, value: Any, at: str) -> Any:
    if kind is float and not isinstance(value, bool):
        try:
            return number(value)
        except BadInput as problem:
            raise BadInput(f"{at}: {problem}") from None
    if typing.get_origin(kind) is tuple and not isinstance(value, Mapping):
        (inner, *_) = typing.get_args(kind)
        return tuple(_read_leaf(inner, v, at) for v in (value if isinstance(value, list) else [value]))
    try:
        return TypeAdapter(kind).validate_python(value, strict=True)
    except ValidationError as problem:
        reason = problem.errors()[0]["msg"].removeprefix("Input should be ")
        raise BadInput(f"{at} should be {reason}, found {value!r}") from None


def overridden(given: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy with values replaced by dotted name, outer keys before inner ones, `kind` before others.

    Another kind of objective or attack drops the other keys of the old one; kinds of optimizers and schedules
    have the same keys, which are kept.

    Args:
        given: The values of a recipe.
        overrides: New values by dotted name; strings are parsed as YAML.
    """
    out = dict(given)
    for place, value in sorted(
        overrides.items(), key=lambda item: (item[0].count("."), item[0][-4:] != "kind")
    ):
        key, _, rest = place.partition(".")
        if isinstance(value, str):
            value = parsed(value, f"the value of {place}")
        if not rest:
            out[key] = value
            continue
        inner = out.get(key)
        if not isinstance(inner, Mapping | str | None):
            raise BadInput(f"{key} is {inner!r}, which has no key {rest!r}")
        inner = {"kind": inner} if isinstance(inner, str) else dict(inner or {})
        if rest == "kind" and key not in ("optimizer", "schedule") and inner.get("kind") != value:
            inner = {}
        out[key] = overridden(inner, {rest: value})
    return out


def plain(value: Any, kinds: Kinds) -> Any:
    """Return a value as YAML can contain it, including defaults: the inverse of `read`.

    Args:
        value: A recipe or one of its values.
        kinds: The classes that a `kind` can name.
    """
    if isinstance(value, Linf | L2):
        name = next(name for name, kind in kinds.budget.items() if isinstance(value, kind))
        readable = pretty(value.radius)
        return {name: readable if number(readable) == value.radius and "/" in readable else value.radius}
    if is_dataclass(value):
        named = {kind: name for choices in (kinds.objective, kinds.attack) for name, kind in choices.items()}
        if isinstance(value, Objective | Attack) and type(value) not in named:
            raise BadInput(
                f"a recipe file cannot contain {type(value).__name__}, so the run could not be resumed; use "
                f"one of {', '.join(named.values())}"
            )
        values = {f.name: plain(getattr(value, f.name), kinds) for f in fields(value) if f.init}
        return {"kind": named[type(value)], **values} if type(value) in named else values
    if isinstance(value, tuple):
        return [plain(v, kinds) for v in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise BadInput(
        f"a recipe file cannot contain {value!r}; use one of the attacks {', '.join(kinds.attack)}"
    )


def _dotted(at: str, key: Any) -> str:
    return f"{at}.{key}" if at else str(key)


def _advice(key: str, known: list[str]) -> str:
    matches = difflib.get_close_matches(key, known, 1)
    return f"did you mean {matches[0]!r}?" if matches else f"choose from {', '.join(known)}"
