"""What is done to the images of a cell. A condition turns a batch into one value per image and column.

A condition is a frozen dataclass with a `version`. The column `correct` is what the accuracy counts; further
columns are kept beside it, and `figures` says which numbers to print of them. A new measurement is a new
subclass: the engine, the store and the card take it as it is.

    Clean         the images as they are
    Noise         with Gaussian noise of deviation sigma, clipped to [0, 1]
    Corrupted     with a common corruption
    Attacked      through an attack; the model as given (not its fast copy) judges the resulting images
                  (an iteration curve is `Attacked(attacks.CurvePGD(...))`)

Certificates are in `certified`, gradient similarity and moved statistics in `lens`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor, nn

from trimtab import attacks, draws
from trimtab.attacks.base import check_classes, wrong
from trimtab.attacks.geometry import distance
from trimtab.data.corruptions import corrupt
from trimtab.data.corruptions.apply import LEAST, takes
from trimtab.data.corruptions.ice import photographs
from trimtab.data.sets import Batch
from trimtab.types import BadInput, Budget, InputSpec, Linf, number, pretty

Columns: TypeAlias = dict[str, Tensor]
"""One value per image and name."""
IMAGES = "images"
"""The column of adversarial images; kept only if asked for."""
AFTER = "after "
"""How the columns of an iteration curve begin."""
ROUNDING = 1e-5
"""What an attack that is not ours may be off by."""
_NOISE = 11  # what a random draw is for


class Condition:
    """Base of all conditions: shows the model images, and sees which ones it gets right."""

    version: ClassVar[int] = 1
    """Part of every result's key: raised whenever a change moves numbers."""
    kind: ClassVar[str]
    """What a report groups by."""
    instead: ClassVar[str] = ""
    """The figure that a row of this condition is about, if it is not the accuracy."""
    whole: ClassVar[bool] = False
    """Whether the images must come in chunks as they are, because the result depends on them together."""

    @property
    def cost(self) -> float:
        """Roughly how many forward passes an image needs; only the time left is guessed from it."""
        return 1.0

    def check(self, spec: InputSpec) -> None:
        """Refuse images that it is not defined for, before anything is measured."""

    def applies(self, model: nn.Module, coupled: bool) -> bool:
        """Whether there is anything to measure on this model, whose images may influence each other in a
        batch (`coupled`); if not, its card has no such row.
        """
        return True

    def score(self, coupled: bool) -> str:
        """Which image of an attack counts; none leaves a batch whose images influence each other."""
        return ""

    def shown(self, batch: Batch, seed: int) -> Tensor:
        """The images as the model meets them, before any attack."""
        return batch.x

    def columns(self, model: nn.Module, batch: Batch, seed: int) -> Columns:
        """One value per image: at least `correct`. `model` is guarded: in eval mode, frozen."""
        return {"correct": correct(model, self.shown(batch, seed), batch.y)}

    def figures(self, columns: Columns) -> dict[str, float]:
        """What to print beside the accuracy, over all images of the cell."""
        return {}


