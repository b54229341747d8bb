"""A running estimate over batches: adaptation for images that arrive one by one, and keep changing.

Idea      after n images the statistics are N/(N + n) of the source and n/(N + n) of what was seen since
          the last reset, as if the source were worth N images; the batch at hand counts before it is
          normalised. Variances are pooled (within and between batches), so single images do not
          shrink them.
Papers    the prior N/(N + n) is Schneider et al. 2020; reset per domain as in Tent's protocol
Norm      source "blend" of "pooled" variance with rho = b/(N + n) for a batch of b, then `adopt`
Cost      one forward pass with training-mode statistics
Careful   an image's output depends on those before it. `alarm` says when predictions collapse; a stream
          of a single class, or a hostile one, leads any such estimate astray: `rollback` or `reset`.
"""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

import torch
from torch import Tensor, nn

from trimtab import norm
from trimtab.adapt.per_batch import Adapting, steered_copy
from trimtab.types import BadInput, number

WINDOW = 256
"""Predictions that the collapse alarm looks back on."""
FEWEST = 32
"""Predictions before it says anything."""


class Mark(NamedTuple):
    """A point of a stream to roll back to."""

    statistics: norm.Snapshot
    seen: int
    predicted: tuple[int, ...] = ()
    entropies: tuple[float, ...] = ()


class Stream(Adapting):
    """A copy of a model with a running estimate of its statistics."""

    def __init__(self, model: nn.Module, prior: float | str) -> None:
        super().__init__()
        prior = number(prior)
        if prior < 0:
            raise BadInput(f"prior is what the source is worth in images, 0 or more, found {prior!r}")
        self.model = steered_copy(model)
        self.prior = prior
        self.seen = 0
        """Images since the last reset."""
        self._source = norm.snapshot(self.model)
        self._kept: dict[str, norm.Moments] = {}
        self._predicted: deque[int] = deque(maxlen=WINDOW)
        self._entropies: deque[float] = deque(maxlen=WINDOW)
        self._classes = 0

    @property
    def provenance(self) -> str:
        return f"a running estimate over {self.seen} images (prior {self.prior:g})"

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        if len(x) == 0 or not bool(x.isfinite().all()):
            raise BadInput(
                "a stream learns from every image: give at least one, and none with NaN or infinity"
            )
        rho = len(x) / (self.prior + self.seen + len(x))
        steering = norm.use(self.model, source="blend", rho=rho, blend_of="pooled", update=False)
        with steering, norm.observe(self.model) as batch:
            z: Tensor = self.model(x)
        if not isinstance(z, Tensor):
            raise BadInput("the model must return logits of shape (N, classes); the stream has not learnt")
        if rho == 1 and any(seen.n == 1 for seen in batch.values()):
            raise BadInput("one value per channel has no deviation: start with more images, or with a prior")
        if not all(bool((seen.mean + seen.var).isfinite().all()) for seen in batch.values()):
            raise BadInput(
                "these images drive a layer beyond all numbers; the stream has not learnt from them"
            )
        for name, held in self._wide().items():
            if name in batch:  # pooled variances do not ask for eps
                mean, var = norm.blend(batch[name], held.mean, held.var, rho, "pooled", 0.0)
                self._kept[name] = norm.Moments(mean, var, self.seen)
        norm.adopt(self.model, self._kept, 1.0, "var")
        self.seen += len(x)
        self._watch(z)
        return z

    def _wide(self) -> dict[str, norm.Moments]:
        """The running statistics in float32 or wider: a narrow layer would round small steps away."""
        found = norm.running(self.model)
        for name, held in found.items():
            kept = self._kept.get(name)
            if (
                kept
                and torch.equal(kept.mean.to(held.mean), held.mean)
                and torch.equal(kept.var.to(held.var), held.var)
            ):
                found[name] = norm.Moments(
                    kept.mean.to(held.mean.device), kept.var.to(held.var.device), kept.n
                )
            elif held.mean.dtype != torch.float64:
                found[name] = norm.Moments(held.mean.float(), held.var.float(), held.n)
        return found

    def snapshot(self) -> Mark:
        return Mark(norm.snapshot(self.model), self.seen, tuple(self._predicted), tuple(self._entropies))

    def rollback(self, mark: Mark) -> None:
        """Go back to a `snapshot`."""
        norm.restore(self.model, mark.statistics)
        self.seen = mark.seen
        self._predicted = deque(mark.predicted, maxlen=WINDOW)
        self._entropies = deque(mark.entropies, maxlen=WINDOW)

    def get_extra_state(self) -> Tensor:
        """What a checkpoint keeps beside the statistics: how many images they rest on."""
        return torch.tensor(self.seen)

    def set_extra_state(self, state: Tensor) -> None:
        self.seen = int(state)

    def reset(self) -> None:
        """Forget the stream: the source's statistics again. Call it when the domain changes."""
        self.rollback(Mark(self._source, 0))

    @property
    def alarm(self) -> str | None:
        """One sentence if the latest predictions look collapsed, else None."""
        n = len(self._predicted)
        if n < FEWEST or self._classes < 2:
            return None
        counts = torch.bincount(torch.tensor(list(self._predicted)), minlength=self._classes) / n
        spread = float(torch.special.entr(counts).sum()) / math.log(min(self._classes, n))
        share, top = counts.max(0)
        if spread < 0.35 and share >= 0.5:  # a balanced stream may hold few of many classes
            return (
                f"{share:.0%} of the last {n} predictions are class {int(top)}: the stream may hold one "
                "class only, or the adaptation collapsed; roll back or reset"
            )
        doubt = sum(self._entropies) / n / math.log(self._classes)
        if doubt > 0.95:
            return f"the last {n} predictions are near uniform: the adaptation lost the images; reset it"
        return None

    def _watch(self, z: Tensor) -> None:
        self._classes = z.shape[1]
        self._predicted.extend(z.argmax(1).tolist())
        self._entropies.extend(torch.special.entr(z.softmax(1)).sum(1).tolist())


def stream(model: nn.Module, prior: float = 16) -> Stream:
    """A copy of `model` that adapts as images come, in batches of any size.

    `prior` is how many images the source statistics are worth: with 0 the first batch replaces them.
    """
    return Stream(model, prior)
