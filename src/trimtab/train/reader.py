"""Strict reading of YAML into frozen dataclasses by pydantic, and writing them.

Types are checked strictly and an unknown key is an error, with the nearest known key. `kind` selects one of
several classes (of objectives, of attacks), a budget is written {linf: 8/255}, and numbers may be 8/255 or
1e-3. An error is one sentence that begins with the dotted name of its place.
"""

from __future__ import annotations

import collections.abc
import difflib
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Annotated, Any

import yaml
from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    with_config,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema
from typing_extensions import TypedDict

from trimtab import attacks
from trimtab.attacks import L2, Attack, Linf
from trimtab.train.advbn import AdvBN
from trimtab.train.adversarial import Adversarial
from trimtab.train.apart import APART
from trimtab.train.awp import AWP
from trimtab.train.base import Objective
from trimtab.train.gaussian import Gaussian
from trimtab.train.ligs import LIGS
from trimtab.train.mixture import AdvProp, Mixture
from trimtab.train.sam import SAM
from trimtab.train.standard import Standard
from trimtab.train.trades import TRADES, DivergenceAttack
from trimtab.types import BadInput, number, pretty

OBJECTIVES: dict[str, type] = {
    "standard": Standard, "gaussian": Gaussian, "adversarial": Adversarial, "mixture": Mixture,
    "advprop": AdvProp, "advbn": AdvBN, "apart": APART, "sam": SAM, "ligs": LIGS,
    "trades": TRADES, "awp": AWP,
}  # fmt: skip
ATTACKS: dict[str, type] = {
    "pgd": attacks.PGD, "fgsm": attacks.FGSM, "cw": attacks.CW, "apgd": attacks.APGD, "kl": DivergenceAttack,
}  # fmt: skip
BUDGETS: dict[str, type] = {"linf": Linf, "l2": L2}
RENAMED = {"optimiser": "optimizer", "synchronise": "synchronize"}
"""Old keys of recipes, and their new names."""
MOST_BRACKETS = 1000
"""Limit of brackets in a file: the time to parse nested brackets grows with the square of their number."""

_STRICT = ConfigDict(extra="forbid", strict=True)


def read(cls: type, value: Any) -> Any:
    """Return a plain value as an instance of a dataclass.

    Args:
        cls: The dataclass.
        value: A mapping of its keys, with plain values: mappings, lists, strings, numbers, bools, None.
    """
    try:
        return _adapter(cls).validate_python(value)
    except ValidationError as problem:
        raise BadInput(_sentence(cls, problem)) from None


@cache
def _adapter(cls: type) -> TypeAdapter[Any]:
    return TypeAdapter(_section(cls))


@cache
def _section(cls: type) -> Any:
    """Return the type of a mapping of the fields of a dataclass, which becomes an instance of it."""
    keys = {name: _annotated(hint) for name, hint in _keys(cls).items()}
    section: Any = TypedDict(cls.__name__, keys, total=False)  # type: ignore[misc]
    current = BeforeValidator(lambda given: _with_current_names(given, keys))
    return Annotated[with_config(_STRICT)(section), current, AfterValidator(lambda given: cls(**given))]


@cache
def _keys(cls: type) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {f.name: hints[f.name] for f in fields(cls) if f.init}


def _annotated(hint: Any) -> Any:
    """Return what pydantic reads for a field of this type."""
    options = {option for option in typing.get_args(hint) if option is not types.NoneType}
    if typing.get_origin(hint) in (typing.Union, types.UnionType) and types.NoneType in typing.get_args(hint):
        return typing.Optional[_annotated(typing.Union[tuple(options)])]  # noqa: UP007, UP045 (a variable)
    if hint is float or options == {float, str}:
        return Annotated[float, BeforeValidator(lambda v: v if isinstance(v, bool) else number(v))]
    if options == {Linf, L2}:
        return Annotated[Any, PlainValidator(_budget)]
    if hint is Objective:
        return Annotated[Any, _OneOf("objective")]
    if hint is Attack or typing.get_origin(hint) is collections.abc.Callable:
        return Annotated[Any, _OneOf("attack")]
    if typing.get_origin(hint) is tuple:
        return Annotated[tuple[_annotated(typing.get_args(hint)[0]), ...], BeforeValidator(_as_tuple)]  # type: ignore[misc]
    return _section(hint) if isinstance(hint, type) and is_dataclass(hint) else hint


@dataclass(frozen=True)
class _OneOf:
    """A discriminated union: `kind` names the class."""

    what: str

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        choices = OBJECTIVES if self.what == "objective" else ATTACKS
        sections = {name: handler.generate_schema(_section(cls)) for name, cls in choices.items()}
        union = core_schema.tagged_union_schema(sections, "kind")
        return core_schema.no_info_before_validator_function(lambda value: _of_kind(value, choices), union)


def _of_kind(value: Any, choices: Mapping[str, type]) -> dict[str, Any]:
    given = {"kind": value} if isinstance(value, str) else value
    if not isinstance(given, Mapping) or "kind" not in given:
        raise _predicate(f"needs a kind, one of {', '.join(choices)}; found {_short(value)}")
    if given["kind"] not in list(choices):
        raise _predicate(
            f"cannot be of kind {_short(given['kind'])}; {advice(str(given['kind']), list(choices))}"
        )
    return dict(given)


