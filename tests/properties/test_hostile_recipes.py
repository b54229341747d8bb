"""Recipes that nobody would write: any YAML, any values in known places, any words to override them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.properties.hostile import examples, plain, survives, texts

from trimtab.train import read_recipe
from trimtab.train.optimizers import optimizer_for, rate
from trimtab.train.reader import ATTACKS, OBJECTIVES
from trimtab.train.reader import plain as plain_values
from trimtab.train.recipe import Recipe, write_recipe
from trimtab.types import BadInput

WHOLE = plain_values(Recipe())
KEYS = sorted({key for value in (WHOLE, *WHOLE.values()) if isinstance(value, dict) for key in value})
KINDS_KNOWN = [*OBJECTIVES, *ATTACKS, "linf", "l2"]
PLACES = [
    *(f"{key}.{inner}" for key, held in WHOLE.items() if isinstance(held, dict) for inner in held),
    *WHOLE, "objective.attack.budget", "objective.attack.steps", "validation.attack.kind",
]  # fmt: skip
numbers = (
    st.integers(-3, 300) | st.floats(-2, 2) | st.sampled_from([10**30, -(10**30), "8/255", "-1", "1e309"])
)
values = (
    plain | numbers | st.sampled_from(KINDS_KNOWN) | st.dictionaries(st.sampled_from(KEYS), plain, max_size=3)
)


def judged(recipe: Recipe) -> None:
    """A recipe that was read can be written, read again, and trained by."""
    assert read_recipe(plain_values(recipe)) == recipe
    assert write_recipe(recipe)
    optimizer_for([torch.nn.Parameter(torch.zeros(2, 2))], recipe.optimizer)
    assert all(rate(recipe.schedule, step, 4, 8) >= 0 for step in range(8))


@examples(400)
@given(st.dictionaries(st.sampled_from([*WHOLE, "epoch", ""]), values, max_size=4))
def test_any_mapping_is_a_recipe_or_refused(given_keys: dict[str, Any]) -> None:
    survives(lambda: judged(read_recipe(given_keys)))


@examples(400)
@given(st.dictionaries(st.sampled_from(PLACES) | texts, values.map(str), min_size=1, max_size=3))
def test_any_override_is_taken_or_refused(overrides: dict[str, str]) -> None:
    survives(lambda: judged(read_recipe("smoke", overrides)))


@examples(300)
@given(st.binary(max_size=40) | st.text("{}[]:,-&*!?|>'\"%@`#\n ab01.", max_size=60).map(str.encode))
def test_any_file_is_a_recipe_or_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_bytes(content)
    survives(lambda: read_recipe(file))


NASTY = {
    "an alias bomb": "a: &a [x,x,x,x,x,x,x,x,x]\n"
    + "".join(f"{n}: &{n} [{', '.join([f'*{chr(ord(n) - 1)}'] * 9)}]\n" for n in "bcdefghi")
    + "epochs: *i\n",
    "a list that holds itself": "epochs: &a [*a]",
    "deep brackets": "epochs: " + "[" * 5000,
    "code": "epochs: !!python/object/apply:os.mkdir [pwned]",
    "a date that cannot be": "epochs: 2001-99-99",
    "a key that is a list": "[1, 2]: 3",
    "a null byte": "model: \0",
}


@pytest.mark.parametrize("case", NASTY)
def test_nasty_yaml_is_refused_at_once_and_runs_nothing(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "recipe.yaml"
    file.write_text(NASTY[case])
    with pytest.raises(BadInput) as refused:
        read_recipe(file)
    assert len(str(refused.value)) < 2000
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.yaml"]