@torch.no_grad()
def correct(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Which images the model gets right."""
    return ~wrong(logits(model, x, y), y)


def logits(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """What the model says, if it says it as a classifier of these labels does."""
    z = model(x)
    if not isinstance(z, Tensor) or z.dim() != 2:
        raise BadInput("the model must return logits of shape (N, classes)")
    check_classes(y, z.shape[1])
    return z


@dataclass(frozen=True)
class Clean(Condition):
    kind: ClassVar[str] = "clean"

    def __str__(self) -> str:
        return "clean"


@dataclass(frozen=True)
class Noise(Condition):
    sigma: float | str = 0.1
    """Standard deviation in pixels."""
    kind: ClassVar[str] = "noise"

    def __post_init__(self) -> None:
        object.__setattr__(self, "sigma", number(self.sigma))
        if float(self.sigma) < 0:
            raise BadInput(f"a deviation must not be negative, found sigma {float(self.sigma):g}")

    def shown(self, batch: Batch, seed: int) -> Tensor:
        noise = draws.normal(batch.x, seed, batch.ids.tolist(), _NOISE)
        return (batch.x + float(self.sigma) * noise).clamp(0, 1)

    def __str__(self) -> str:
        return f"Gaussian noise, sigma {pretty(float(self.sigma))}"


@dataclass(frozen=True)
class Corrupted(Condition):
    name: str
    severity: int = 3
    frost_textures: str | None = None
    """The folder of the official pictures of ice; ice is grown without it, and the name says which."""
    kind: ClassVar[str] = "corruption"
    version: ClassVar[int] = 2

    def determined_by(self) -> dict[str, Any]:
        """What a key tells of it: the pictures of ice, where they are used, and not where they lie."""
        used = self.name == "frost" and self.frost_textures is not None
        return {"frost_textures": photographs(str(self.frost_textures)) if used else None}

    def shown(self, batch: Batch, seed: int) -> Tensor:
        textures = self.frost_textures
        return corrupt(batch.x, self.name, self.severity, seed=seed, ids=batch.ids, frost_textures=textures)

    def check(self, spec: InputSpec) -> None:
        if not takes(spec.channels, *spec.size):
            height, width = spec.size
            raise BadInput(
                f"corruptions are defined for grey or RGB images of at least {LEAST} x {LEAST} pixels, and "
                f"these have {spec.channels} channels and {height} x {width}; take a suite without them "
                f"(quick), or larger images (folder:PATH@{LEAST})"
            )

    def __str__(self) -> str:
        ice = (
            ""
            if self.name != "frost"
            else " (grown ice)"
            if self.frost_textures is None
            else " (official ice)"
        )
        return f"{self.name.replace('_', ' ')}{ice}, severity {self.severity}"


@dataclass(frozen=True)
class Attacked(Condition):
    attack: Callable[..., Tensor]
    """One of trimtab's attacks, or a frozen dataclass of yours, called (model, x, y), that has a version."""
    kind: ClassVar[str] = "attack"

    @property
    def whole(self) -> bool:  # type: ignore[override]
        """An attack of yours may draw its random numbers for a batch as a whole."""
        return self.attack.joint if isinstance(self.attack, attacks.Attack) else True

    @property
    def cost(self) -> float:
        return 2 + 3.0 * getattr(self.attack, "steps", 100) * getattr(self.attack, "restarts", 1)

    @property
    def budget(self) -> Budget | None:
        """Of an attack of yours, if it is one of ours."""
        given = getattr(self.attack, "budget", None)
        return given if isinstance(given, Budget) else None

    def score(self, coupled: bool) -> str:
        return self.attack.scored(coupled) if isinstance(self.attack, attacks.Attack) else "as returned"

    def applies(self, model: nn.Module, coupled: bool) -> bool:
        if coupled:
            return not getattr(self.attack, "one_by_one", False)
        return not getattr(self.attack, "adaptive", False)  # its images are for a model that adapts

    def columns(self, model: nn.Module, batch: Batch, seed: int) -> Columns:
        if not isinstance(self.attack, attacks.Attack):
            x = _believed(self.attack(model, batch.x, batch.y), batch.x, self.budget)
            return {"correct": correct(model, x, batch.y), IMAGES: x}
        found = self.attack.outcome(model, batch.x, batch.y, seed=seed, ids=batch.ids)
        judged = {"correct": correct(model, found.x, batch.y), IMAGES: found.x, "broken_at": found.broken_at}
        return judged | {f"{AFTER}{mark}": ~broken for mark, broken in sorted(found.marks.items())}

    def figures(self, columns: Columns) -> dict[str, float]:
        """The points of an iteration curve (`attacks.CurvePGD`): the accuracy after so many iterations."""
        return {name: float(columns[name].double().mean()) for name in columns if name.startswith(AFTER)}

    def __str__(self) -> str:
        return str(self.attack)


def _believed(found: Any, x: Tensor, budget: Budget | None) -> Tensor:
    """What an attack that is not ours returned, if it is what an attack may return."""
    if not isinstance(found, Tensor) or found.shape != x.shape:
        told = tuple(found.shape) if isinstance(found, Tensor) else f"a {type(found).__name__}"
        raise BadInput(f"the attack was given images of shape {tuple(x.shape)} and returned {told}")
    found = found.detach().to(x)
    slack = max(ROUNDING, torch.finfo(x.dtype).eps)  # half precision cannot do better
    low, high = float(found.min()), float(found.max())
    if not (low >= -slack and high <= 1 + slack):
        raise BadInput(f"the attack returned pixels from {low:.3g} to {high:.3g}; they must lie in [0, 1]")
    far = 0.0 if budget is None else float(distance(found.float(), x.float(), budget).max())
    spread = 1.0 if isinstance(budget, Linf) or slack == ROUNDING else x[0].numel() ** 0.5
    if budget is not None and not far <= budget.radius + slack * spread:
        raise BadInput(f"the attack left its budget: {far:.4g} from an image, {budget} allowed")
    return found


def as_condition(given: Any) -> Condition:
    """A condition as it is; an attack as the condition of being attacked."""
    if isinstance(given, Condition):
        return given
    if isinstance(given, attacks.CoBatch):
        raise BadInput(
            "a co-batch attack replaces images of the batch, so it has no accuracy over all of them"
        )
    if callable(given):
        return Attacked(given)
    raise BadInput(f"a suite holds conditions and attacks, found {given!r}")
