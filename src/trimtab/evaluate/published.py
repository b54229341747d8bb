"""Published files of corrupted images (ImageNet-C, CIFAR-10-C, CIFAR-100-C) as conditions.

Corruptions made on the fly differ from the published files: only on these is an error comparable with the
literature, and only AlexNet's errors on ImageNet-C make an mCE of ImageNet.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from trimtab import data
from trimtab.data import Batch, Images
from trimtab.data.arrays import CLEAN
from trimtab.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS
from trimtab.evaluate.conditions import Clean, Condition, Corrupted
from trimtab.evaluate.records import CorruptionRecord
from trimtab.types import BadInput, InputSpec

KINDS = ("imagenet-c", *CLEAN)


@dataclass(frozen=True)
class Published(Corrupted):
    """A published corrupted version of the images that are evaluated."""

    source: str = ""
    """The files as a whole, such as imagenet-c:PATH; their folder is no part of a result's key."""

    @property
    def files(self) -> Images:
        """The corrupted images, in the order of the clean ones."""
        return _files(f"{self.source}/{self.name}/{self.severity}")

    def cache_key(self) -> dict[str, Any]:
        """Return what a key has in place of the folder: a hash of the files."""
        return {"source": self.files.digest}

    def check(self, spec: InputSpec) -> None:
        """Accept every network: files of another size are refused when they are read."""

    def shown(self, batch: Batch, seed: int) -> Tensor:
        """Return the corrupted versions of a batch, by its ids."""
        with suppress(BadInput):
            x, y, _ = self.files.take(self.files.positions(batch.ids.cpu()))
            if torch.equal(y, batch.y.cpu()):
                return x.to(batch.x)
        raise BadInput(
            f"{self.source}/{self.name}/{self.severity} does not hold these images: labels differ; give the "
            "clean images that it was made from, in the same class folders"
        )

    def record(self) -> CorruptionRecord:
        """Return the typed value that rows store."""
        return replace(super().record(), ice="official" if self.name == "frost" else None, published=True)


@lru_cache(maxsize=2)
def _files(name: str) -> Images:
    return data.load(name)


def published(source: str) -> list[Condition]:
    """Return clean images and the fifteen corruptions of published files, and the extra ones that are there.

    Args:
        source: imagenet-c:PATH, cifar10-c:PATH or cifar100-c:PATH.
    """
    kind, _, path = source.partition(":")
    if kind not in KINDS or not path:
        raise BadInput(
            f"published corruptions are {', '.join(f'{kind}:PATH' for kind in KINDS)}, not {source!r}"
        )
    cells = [Published(name, severity, None, source) for name in _names(source) for severity in range(1, 6)]
    return [Clean(), *cells]


def _names(source: str) -> list[str]:
    """The fifteen, which must be there, and the extra ones that are."""
    extra = []
    for name in EXTRA_CORRUPTIONS:
        try:
            _files(f"{source}/{name}/1")
        except BadInput:
            continue
        extra.append(name)
    return [*CORRUPTIONS, *extra]
