"""`help` explains every field and parameter, and shows the method card."""

from __future__ import annotations

import inspect
import pydoc
import sys
from dataclasses import fields, is_dataclass
from typing import Any

import pytest

from trimtab import attacks, construct, train
from trimtab.train import reader, recipe

SECTIONS = [
    recipe.Recipe,
    recipe.Data,
    recipe.OptimizerConfig,
    recipe.Schedule,
    recipe.Norm,
    recipe.Validation,
]
PUBLIC = {
    f"{package.__name__}.{name}": getattr(package, name)
    for package in (train, attacks, construct)
    for name in package.__all__
}
CLASSES = {name: value for name, value in PUBLIC.items() if inspect.isclass(value)}
CALLABLES = {name: value for name, value in PUBLIC.items() if inspect.isfunction(value)} | {
    f"{name}.{method}": function
    for name, cls in CLASSES.items()
    for method, function in vars(cls).items()
    if inspect.isfunction(function) and not method.startswith("_")
}
METHODS = {
    name: cls for name, cls in CLASSES.items()
    if issubclass(cls, train.Objective | attacks.Attack) and cls not in (train.Objective, attacks.Attack)
}  # fmt: skip


def explained(subject: Any) -> set[str]:
    """The names under `Args:` in what `help` prints."""
    lines = iter((inspect.getdoc(subject) or "").splitlines())
    arguments = []
    if any(line == "Args:" for line in lines):
        for line in lines:
            if not line.startswith("    "):
                break
            name, colon, text = line.strip().partition(": ")
            if line[4] != " " and colon and text:
                arguments.append(name)
    return set(arguments)


@pytest.mark.parametrize("cls", [*CLASSES.values(), *SECTIONS])
def test_help_explains_every_field_or_refers_to_the_class_that_does(cls: type) -> None:
    if is_dataclass(cls):
        given = {field.name for field in fields(cls) if field.init}
    else:
        given = set(inspect.signature(cls.__init__).parameters) - {"self", "args", "kwargs"}
    known = explained(cls)
    for base in cls.__mro__[1:]:
        if f"arguments of `{base.__name__}`" in (cls.__doc__ or ""):
            known |= explained(base)
    assert given - known == set()


@pytest.mark.parametrize("name", CALLABLES)
def test_help_explains_every_parameter(name: str) -> None:
    function = CALLABLES[name]
    owner, _, method = name.rpartition(".")
    inherited = [vars(base).get(method) for base in CLASSES[owner].__mro__[1:]] if owner in CLASSES else []
    assert inspect.getdoc(function) or any(inherited)
    known = set().union(*(explained(f) for f in (function, *inherited) if f))
    assert set(inspect.signature(function).parameters) - {"self"} - known == set()


@pytest.mark.parametrize("method", dict.fromkeys([*METHODS.values(), *reader.OBJECTIVES.values()]))
def test_help_of_a_method_shows_its_card(method: type) -> None:
    shown = pydoc.plain(pydoc.render_doc(method))
    card = (sys.modules[method.__module__].__doc__ or "").splitlines()
    assert len(card) > 3
    assert all(line.strip() in shown for line in card)
