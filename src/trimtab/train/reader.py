"""Plain values (as YAML gives them) to frozen dataclasses and back, strictly.

A key that a dataclass does not have is refused with the nearest one; a value of the wrong type is refused
with its place. Where one of several classes can stand (an objective, an attack), `kind` names it; a
budget is written {linf: 8/255}. Leaves are checked by pydantic in strict mode.
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
"""The time to parse nested brackets grows with the square of their number."""


@dataclass(frozen=True)
class Kinds:
    """The classes that may stand in a place, by name."""

    objective: Mapping[str, type]
    attack: Mapping[str, type]
    budget: Mapping[str, type]

    def at(self, hint: Any) -> Mapping[str, type] | None:
        """What may stand where this type is asked for, if that is one of several."""
        if hint is Objective:
            return self.objective
        if hint is Attack or typing.get_origin(hint) is collections.abc.Callable:
            return self.attack
        return None


def parsed(text: str, where: str) -> Any:
    """YAML as plain values. Aliases are refused: a few lines of them can stand for more than any memory."""
    if text.count("[") + text.count("{") > MOST_BRACKETS:
        raise BadInput(f"{where} holds more than {MOST_BRACKETS} brackets, which no recipe needs")
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.SafeLoader)):
            raise BadInput(f"{where} uses YAML aliases (*name), which a recipe does not need; write them out")
        _refuse_doubles(yaml.compose(text, yaml.SafeLoader), where)
        return yaml.safe_load(text)
    except yaml.YAMLError as problem:
        raise BadInput(f"{where} is not valid YAML: {' '.join(str(problem).split())}") from None
    except RecursionError:
        raise BadInput(f"{where} is nested too deeply to be a recipe") from None
    except (ValueError, OverflowError) as problem:  # a date or a number that there cannot be
        if isinstance(problem, BadInput):
            raise
        raise BadInput(f"{where} holds a value that YAML cannot read: {problem}") from None


def _refuse_doubles(node: Any, where: str) -> None:
    """Of a key that stands twice YAML would silently take the last."""
    if isinstance(node, yaml.MappingNode):
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise BadInput(f"{where} has the key {twice!r} twice; leave one of them out")
    if isinstance(node, yaml.CollectionNode):
        for inner in node.value:
            for one in inner if isinstance(inner, tuple) else (inner,):
                _refuse_doubles(one, where)


def read(kind: Any, value: Any, kinds: Kinds, at: str = "") -> Any:
    """`value` as an instance of the type `kind`; `at` is its dotted place, for messages."""
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
        raise BadInput(f"{at or 'a recipe'} must hold keys and values, found {value!r}")
    hints = typing.get_type_hints(kind)
    known = [f.name for f in fields(kind) if f.init]
    for key in value:
        if key not in known:
            raise BadInput(f"there is no key {_dotted(at, key)!r}; {_nearest(str(key), known)}")
    given = {key: read(hints[key], v, kinds, _dotted(at, key)) for key, v in value.items()}
    try:
        return kind(**given)
    except BadInput as problem:
        raise BadInput(f"{at}: {problem}" if at else str(problem)) from None


def _read_kind(choices: Mapping[str, type], value: Any, kinds: Kinds, at: str) -> Any:
    given = {"kind": value} if isinstance(value, str) else value
    if not isinstance(given, Mapping) or "kind" not in given:
        raise BadInput(f"{at} needs a kind, one of {', '.join(choices)}; found {value!r}")
    name = given["kind"]
    if not isinstance(name, str) or name not in choices:
        raise BadInput(f"{at} cannot be of kind {name!r}; {_nearest(str(name), list(choices))}")
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
    """`given` with values at dotted places replaced, the outer ones first, and among them a `kind`.

    Another kind of objective or attack starts its place afresh; those of optimisers and schedules have the
    same keys, which stay.
    """
    out = dict(given)
    for place, value in sorted(overrides.items(), key=lambda one: (one[0].count("."), one[0][-4:] != "kind")):
        key, _, rest = place.partition(".")
        if isinstance(value, str):
            value = parsed(value, f"the value of {place}")
        if not rest:
            out[key] = value
            continue
        inner = out.get(key)
        if not isinstance(inner, Mapping | str | None):
            raise BadInput(f"{key} is {inner!r}, which has no {rest!r} to set")
        inner = {"kind": inner} if isinstance(inner, str) else dict(inner or {})
        if rest == "kind" and key not in ("optimiser", "schedule") and inner.get("kind") != value:
            inner = {}
        out[key] = overridden(inner, {rest: value})
    return out


def plain(value: Any, kinds: Kinds) -> Any:
    """The inverse of `read`: what YAML can hold. Values that are their defaults are written, too."""
    if isinstance(value, Linf | L2):
        name = next(name for name, kind in kinds.budget.items() if isinstance(value, kind))
        readable = pretty(value.radius)
        return {name: readable if number(readable) == value.radius and "/" in readable else value.radius}
    if is_dataclass(value):
        named = {kind: name for choices in (kinds.objective, kinds.attack) for name, kind in choices.items()}
        if isinstance(value, Objective | Attack) and type(value) not in named:
            raise BadInput(
                f"a recipe file cannot hold {type(value).__name__}, so the run could not be resumed; take "
                f"one of {', '.join(named.values())}"
            )
        held = {f.name: plain(getattr(value, f.name), kinds) for f in fields(value) if f.init}
        return {"kind": named[type(value)], **held} if type(value) in named else held
    if isinstance(value, tuple):
        return [plain(v, kinds) for v in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise BadInput(f"a recipe file cannot hold {value!r}; take one of the attacks {', '.join(kinds.attack)}")


def _dotted(at: str, key: Any) -> str:
    return f"{at}.{key}" if at else str(key)


def _nearest(key: str, known: list[str]) -> str:
    near = difflib.get_close_matches(key, known, 1)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
