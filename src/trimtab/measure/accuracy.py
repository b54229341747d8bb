"""Accuracy as a count: streamed, merged exactly, with the interval that its sample size allows.

Idea      correct out of n is all there is to know; two counts add up to the count of the whole, in any
          order and over any number of processes
Interval  Clopper and Pearson 1934, exact for every n: with k correct of n and a = 1 - level, the ends are the
          a/2 quantile of Beta(k, n - k + 1) and the 1 - a/2 quantile of Beta(k + 1, n - k)
Bounds    while images are still to come, all of them may turn out wrong, or right
Cost      one forward pass
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from scipy.stats import beta
from torch import Tensor, nn

from trimtab.attacks.base import check_pairs, wrong
from trimtab.attacks.guard import guard
from trimtab.norm.state import images_for
from trimtab.types import BadInput


@dataclass(frozen=True)
class Accuracy:
    """`correct` images of `n`.

    >>> whole = Accuracy(45, 60) + Accuracy(30, 40)
    >>> whole.value, whole.n
    (0.75, 100)
    """

    correct: int = 0
    n: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.correct <= self.n:
            raise BadInput(f"{self.correct} of {self.n} images cannot be correct")

    @classmethod
    def of(cls, correct: Tensor) -> Accuracy:
        """From one true or false per image."""
        return cls(int(correct.sum()), len(correct))

    def __add__(self, other: Accuracy) -> Accuracy:
        return Accuracy(self.correct + other.correct, self.n + other.n)

    @property
    def value(self) -> float:
        """The share that is correct; of no images, not a number."""
        return self.correct / self.n if self.n else float("nan")

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Clopper and Pearson's interval: it covers the true accuracy with at least this probability."""
        return clopper_pearson(self.correct, self.n, level)

    def bounds(self, total: int) -> tuple[float, float]:
        """Between which the accuracy over `total` images must come to lie, `n` of them known."""
        if total < max(self.n, 1):
            raise BadInput(f"{self.n} images are known already, so there cannot be {total} in all")
        return self.correct / total, (self.correct + total - self.n) / total


def clopper_pearson(correct: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """The exact two-sided interval for a share of which `correct` of `n` were seen."""
    if not 0 < level < 1:
        raise BadInput(f"a confidence level lies between 0 and 1, found {level:g}")
    tail = (1 - level) / 2
    low = float(beta.ppf(tail, correct, n - correct + 1)) if correct > 0 else 0.0
    high = float(beta.ppf(1 - tail, correct + 1, n - correct)) if correct < n else 1.0
    return low, high


def accuracy(model: nn.Module, batches: Iterable[tuple[Tensor, ...]]) -> Accuracy:
    """The accuracy of a model, in eval mode and left as it was, over batches that start (images, labels).

    What a `use` around it chose (a branch, batch statistics, a shift) is in force.
    """
    total = Accuracy()
    with guard(model, running=False), torch.no_grad():
        for x, y, *_ in batches:
            z = _logits(model, x, y)
            total += Accuracy.of(~wrong(z, y.to(z.device)))
    return total


def top_k(
    model: nn.Module, batches: Iterable[tuple[Tensor, ...]], k: tuple[int, ...] = (1, 5)
) -> dict[int, Accuracy]:
    """How often the label is among the k most likely classes, over batches that start (images, labels)."""
    total = dict.fromkeys(k, Accuracy())
    with guard(model, running=False), torch.no_grad():
        for x, y, *_ in batches:
            z = _logits(model, x, y)
            ranked = z.topk(min(max(k), z.shape[1]), 1).indices == y.to(z.device)[:, None]
            ranked &= ~z.isnan().any(1, keepdim=True)
            for one in k:
                total[one] += Accuracy.of(ranked[:, :one].any(1))
    return total


def _logits(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    check_pairs(x, y)
    z = model(images_for(model, x))
    if not isinstance(z, Tensor) or z.dim() != 2:
        raise BadInput("the model must return logits of shape (N, classes)")
    return z
