"""Accuracy as a count: streamed, merged exactly, with an exact confidence interval.

Idea      (correct, n) is a sufficient statistic; counts add up to the count of the whole, in any order and
          over any number of processes
Interval  Clopper and Pearson 1934, exact for every n: with k correct of n and a = 1 - level, the ends are the
          a/2 quantile of Beta(k, n - k + 1) and the 1 - a/2 quantile of Beta(k + 1, n - k)
Bounds    of the final accuracy while images are missing: all of them may be misclassified, or correct
Cost      one forward pass
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from scipy.stats import beta
from torch import Tensor, nn

from trimtab.norm.state import images_for
from trimtab.runtime import check_pairs, guard, is_misclassified, require_logits
from trimtab.types import BadInput


@dataclass(frozen=True)
class Accuracy:
    """A count of correctly classified images, `correct` of `n`.

    >>> whole = Accuracy(45, 60) + Accuracy(30, 40)
    >>> whole.value, whole.n
    (0.75, 100)
    """

    correct: int = 0
    """Correctly classified images."""
    n: int = 0
    """Images."""

    def __post_init__(self) -> None:
        if not 0 <= self.correct <= self.n:
            raise BadInput(f"{self.correct} of {self.n} images cannot be correct")

    @classmethod
    def of(cls, correct: Tensor) -> Accuracy:
        """Count from one boolean per image."""
        return cls(int(correct.sum()), len(correct))

    def __add__(self, other: Accuracy) -> Accuracy:
        return Accuracy(self.correct + other.correct, self.n + other.n)

    @property
    def value(self) -> float:
        """The fraction that is correct; NaN without images."""
        return self.correct / self.n if self.n else float("nan")

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Return the Clopper-Pearson interval: it covers the true accuracy with at least this probability."""
        return clopper_pearson(self.correct, self.n, level)

    def bounds(self, total: int) -> tuple[float, float]:
        """Return the range in which the accuracy over `total` images must lie, given these `n`."""
        if total < max(self.n, 1):
            raise BadInput(f"{self.n} images are known already, so there cannot be {total} in all")
        return self.correct / total, (self.correct + total - self.n) / total


def clopper_pearson(correct: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Return the exact two-sided confidence interval of a probability with `correct` hits of `n`."""
    if not 0 < level < 1:
        raise BadInput(f"a confidence level lies between 0 and 1, found {level:g}")
    tail = (1 - level) / 2
    low = float(beta.ppf(tail, correct, n - correct + 1)) if correct > 0 else 0.0
    high = float(beta.ppf(1 - tail, correct + 1, n - correct)) if correct < n else 1.0
    return low, high


def accuracy(model: nn.Module, batches: Iterable[tuple[Tensor, ...]]) -> Accuracy:
    """Return the accuracy of a model over batches of (images, labels, ...).

    The model runs in eval mode and is left unchanged; the settings of an enclosing `norm.use` apply.
    """
    total = Accuracy()
    with guard(model, running=False), torch.no_grad():
        for x, y, *_ in batches:
            z = _logits(model, x, y)
            total += Accuracy.of(~is_misclassified(z, y.to(z.device)))
    return total


def top_k(
    model: nn.Module, batches: Iterable[tuple[Tensor, ...]], k: tuple[int, ...] = (1, 5)
) -> dict[int, Accuracy]:
    """Return how often the label is among the top k classes, for each k, over batches of (images, labels)."""
    total = dict.fromkeys(k, Accuracy())
    with guard(model, running=False), torch.no_grad():
        for x, y, *_ in batches:
            z = _logits(model, x, y)
            ranked = z.topk(min(max(k), z.shape[1]), 1).indices == y.to(z.device)[:, None]
            ranked &= ~z.isnan().any(1, keepdim=True)
            for rank in k:
                total[rank] += Accuracy.of(ranked[:, :rank].any(1))
    return total


def _logits(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    check_pairs(x, y)
    return require_logits(model(images_for(model, x)))
