"""A running estimate over batches: adaptation to images that arrive one by one and change over time.

Idea      after n images since the last reset

              statistics = N/(N + n) source + n/(N + n) images,

          as if the source had been estimated on N images. The current batch is included before it is
          normalized. Variances are pooled (within and between batches), so batches of one image do not
          shrink them.
Papers    the prior N/(N + n) is Schneider et al. 2020; reset per domain as in Tent's protocol
Norm      source "blend" of "pooled" variance with rho = b/(N + n) for a batch of b, then `set_statistics`
Cost      one forward pass with training-mode statistics
Careful   an image's output depends on those before it. `alarm` reports collapsed predictions; a stream
          of a single class, or an adversarial one, biases any such estimate: `rollback` or `reset`.
"""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

import torch
from torch import Tensor, nn

from trimtab import norm
from trimtab.adapt.per_batch import Adapting, steered_copy
from trimtab.runtime import require_logits
from trimtab.types import BadInput, number

WINDOW = 256
"""Latest predictions that the collapse alarm considers."""
FEWEST = 32
"""Smallest number of predictions for an alarm."""


class StreamSnapshot(NamedTuple):
    """The state of a stream, as `rollback` takes it."""

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
            raise BadInput(f"prior, the weight of the source in images, must be 0 or more, found {prior!r}")
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
        """Where the statistics come from, for trust cards."""
        return f"a running estimate over {self.seen} images (prior {self.prior:g})"

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Update the running estimate with a batch and return its logits."""
        if len(x) == 0 or not bool(x.isfinite().all()):
            raise BadInput("a stream needs batches of at least one image, without NaN or infinity")
        rho = len(x) / (self.prior + self.seen + len(x))
        blended = norm.use(self.model, source="blend", rho=rho, blend_of="pooled", update=False)
        with blended, norm.observe(self.model) as batch:
            z: Tensor = self.model(x)
        if not isinstance(z, Tensor):
            require_logits(z, "; the stream was not updated")
        if rho == 1 and any(moments.n == 1 for moments in batch.values()):
            raise BadInput("one value per channel has no std: start with more images, or with a prior")
        if not all(bool((m.mean + m.var).isfinite().all()) for m in batch.values()):
            raise BadInput(
                "on these images a layer has NaN or infinite statistics; the stream was not updated"
            )
        for name, running in self._running_float32().items():
            if name in batch:  # pooled variances need no eps
                mean, var = norm.blend(batch[name], running.mean, running.var, rho, "pooled", 0.0)
                self._kept[name] = norm.Moments(mean, var, self.seen)
        norm.set_statistics(self.model, self._kept, 1.0, "var")
        self.seen += len(x)
        self._record(z)
        return z

    def _running_float32(self) -> dict[str, norm.Moments]:
        """Return the running statistics in float32 or wider: float16 would round small updates away.

        They are the kept ones, unless somebody has changed those of the model since the last batch.
        """
        statistics = norm.running(self.model)
        for name, (mean, var, n) in statistics.items():
            kept = self._kept.get(name)
            if kept and torch.equal(kept.mean.to(mean), mean) and torch.equal(kept.var.to(var), var):
                statistics[name] = norm.Moments(kept.mean.to(mean.device), kept.var.to(var.device), kept.n)
            elif mean.dtype != torch.float64:
                statistics[name] = norm.Moments(mean.float(), var.float(), n)
        return statistics

    def snapshot(self) -> StreamSnapshot:
        """Return the current state, for `rollback`."""
        statistics = norm.snapshot(self.model)
        return StreamSnapshot(statistics, self.seen, tuple(self._predicted), tuple(self._entropies))

    def rollback(self, snapshot: StreamSnapshot) -> None:
        """Restore the state of a `snapshot`."""
        norm.restore(self.model, snapshot.statistics)
        self.seen = snapshot.seen
        self._predicted = deque(snapshot.predicted, maxlen=WINDOW)
        self._entropies = deque(snapshot.entropies, maxlen=WINDOW)

    def get_extra_state(self) -> Tensor:
        """Return the number of images, which a checkpoint keeps in addition to the statistics."""
        return torch.tensor(self.seen)

    def set_extra_state(self, state: Tensor) -> None:
        """Restore the number of images from a checkpoint."""
        self.seen = int(state)

    def reset(self) -> None:
        """Restore the source statistics, e.g. when the domain changes."""
        self.rollback(StreamSnapshot(self._source, 0))

    @property
    def alarm(self) -> str | None:
        """A warning if the latest predictions have collapsed, else None."""
        n = len(self._predicted)
        if n < FEWEST or self._classes < 2:
            return None
        frequencies = torch.bincount(torch.tensor(list(self._predicted)), minlength=self._classes) / n
        diversity = float(torch.special.entr(frequencies).sum()) / math.log(min(self._classes, n))
        fraction, top = frequencies.max(0)
        if diversity < 0.35 and fraction >= 0.5:  # low entropy alone also occurs with few of many classes
            return (
                f"{fraction:.0%} of the last {n} predictions are class {int(top)}: the stream may contain "
                "one class only, or the adaptation collapsed; roll back or reset"
            )
        entropy = sum(self._entropies) / n / math.log(self._classes)
        if entropy > 0.95:
            return f"the last {n} predictions are near uniform: the adaptation failed; reset it"
        return None

    def _record(self, z: Tensor) -> None:
        self._classes = z.shape[1]
        self._predicted.extend(z.argmax(1).tolist())
        self._entropies.extend(torch.special.entr(z.softmax(1)).sum(1).tolist())


def stream(model: nn.Module, prior: float = 16) -> Stream:
    """Return a copy of `model` that adapts to a stream of batches of any size.

    Args:
        model: A model with batch norm; it is not modified.
        prior: Weight of the source statistics in images; with 0 the first batch replaces them.
    """
    return Stream(model, prior)
