"""Which statistics normalise while a cell is measured: the axis of an evaluation that others leave implicit.

A norm state is a frozen dataclass that lends the module to be measured, for as long as a block lasts:

    Running    running statistics of the main branch, as `model.eval()` has them
    Branch     those of a named branch
    PerBatch   re-estimated on every batch (`adapt.per_batch`); the batch is part of the result
    Frozen     re-estimated once, on the first images of the data, as the condition shows them
               (`adapt.frozen`); they may be more than are evaluated
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from torch import Tensor, nn

from trimtab import adapt, norm
from trimtab.attacks import guard
from trimtab.types import BadInput

FirstImages: TypeAlias = Callable[[int], Tensor]
"""The first n images of the data, as the condition shows them."""


class NormState:
    """Base of all norm states."""

    version: ClassVar[int] = 1
    couples: ClassVar[bool] = False
    """Whether images of a batch influence each other by design."""

    def lend(self, model: nn.Module, first: FirstImages) -> AbstractContextManager[nn.Module]:
        """The module to measure, guarded; `model` itself is left as it was."""
        raise NotImplementedError


@dataclass(frozen=True)
class Running(NormState):
    def lend(self, model: nn.Module, first: FirstImages) -> AbstractContextManager[nn.Module]:
        return _on_branch(model, "main")

    def __str__(self) -> str:
        return "running"


@dataclass(frozen=True)
class Branch(NormState):
    name: str

    def lend(self, model: nn.Module, first: FirstImages) -> AbstractContextManager[nn.Module]:
        return _on_branch(model, self.name)

    def __str__(self) -> str:
        return f"branch {self.name}"


@dataclass(frozen=True)
class PerBatch(NormState):
    rho: float = 1.0
    """How much of the batch's own statistics to take."""
    blend_of: str = "std"
    couples: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "rho", float(self.rho))  # 1 and 1.0 are one state

    def lend(self, model: nn.Module, first: FirstImages) -> AbstractContextManager[nn.Module]:
        with _main(model):
            return guard(adapt.per_batch(model, self.rho, self.blend_of))

    def __str__(self) -> str:
        return f"adapted per batch (rho {self.rho:g}{_of(self.blend_of)})"


@dataclass(frozen=True)
class Frozen(NormState):
    rho: float = 1.0
    """How much of the images' statistics to take."""
    images: int = 256
    """They are estimated on the first so many of the data."""
    blend_of: str = "std"
    version: ClassVar[int] = 2

    def __post_init__(self) -> None:
        object.__setattr__(self, "rho", float(self.rho))
        if self.images < 1:
            raise BadInput(f"statistics are frozen on at least one image, found {self.images}")

    def lend(self, model: nn.Module, first: FirstImages) -> AbstractContextManager[nn.Module]:
        shown = first(self.images)
        if len(shown) < self.images:
            raise BadInput(
                f"statistics cannot be frozen on {self.images:,} images, for there are {len(shown):,}; "
                f"take so many or fewer, such as frozen:{len(shown)}"
            )
        with _main(model):
            return guard(adapt.frozen(model, shown, self.rho, self.blend_of))

    def __str__(self) -> str:
        return f"frozen on the first {self.images} images (rho {self.rho:g}{_of(self.blend_of)})"


def _main(model: nn.Module) -> AbstractContextManager[None]:
    """The main branch, whatever the caller has in force."""
    return norm.use(model, branch="main") if norm.layers(model) else nullcontext()


def _of(blended: str) -> str:
    return "" if blended == "std" else f" of {blended}"


@contextmanager
def _on_branch(model: nn.Module, name: str) -> Iterator[nn.Module]:
    there = norm.branches(model) or ("main",)
    if name not in there:
        listed = "only main" if len(there) == 1 else ", ".join(there)
        raise BadInput(f"this model has no branch {name!r}; it has {listed}")
    with _main(model) if name == "main" else norm.use(model, branch=name), guard(model):
        yield model
