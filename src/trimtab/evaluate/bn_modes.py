"""Which statistics normalize while a cell is measured: the axis of an evaluation that others leave implicit.

A BN mode is a frozen dataclass, a value that rows store, that activates the module to measure for one block:

    RunningMode    running statistics of the main branch, as `model.eval()` has them
    BranchMode     those of a named branch
    PerBatchMode   re-estimated on every batch (`adapt.per_batch`); the batch is part of the result
    FrozenMode     re-estimated once, on the first images of the data under the condition that is evaluated
                   (`adapt.frozen`); they may be more than are evaluated
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

from trimtab.types import BadInput, at_least

if TYPE_CHECKING:
    from torch import Tensor, nn

FirstImages: TypeAlias = "Callable[[int], Tensor]"
"""The first n images of the data, under the condition that is evaluated."""


class BNMode:
    """Base of all BN modes. A mode of your own needs a `kind`, `activate` and `__str__`."""

    kind: str
    """The name of the mode in stored rows."""
    version: ClassVar[int] = 1
    """Part of every result's key: raised whenever a change moves numbers."""
    couples: ClassVar[bool] = False
    """Whether images of a batch influence each other by design."""

    def activate(self, model: nn.Module, first: FirstImages) -> AbstractContextManager[nn.Module]:
        """Yield the module to measure, guarded; `model` itself is left as it was.

        Args:
            model: the model that is evaluated.
            first: returns the first n images of the data, for modes that estimate statistics on them.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class RunningMode(BNMode):
    """Normalize with the running statistics of the main branch."""

    kind: Literal["running"] = field(default="running", kw_only=True, repr=False)

    def activate(self, model: nn.Module, first: FirstImages) -> AbstractContextManager[nn.Module]:
        """Yield the model, guarded, with its main branch active."""
        return _on_branch(model, "main")

    def __str__(self) -> str:
        return "running"


@dataclass(frozen=True)
class BranchMode(BNMode):
    """Normalize with the affine parameters and running statistics of a named branch."""

    name: str
    """The branch."""
    kind: Literal["branch"] = field(default="branch", kw_only=True, repr=False)

    def activate(self, model: nn.Module, first: FirstImages) -> AbstractContextManager[nn.Module]:
        """Yield the model, guarded, with the named branch active."""
        return _on_branch(model, self.name)

    def __str__(self) -> str:
        return f"branch {self.name}"


@dataclass(frozen=True)
class PerBatchMode(BNMode):
    """Re-estimate the statistics on every batch, blended with the running ones."""

    rho: float = 1.0
    """Weight of the batch's own statistics, from 0 to 1."""
    blend_of: str = "std"
    """What rho blends in addition to the mean: "std" (the paper) or "var"."""
    kind: Literal["per_batch"] = field(default="per_batch", kw_only=True, repr=False)
    couples: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "rho", float(self.rho))  # 1 and 1.0 are one mode

    def activate(self, model: nn.Module, first: FirstImages) -> AbstractContextManager[nn.Module]:
        """Yield an adapted copy, guarded."""
        from trimtab import adapt
        from trimtab.runtime import guard

        with _main(model):
            return guard(adapt.per_batch(model, self.rho, self.blend_of))

    def __str__(self) -> str:
        return f"adapted per batch (rho {self.rho:g}{_blend_suffix(self.blend_of)})"


@dataclass(frozen=True)
class FrozenMode(BNMode):
    """Re-estimate the statistics once on the first images of the data, then keep them."""

    rho: float = 1.0
    """Weight of the images' statistics, from 0 to 1."""
    images: int = 256
    """How many of the first images of the data they are estimated on."""
    blend_of: str = "std"
    """What rho blends in addition to the mean: "std" (the paper) or "var"."""
    kind: Literal["frozen"] = field(default="frozen", kw_only=True, repr=False)
    version: ClassVar[int] = 2

    def __post_init__(self) -> None:
        object.__setattr__(self, "rho", float(self.rho))
        at_least(1, images=self.images)

    def activate(self, model: nn.Module, first: FirstImages) -> AbstractContextManager[nn.Module]:
        """Yield a copy with frozen statistics, guarded."""
        from trimtab import adapt
        from trimtab.runtime import guard

        shown = first(self.images)
        if len(shown) < self.images:
            raise BadInput(
                f"statistics cannot be frozen on {self.images:,} images, for there are {len(shown):,}; "
                f"take at most {len(shown):,}, such as frozen:{len(shown)}"
            )
        with _main(model):
            return guard(adapt.frozen(model, shown, self.rho, self.blend_of))

    def __str__(self) -> str:
        blend = _blend_suffix(self.blend_of)
        return f"frozen on the first {self.images} images (rho {self.rho:g}{blend})"


@dataclass(frozen=True)
class StoredMode(BNMode):
    """A BN mode of a stored row that this version knows by its name only; it cannot be activated."""

    label: str
    """The name that the mode had where it was measured."""
    kind: str = field(default="other", kw_only=True, repr=False)

    def activate(self, model: nn.Module, first: FirstImages) -> AbstractContextManager[nn.Module]:
        """Refuse: the mode is known by name only."""
        raise BadInput(f"the BN mode {self.label!r} is known from a stored row only and cannot be activated")

    def __str__(self) -> str:
        return self.label


BNModeRecord: TypeAlias = RunningMode | BranchMode | PerBatchMode | FrozenMode | StoredMode
"""What a row stores."""
KNOWN = (RunningMode, BranchMode, PerBatchMode, FrozenMode, StoredMode)


def mode_record(mode: BNMode) -> BNModeRecord:
    """Return the mode as a row stores it: one of ours as it is, one of your own by kind and name."""
    if isinstance(mode, KNOWN):
        return mode
    return StoredMode(str(mode), kind=str(getattr(mode, "kind", type(mode).__name__)))


def _main(model: nn.Module) -> AbstractContextManager[None]:
    """The main branch, whichever branch the caller has activated."""
    from trimtab import norm

    return norm.use(model, branch="main") if norm.layers(model) else nullcontext()


def _blend_suffix(blend_of: str) -> str:
    return "" if blend_of == "std" else f" of {blend_of}"


@contextmanager
def _on_branch(model: nn.Module, name: str) -> Iterator[nn.Module]:
    from trimtab import norm
    from trimtab.runtime import guard

    available = norm.branches(model) or ("main",)
    if name not in available:
        listed = "only main" if len(available) == 1 else ", ".join(available)
        raise BadInput(f"this model has no branch {name!r}; it has {listed}")
    with _main(model) if name == "main" else norm.use(model, branch=name), guard(model):
        yield model
