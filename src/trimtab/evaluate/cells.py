"""Cells of an evaluation (model x condition x BN mode x seed): what determines their results, and their keys.

The data are cut into fixed chunks. Within a chunk any batch size gives the same result, since randomness
belongs to the image; where images of a batch influence each other, the chunk is the batch, and its size part
of the key.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from trimtab import adapt, rng
from trimtab.attacks import couples_batch
from trimtab.data.sets import Batch, Images
from trimtab.evaluate.bn_modes import BNMode, RunningMode
from trimtab.evaluate.conditions import Condition
from trimtab.evaluate.store import Span, Store
from trimtab.runtime import fingerprint, retry_halved
from trimtab.types import BadInput

if TYPE_CHECKING:
    from lightning_fabric import Fabric

CHUNK = 256
"""Images that are committed together."""


@dataclass(frozen=True, eq=False)
class Subject:
    """What all cells of a run share: model, data, store and how they are processed."""

    model: nn.Module
    data: Images
    store: Store
    chunk: int = CHUNK
    """Images per chunk."""
    batch_size: int = CHUNK
    """Images that go through the model at once, where the batch changes no result."""
    keep_images: bool = False
    """Whether to store adversarial images."""
    fabric: Fabric | None = None
    identity: dict[str, str] = field(default_factory=dict)
    """Hashes of model and data; taken before the first pass, as a model may keep state of its passes."""
    fits: dict[str, int] = field(default_factory=dict, init=False)
    """The largest batch size that fits into memory, once a larger one did not."""

    def __post_init__(self) -> None:
        if any(isinstance(module, adapt.Stream) for module in self.model.modules()):
            raise BadInput(
                "a stream learns from what it is shown, so its accuracy depends on what came before; "
                "evaluate its model, in the BN mode PerBatchMode or FrozenMode"
            )
        if not self.identity:
            self.identity.update(model=fingerprint.of_model(self.model), data=self.data.digest)

    @cached_property
    def couples(self) -> bool:
        """Whether the model by itself lets images of a batch influence each other."""
        with torch_seeded(0, 0), RunningMode().activate(self.model, lambda n: self.batch(0, n).x) as module:
            few = self.batch(0, min(4, len(self.data))).x
            # Where memory takes one image only, no image can influence another.
            return retry_halved(lambda size: couples_batch(module, few[:size]), len(few))

    def batch(self, start: int, stop: int) -> Batch:
        """Return the images from start (included) to stop (excluded), on the model's device, in its dtype."""
        return self.data.take(torch.arange(start, min(stop, len(self.data)))).to_model(self.model)


@dataclass(frozen=True, eq=False)
class Cell:
    """One model under one condition, in one BN mode, with one seed."""

    subject: Subject
    condition: Condition
    bn_mode: BNMode
    seed: int
    n: int
    """The first n images of the data."""

    @cached_property
    def coupled(self) -> bool:
        """Whether images of a batch influence each other's results."""
        return self.bn_mode.couples or self.condition.whole or self.subject.couples

    @cached_property
    def about(self) -> dict[str, Any]:
        """All that determines the result of an image; the number of measured images does not."""
        return {
            **self.subject.identity,
            "condition": fingerprint.describe(self.condition),
            "bn_mode": fingerprint.describe(self.bn_mode),
            "seed": self.seed,
            "batch": self.subject.chunk if self.coupled else None,
            **_autocast(),
        }

    @cached_property
    def key(self) -> str:
        """The hash of `about`, by which the store finds the cell."""
        return fingerprint.digest(self.about)

    @property
    def spans(self) -> list[Span]:
        """The positions of its chunks in the data."""
        chunk = self.subject.chunk
        return [(start, min(start + chunk, self.n)) for start in range(0, self.n, chunk)]


@contextmanager
def torch_seeded(seed: int, start: int) -> Iterator[None]:
    """Seed torch's global generator for models that sample in eval mode, and restore it afterwards.

    Args:
        seed: of the cell.
        start: the first image of the chunk.
    """
    with torch.random.fork_rng():
        torch.manual_seed(rng.key(seed, start))
        yield


def _autocast() -> dict[str, str]:
    """The dtypes of autocast, where the caller has activated it."""
    devices = [device for device in ("cpu", "cuda") if torch.is_autocast_enabled(device)]
    dtypes = [f"{device} {torch.get_autocast_dtype(device)}" for device in devices]
    return {"autocast": " ".join(dtypes)} if dtypes else {}
