"""What is done to the images of a cell. A condition turns a batch into one value per image and column.

A condition is a frozen dataclass with a `version`. The column `correct` is what the accuracy counts; further
columns are stored with it, and `figures`, `curve` and `measure` summarize them for the row. A new measurement
is a new subclass: the engine, the store and the card take it as it is.

    Clean         clean images
    Noise         with Gaussian noise N(0, sigma^2 I), which may leave [0, 1] unless it is clipped
    Corrupted     with a common corruption
    Attacked      through an attack; the model as given (not its fast copy) classifies the resulting images
                  (an iteration curve is `Attacked(attacks.CurvePGD(...))`)

Certificates are in `certified`, gradient similarity and shifted statistics in `analysis`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor, nn

from trimtab import attacks, rng
from trimtab.attacks.geometry import distance
from trimtab.data.corruptions import corrupt
from trimtab.data.corruptions.apply import MIN_SIDE, supports
from trimtab.data.corruptions.ice import photographs
from trimtab.data.sets import Batch
from trimtab.evaluate import records
from trimtab.runtime import check_classes, is_misclassified, require_logits
from trimtab.types import BadInput, Budget, InputSpec, Linf, at_least, number

Columns: TypeAlias = dict[str, Tensor]
"""One value per image and name."""
IMAGES = "images"
"""The column of adversarial images; kept only if asked for."""
AFTER = "after "
"""Prefix of the columns of an iteration curve."""
ROUNDING = 1e-5
"""Tolerance for the budget and pixel range of attacks that are not ours."""
_NOISE = 11  # the purpose of these random numbers


class Condition:
    """Base of all conditions: classifies the images, as given or changed, and records which are correct."""

    version: ClassVar[int] = 1
    """Part of every result's key: raised whenever a change moves numbers."""
    kind: ClassVar[str]
    """What a report groups by."""
    whole: ClassVar[bool] = False
    """Whether chunks must not be split into smaller batches, because images influence each other's result."""

    @property
    def cost(self) -> float:
        """Approximate forward passes per image; only the time left is estimated from it."""
        return 1.0

    def check(self, spec: InputSpec) -> None:
        """Refuse images that the condition is not defined for, before anything is measured."""

    def applies(self, model: nn.Module, coupled: bool) -> bool:
        """Return whether the condition is defined on this model; if not, the card has no such row.

        Args:
            model: the model that is evaluated.
            coupled: whether images of a batch influence each other in it.
        """
        return True

    def iterate(self, coupled: bool) -> str:
        """Return which iterate of an attack counts; empty for conditions without iterates."""
        return ""

    def shown(self, batch: Batch, seed: int) -> Tensor:
        """Return the images as the model gets them, before any attack."""
        return batch.x

    def columns(self, model: nn.Module, batch: Batch, seed: int) -> Columns:
        """Return one value per image: at least `correct`. `model` is guarded: in eval mode, frozen."""
        return {"correct": correct(model, self.shown(batch, seed), batch.y)}

    def figures(self, columns: Columns) -> dict[str, float]:
        """Return further scalars over all images of the cell, by name."""
        return {}

    def curve(self, columns: Columns) -> records.Curve | None:
        """Return the accuracy as a function of iterations or radius, if the columns hold one."""
        return None

    def measure(self, columns: Columns) -> records.Measure | None:
        """Return the mean that the row is about, if that is not the accuracy."""
        return None

    def record(self) -> records.ConditionRecord:
        """Return the typed value that rows store."""
        return records.OtherRecord(str(self), self.kind)


