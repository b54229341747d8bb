"""The five choices of every forward pass of a batch-norm layer, as one frozen value.

    branch   whose parameters and running statistics?       a name, or (name, count) pairs that route
    source   which mean and std normalize?                  "batch", "running", "blend" with `rho`
    update   are the running statistics updated?            False, True, a momentum, "average"
    groups   over which part of the batch are they taken?   n equal groups
    shift    are they perturbed?                            a `Shift` per layer

`None` means what stock PyTorch would do in the layer's current mode.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

Route = tuple[tuple[str, int], ...]
"""Parts of the batch in order: (branch, number of images)."""

MAIN = "main"
"""The branch of a stock layer."""


class Moments(NamedTuple):
    """Mean and (biased) variance per channel, and the number of values they were taken over."""

    mean: Tensor
    var: Tensor
    n: int

    @property
    def unbiased(self) -> Tensor:
        """The unbiased variance, which torch stores."""
        return self.var * (self.n / max(self.n - 1, 1))


@dataclass(frozen=True, eq=False)
class Shift:
    """A perturbation of one layer's statistics: gamma (1 + sigma) (x - (1 + mu) mean) / std + beta."""

    mu: Tensor | None = None
    """delta_mu, one value per channel; None is zero."""
    sigma: Tensor | None = None
    """delta_sigma, one value per channel; None is zero."""
    through: bool = True
    """Whether gradients flow through the mean and std that multiply delta_mu (APART, Eq. 3)."""


class Setting(NamedTuple):
    """What one layer does in its next forward pass. Replaced by `use`, never changed."""

    branch: str | Route | None = None
    """Whose parameters and running statistics: a branch, or a route that splits the batch."""
    source: str | None = None
    """Which mean and std normalize: "batch", "running" or "blend"."""
    rho: float | None = None
    """Weight of the batch in a blend; 0 is running, 1 is batch."""
    blend_of: str | None = None
    """What a blend mixes in addition to the mean: "std" (the default, Nandy et al.), "var" (Schneider et al.)
    or "pooled", the variance of the union of the two populations."""
    update: bool | float | str | None = None
    """Whether the running statistics are updated: False, True, a momentum, or "average" (cumulative)."""
    groups: int | None = None
    """Number of equal groups of the batch whose statistics are taken separately."""
    shift: Shift | None = None
    """Perturbation of the statistics."""
    estimator: Callable[[Tensor], Moments] | None = None
    """Estimates the batch's moments; mean and variance if None (`robust_moments` is another)."""
    observe: Callable[[Moments], None] | None = None
    """Called with the batch's moments in each pass; set by `norm.observe`."""


NEUTRAL = Setting()
"""No knob is turned: the layer runs the stock forward pass."""
