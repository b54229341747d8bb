"""Dead pixels: a fraction of the pixels of each image is black.

Idea   x * mask, mask Bernoulli per position, drawn per (seed, image).
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from trimtab import rng
from trimtab.data import Batch
from trimtab.evaluate import Condition


@dataclass(frozen=True)
class DeadPixels(Condition):
    """Set a fraction of the pixels to zero."""

    fraction: float = 0.1
    """Of the positions."""
    kind: ClassVar[str] = "corruption"

    def shown(self, batch: Batch, seed: int) -> Tensor:
        u = rng.uniform(batch.x[:, :1], seed, batch.ids.tolist(), rng.purpose("dead pixels"))
        return batch.x * (u >= self.fraction)

    def __str__(self) -> str:
        return f"dead pixels {self.fraction:.0%}"