def _with_current_names(value: Any, known: Mapping[str, Any]) -> Any:
    if not isinstance(value, Mapping):
        return value
    renamed = {RENAMED.get(key, key): v for key, v in value.items() if key != "kind" or key in known}
    if "early_stop" in known and renamed.get("score") in ("any", "last"):
        renamed["early_stop"] = renamed.pop("score") == "any"
    return renamed


def _budget(value: Any) -> Any:
    if not isinstance(value, Mapping) or len(value) != 1 or next(iter(value)) not in BUDGETS:
        raise _predicate(f"is written {{linf: 8/255}} or {{l2: 0.5}}, found {_short(value)}")
    norm, eps = next(iter(value.items()))
    return BUDGETS[norm](eps)


def _as_tuple(value: Any) -> Any:
    return value if isinstance(value, Mapping) else tuple(value) if isinstance(value, list) else (value,)


# ---- errors -------------------------------------------------------------------------------------------


def _predicate(text: str) -> PydanticCustomError:
    """Return an error whose message follows the name of its place."""
    return PydanticCustomError("predicate", "{text}", {"text": text})


def _sentence(cls: type, problem: ValidationError) -> str:
    """Return the first error as a sentence."""
    error = problem.errors(include_url=False)[0]
    place = [key for key in error["loc"] if key not in OBJECTIVES and key not in ATTACKS]  # without kinds
    at = ".".join(str(key) for key in place if not isinstance(key, int))
    match error["type"]:
        case "value_error":
            return f"{at}: {error['ctx']['error']}" if at else str(error["ctx"]["error"])
        case "predicate":
            return f"{at} {error['msg']}"
        case "extra_forbidden" | "invalid_key":
            *outer, key = error["loc"]
            return f"there is no key {at!r}; {advice(str(key), list(_keys(_at(cls, outer))))}"
        case "dict_type":
            return f"{at or 'a recipe'} must contain keys and values, found {_short(error['input'])}"
        case _:
            expected = error["msg"].removeprefix("Input should be ")
            return f"{at} should be {expected}, found {_short(error['input'])}"


def _at(cls: Any, place: list[Any]) -> Any:
    """Return the dataclass at a place in another one."""
    for key in place:
        cls = OBJECTIVES.get(key) or ATTACKS.get(key) or _keys(cls)[key]
    return cls


def advice(key: str, known: Sequence[str]) -> str:
    """Return the nearest known name as a question, or all known names.

    Args:
        key: What was given.
        known: What there is.
    """
    matches = difflib.get_close_matches(key, known, 1)
    return f"did you mean {matches[0]!r}?" if matches else f"choose from {', '.join(known)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


# ---- YAML ---------------------------------------------------------------------------------------------


class _Loader(yaml.SafeLoader):
    """Refuses aliases, a few lines of which expand beyond any memory, and duplicate keys."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise BadInput("uses YAML aliases (*name), which recipes do not support; write the values out")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        duplicate = next((name for name in names if names.count(name) > 1), None)
        if duplicate is not None:
            raise BadInput(f"has the key {duplicate!r} twice; leave one of them out")
        return super().construct_mapping(node, deep)


def parsed(text: str, where: str) -> Any:
    """Parse YAML into plain values.

    Args:
        text: The YAML.
        where: What it is, for error messages.
    """
    if text.count("[") + text.count("{") > MOST_BRACKETS:
        raise BadInput(
            f"{where} contains more than {MOST_BRACKETS} brackets, which no recipe needs; remove some"
        )
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as problem:
        raise BadInput(f"{where} is not valid YAML: {' '.join(str(problem).split())}") from None
    except RecursionError:
        raise BadInput(f"{where} is nested too deeply to be a recipe") from None
    except BadInput as problem:
        raise BadInput(f"{where} {problem}") from None
    except (ValueError, OverflowError) as problem:  # an impossible date or number
        raise BadInput(f"{where} contains a value that YAML cannot read: {problem}") from None


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


def plain(value: Any) -> Any:
    """Return a value as YAML can contain it, including defaults: the inverse of `read`.

    Args:
        value: A recipe or one of its values.
    """
    cls: type = type(value)
    names = {known: name for choices in (OBJECTIVES, ATTACKS, BUDGETS) for name, known in choices.items()}
    if isinstance(value, Linf | L2):
        readable = pretty(value.radius)
        exact = "/" in readable and number(readable) == value.radius
        return {names[cls]: readable if exact else value.radius}
    if is_dataclass(value) and (cls in names or not isinstance(value, Objective | Attack)):
        kind = {"kind": names[cls]} if cls in names else {}
        return kind | {name: plain(getattr(value, name)) for name in _keys(cls)}
    if isinstance(value, tuple):
        return [plain(v) for v in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise BadInput(
        f"a recipe file cannot contain {cls.__name__ if is_dataclass(value) else _short(value)}, so the run "
        f"could not be resumed; use one of {', '.join([*OBJECTIVES, *ATTACKS])}"
    )
