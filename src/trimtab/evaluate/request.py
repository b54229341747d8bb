"""What a run was asked to measure, checked before anything is."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn

from trimtab.data import Images
from trimtab.evaluate.bn_modes import BNMode, mode_record
from trimtab.evaluate.conditions import Attacked, Condition
from trimtab.evaluate.store import Store
from trimtab.models import Pixels
from trimtab.types import BadInput, Budget


@dataclass(frozen=True)
class Request:
    """The checked arguments of `evaluate.run`."""

    suite: str
    """Its name; "own" for a list of conditions."""
    conditions: list[Condition]
    store: Store
    limit: int | None
    seeds: tuple[int, ...]
    bn_modes: tuple[BNMode, ...]
    chunk: int
    batch_size: int
    keep_images: bool
    examine: bool
    force: bool
    name: str
    command: str | None

    def __post_init__(self) -> None:
        for mode in self.bn_modes:
            if not isinstance(mode, BNMode):
                raise BadInput(
                    f"a BN mode is evaluate.RunningMode(), evaluate.BranchMode(name) ..., found {mode!r}"
                )
        if not self.bn_modes:
            raise BadInput("an evaluation needs at least one BN mode, such as running; found none")
        if not self.seeds:
            raise BadInput("an evaluation needs at least one seed; found none")
        for values in (
            [condition.record() for condition in self.conditions],
            [mode_record(mode) for mode in self.bn_modes],
            self.seeds,
        ):
            repeated = next((value for i, value in enumerate(values) if value in values[:i]), None)
            if repeated is not None:
                raise BadInput(f"{str(repeated)!r} is requested twice; rows must differ")

    @property
    def budgets(self) -> list[Budget]:
        """The budgets whose attacks the trust card examines."""
        budgets = (condition.budget for condition in self.conditions if isinstance(condition, Attacked))
        return list(dict.fromkeys(budget for budget in budgets if budget and budget.radius and self.examine))

    def check_fit(self, model: nn.Module, images: Images) -> None:
        """Refuse images that the model or a condition cannot take, before any is measured."""
        channels = images.spec.channels
        if isinstance(model, Pixels) and model.spec.channels != channels:
            colored = "folder:PATH@SIZE makes images RGB, without @SIZE gray ones stay gray"
            raise BadInput(
                f"the model takes images with {model.spec.channels} channels, and those of {images.name!r} "
                f"have {channels}; give it the images that it was made for (--data; {colored}), or declare "
                f"its input: let your function return "
                f"trimtab.models.wrap(net, InputSpec(channels={channels}))"
            )
        for condition in self.conditions:
            condition.check(images.spec)


def seeds_of(given: Any) -> tuple[int, ...]:
    """Return one seed or several as a tuple."""
    try:
        return tuple(map(operator.index, given if isinstance(given, Iterable) else (given,)))
    except TypeError:
        raise BadInput(f"a seed is a whole number, or several of them, found {given!r}") from None


def name_of(model: nn.Module) -> str:
    """Return where the model was loaded from, or its class."""
    origin = getattr(model, "origin", None)
    return str(getattr(origin, "source", None) or type(model).__name__)
