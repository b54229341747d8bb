"""`help` of an objective or a recipe explains every field and shows the method card."""

from __future__ import annotations

import inspect
import pydoc
import sys
from dataclasses import fields

import pytest

from trimtab import train
from trimtab.train import reader, recipe

SECTIONS = [
    recipe.Recipe, recipe.Data, recipe.OptimizerConfig, recipe.Schedule, recipe.Norm, recipe.Validation,
    train.Engine, train.Event, train.Plan,
]  # fmt: skip


def explained(cls: type) -> set[str]:
    """The names under `Args:` in what `help` prints."""
    lines = iter(inspect.getdoc(cls).splitlines())  # type: ignore[union-attr]
    arguments = []
    if any(line == "Args:" for line in lines):
        for line in lines:
            if not line.startswith("    "):
                break
            name, colon, text = line.strip().partition(": ")
            if line[4] != " " and colon and text:
                arguments.append(name)
    return set(arguments)


@pytest.mark.parametrize("cls", [*reader.OBJECTIVES.values(), *SECTIONS])
def test_help_explains_every_field(cls: type) -> None:
    assert explained(cls) == {field.name for field in fields(cls) if field.init}


@pytest.mark.parametrize("objective", reader.OBJECTIVES.values())
def test_help_of_an_objective_shows_its_method_card(objective: type) -> None:
    shown = pydoc.plain(pydoc.render_doc(objective))
    card = (sys.modules[objective.__module__].__doc__ or "").splitlines()
    assert len(card) > 3
    assert all(line.strip() in shown for line in card)