@torch.no_grad()
def correct(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return which images are classified correctly."""
    return ~is_misclassified(logits(model, x, y), y)


def logits(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the model's logits, checked to be those of a classifier of these labels."""
    z = require_logits(model(x))
    check_classes(y, z.shape[1])
    return z


class Recorded(Condition):
    """A condition of ours, named as its record is."""

    def __str__(self) -> str:
        return str(self.record())


@dataclass(frozen=True)
class Clean(Recorded):
    """Clean images."""

    kind: ClassVar[str] = "clean"

    def record(self) -> records.CleanRecord:
        """Return the typed value that rows store."""
        return records.CleanRecord()


@dataclass(frozen=True)
class Noise(Recorded):
    """Additive Gaussian noise, sampled per (seed, image)."""

    sigma: float | str = 0.1
    """Std, in pixels."""
    clip: bool = False
    """Clip the noisy pixels to [0, 1]; the papers, certification and adaptation do not."""
    kind: ClassVar[str] = "noise"
    version: ClassVar[int] = 2

    def __post_init__(self) -> None:
        object.__setattr__(self, "sigma", number(self.sigma))
        at_least(0, sigma=float(self.sigma))

    def shown(self, batch: Batch, seed: int) -> Tensor:
        """Return the noisy images."""
        noise = rng.normal(batch.x, seed, batch.ids.tolist(), _NOISE)
        noisy = batch.x + float(self.sigma) * noise
        return noisy.clamp(0, 1) if self.clip else noisy

    def record(self) -> records.NoiseRecord:
        """Return the typed value that rows store."""
        return records.NoiseRecord(float(self.sigma), self.clip)


@dataclass(frozen=True)
class Corrupted(Recorded):
    """A common corruption."""

    name: str
    """As in `data.corruptions.CORRUPTIONS`."""
    severity: int = 3
    """From 1 to 5."""
    frost_textures: str | None = None
    """The folder of the official photographs of ice; textures are generated without it."""
    kind: ClassVar[str] = "corruption"
    version: ClassVar[int] = 2

    def cache_key(self) -> dict[str, Any]:
        """Return what a key has in place of fields: the photographs of ice where used, not their path."""
        used = self.name == "frost" and self.frost_textures is not None
        return {"frost_textures": photographs(str(self.frost_textures)) if used else None}

    def shown(self, batch: Batch, seed: int) -> Tensor:
        """Return the corrupted images."""
        textures = self.frost_textures
        return corrupt(batch.x, self.name, self.severity, seed=seed, ids=batch.ids, frost_textures=textures)

    def check(self, spec: InputSpec) -> None:
        """Refuse images that are too small or neither gray nor RGB."""
        if not supports(spec.channels, *spec.size):
            height, width = spec.size
            raise BadInput(
                f"corruptions are defined for gray or RGB images of at least {MIN_SIDE} x {MIN_SIDE} pixels, "
                f"and these have {spec.channels} channels and {height} x {width}; take a suite without them "
                f"(quick), or larger images (folder:PATH@{MIN_SIDE})"
            )

    def record(self) -> records.CorruptionRecord:
        """Return the typed value that rows store."""
        textures: Literal["official", "grown"] = "official" if self.frost_textures else "grown"
        return records.CorruptionRecord(self.name, self.severity, textures if self.name == "frost" else None)


@dataclass(frozen=True)
class Attacked(Recorded):
    """Adversarial images, classified by the model as given."""

    attack: Callable[..., Tensor]
    """One of trimtab's attacks, or a frozen dataclass of yours, called (model, x, y), that has a version."""
    kind: ClassVar[str] = "attack"

    @property
    def whole(self) -> bool:  # type: ignore[override]
        """An attack of yours may draw its random numbers for a batch as a whole."""
        return self.attack.joint if isinstance(self.attack, attacks.Attack) else True

    @property
    def cost(self) -> float:
        """Approximate forward passes per image; a backward pass counts as two."""
        return 2 + 3.0 * getattr(self.attack, "steps", 100) * getattr(self.attack, "restarts", 1)

    @property
    def budget(self) -> Budget | None:
        """The attack's budget, if it is one of ours."""
        given = getattr(self.attack, "budget", None)
        return given if isinstance(given, Budget) else None

    def iterate(self, coupled: bool) -> str:
        """Return which iterate counts: early stopping, the last one, the best one, or as returned."""
        if not isinstance(self.attack, attacks.Attack):
            return "as returned"
        return self.attack.scored(coupled)

    def applies(self, model: nn.Module, coupled: bool) -> bool:
        """Return whether the attack is meant for a model that does (not) couple its batch."""
        if coupled:
            return not getattr(self.attack, "one_by_one", False)
        return not getattr(self.attack, "adaptive", False)  # its images are for a model that adapts

    def columns(self, model: nn.Module, batch: Batch, seed: int) -> Columns:
        """Return which adversarial images are classified correctly, the images, and when each failed."""
        if not isinstance(self.attack, attacks.Attack):
            x = _checked(self.attack(model, batch.x, batch.y), batch.x, self.budget)
            return {"correct": correct(model, x, batch.y), IMAGES: x}
        outcome = self.attack.outcome(model, batch.x, batch.y, seed=seed, ids=batch.ids)
        columns = {
            "correct": correct(model, outcome.x, batch.y), IMAGES: outcome.x, "broken_at": outcome.success_at
        }  # fmt: skip
        return columns | {f"{AFTER}{steps}": ~failed for steps, failed in sorted(outcome.marks.items())}

    def curve(self, columns: Columns) -> records.Curve | None:
        """Return the points of an iteration curve (`attacks.CurvePGD`)."""
        marks = sorted(int(name.removeprefix(AFTER)) for name in columns if name.startswith(AFTER))
        points = tuple((float(m), float(columns[f"{AFTER}{m}"].double().mean())) for m in marks)
        return records.Curve("iterations", points) if points else None

    def record(self) -> records.AttackRecord:
        """Return the typed value that rows store."""
        attack, is_ours = self.attack, isinstance(self.attack, attacks.Attack)
        step = getattr(attack, "step", None) if is_ours else None
        return records.AttackRecord(
            method=type(attack).__name__,
            label=str(attack),
            budget=records.BudgetRecord.of(self.budget) if self.budget else None,
            steps=getattr(attack, "steps", None) if is_ours else None,
            step_size=float(step) if isinstance(step, int | float) else None,
            loss=getattr(attack, "loss", None) if is_ours else None,
            targeted=bool(getattr(attack, "targeted", False)) if is_ours else False,
            restarts=getattr(attack, "restarts", 1) if is_ours else 1,
            early_stop=self.iterate(coupled=False) == records.EARLY_STOPPING,
        )


def _checked(returned: Any, x: Tensor, budget: Budget | None) -> Tensor:
    """Refuse what an attack that is not ours returned unless it has the images' shape, range and budget."""
    if not isinstance(returned, Tensor) or returned.shape != x.shape:
        shape = tuple(returned.shape) if isinstance(returned, Tensor) else f"a {type(returned).__name__}"
        raise BadInput(f"the attack was given images of shape {tuple(x.shape)} and returned {shape}")
    returned = returned.detach().to(x)
    slack = max(ROUNDING, torch.finfo(x.dtype).eps)  # half precision cannot do better
    low, high = float(returned.min()), float(returned.max())
    if not (low >= -slack and high <= 1 + slack):
        raise BadInput(f"the attack returned pixels from {low:.3g} to {high:.3g}; they must lie in [0, 1]")
    far = 0.0 if budget is None else float(distance(returned.float(), x.float(), budget).max())
    spread = 1.0 if isinstance(budget, Linf) or slack == ROUNDING else x[0].numel() ** 0.5
    if budget is not None and not far <= budget.radius + slack * spread:
        raise BadInput(f"the attack left its budget: {far:.4g} from an image, {budget} allowed")
    return returned


def as_condition(given: Any) -> Condition:
    """Return a condition as it is, and an attack as the condition `Attacked`."""
    if isinstance(given, Condition):
        return given
    if isinstance(given, attacks.CoBatch):
        raise BadInput(
            "a co-batch attack replaces images of the batch, so it has no accuracy over all of them"
        )
    if callable(given):
        return Attacked(given)
    raise BadInput(f"a suite holds conditions and attacks, found {given!r}")
