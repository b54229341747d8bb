"""What a row stores about its condition, as typed values: frozen dataclasses that survive JSON.

Reports and charts read these fields; `str()` renders one for people, and no text is ever parsed back. A
condition of your own is stored as an `OtherRecord`: its kind and its name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from trimtab.types import Budget, Linf, pretty

EARLY_STOPPING = "early stopping"
"""The iterate that counts where an image is dropped once it is misclassified."""


@dataclass(frozen=True)
class CleanRecord:
    """Clean images."""

    kind: Literal["clean"] = "clean"

    def __str__(self) -> str:
        return "clean"


@dataclass(frozen=True)
class NoiseRecord:
    """Additive Gaussian noise."""

    sigma: float
    """Std, in pixels."""
    clip: bool
    """Whether noisy pixels were clipped to [0, 1]."""
    kind: Literal["noise"] = "noise"

    def __str__(self) -> str:
        clipped = "clipped to [0, 1]" if self.clip else "unclipped"
        return f"Gaussian noise, sigma {pretty(self.sigma)}, {clipped}"


@dataclass(frozen=True)
class CorruptionRecord:
    """A common corruption."""

    name: str
    """As in `data.corruptions.CORRUPTIONS`."""
    severity: int
    """From 1 to 5."""
    ice: Literal["grown", "official"] | None = None
    """Of frost: generated textures, or the official photographs."""
    published: bool = False
    """Whether the images are published files; else they were corrupted on the fly."""
    kind: Literal["corruption"] = "corruption"

    @property
    def title(self) -> str:
        """The corruption without its severity."""
        where = "published" if self.published else self.ice and f"{self.ice} ice"
        return self.name.replace("_", " ") + (f" ({where})" if where else "")

    def __str__(self) -> str:
        return f"{self.title}, severity {self.severity}"


@dataclass(frozen=True)
class BudgetRecord:
    """The set of images that an attack may choose from."""

    norm: Literal["l_inf", "l_2"]
    eps: float
    """The radius, in pixels."""

    @classmethod
    def of(cls, budget: Budget) -> BudgetRecord:
        """Return the record of a budget."""
        return cls("l_inf" if isinstance(budget, Linf) else "l_2", budget.radius)

    def __str__(self) -> str:
        return f"{self.norm} {pretty(self.eps)}"


@dataclass(frozen=True)
class AttackRecord:
    """An adversarial attack; fields that it does not have are None."""

    method: str
    """The class of the attack, such as PGD."""
    label: str
    """The attack as text, with its settings."""
    budget: BudgetRecord | None = None
    steps: int | None = None
    step_size: float | None = None
    """In pixels."""
    loss: str | None = None
    targeted: bool = False
    restarts: int = 1
    early_stop: bool = False
    """Whether its settings stop at the first misclassified iterate; a coupled batch does not allow it."""
    kind: Literal["attack"] = "attack"

    @property
    def brief(self) -> str:
        """Method, steps, loss and budget, without the details."""
        if self.steps is None or self.loss is None or self.budget is None:
            return self.label
        return f"{'targeted ' * self.targeted}{self.method}-{self.steps} ({self.loss}), {self.budget}"

    def __str__(self) -> str:
        return self.label


@dataclass(frozen=True)
class CertificateRecord:
    """A certificate by randomized smoothing."""

    sigma: float
    """Std of the noise, in pixels."""
    n0: int
    """Samples that guess the class."""
    n: int
    """Samples that certify it."""
    alpha: float
    """The probability that a certificate is wrong."""
    clip: Literal[False] = False
    """Noisy pixels are never clipped: the certificate is of the Gaussian."""
    kind: Literal["certificate"] = "certificate"

    def __str__(self) -> str:
        samples = f"{self.n:,} samples, alpha {self.alpha:g}"
        return f"smoothed with sigma {pretty(self.sigma)}, unclipped, {samples}"


@dataclass(frozen=True)
class ShiftRecord:
    """Clean images, with every normalization mean and std shifted by random signs."""

    eps: float
    """The relative size of the shift."""
    kind: Literal["statistics"] = "statistics"

    def __str__(self) -> str:
        return f"statistics shifted by random signs, eps {pretty(self.eps)}"


@dataclass(frozen=True)
class SimilarityRecord:
    """Clean images, and the cosine similarity of loss gradients at and near each (LIGS)."""

    size: float
    """Std of the Gaussian step to the nearby image, in pixels."""
    clip: Literal[False] = False
    """The nearby image may leave [0, 1], as in the paper."""
    kind: Literal["gradients"] = "gradients"

    def __str__(self) -> str:
        return f"gradient similarity (LIGS), step {pretty(self.size)}, unclipped"


@dataclass(frozen=True)
class OtherRecord:
    """A condition that is not one of trimtab's."""

    label: str
    """Its name."""
    kind: str

    def __str__(self) -> str:
        return self.label


ConditionRecord: TypeAlias = (
    CleanRecord
    | NoiseRecord
    | CorruptionRecord
    | AttackRecord
    | CertificateRecord
    | ShiftRecord
    | SimilarityRecord
    | OtherRecord
)


@dataclass(frozen=True)
class ImagesRecord:
    """Which images a row was measured on: the positions start (included) to stop (excluded) of a set."""

    data: str
    """The name of the set, with its split."""
    digest: str
    """Hash of its images and labels."""
    start: int
    stop: int

    def __str__(self) -> str:
        return f"images {self.start}–{self.stop - 1} of {self.data}"


@dataclass(frozen=True)
class Curve:
    """Accuracy as a function of one quantity, measured on the same images."""

    axis: Literal["iterations", "radius"]
    """After how many iterations of one attack, or certified within which l2 radius."""
    points: tuple[tuple[float, float], ...]
    """(x, accuracy), x ascending."""


@dataclass(frozen=True)
class Measure:
    """A mean that a row shows in place of its accuracy, with its 95 % interval; None where undefined."""

    name: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
