"""Half: half of the test batch's statistics, half of the training set's, at every layer.

Norm knobs: source="blend", rho=0.5, update=False.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from trimtab import norm
from trimtab.evaluate import BNMode
from trimtab.runtime import guard


@dataclass(frozen=True)
class HalfMode(BNMode):
    """Blend batch and running statistics half and half."""

    kind: ClassVar[str] = "half"
    couples: ClassVar[bool] = True

    @contextmanager
    def activate(self, model: nn.Module, first: object) -> Iterator[nn.Module]:
        adapted = norm.steer(model)
        with guard(adapted), norm.use(adapted, source="blend", rho=0.5, update=False):
            yield adapted

    def __str__(self) -> str:
        return "half of the batch's statistics"
