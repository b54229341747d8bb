"""Route a batch to branches: which images each branch takes, and how they are grouped."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trimtab.norm.setting import MAIN
from trimtab.norm.synchronize import local_groups
from trimtab.types import BadInput

if TYPE_CHECKING:
    from trimtab.norm.layer import Holder, Steered


class Part(NamedTuple):
    """The part of a batch that one branch normalizes."""

    images: int
    """Number of images."""
    affine: Holder
    """Holds gamma and beta."""
    statistics: Holder
    """Holds the running statistics."""


def route(layer: Steered, images: int) -> list[Part]:
    """Return the parts that the layer's setting splits a batch of `images` into, in order."""
    branch = layer.setting.branch or MAIN
    counts = ((branch, images),) if isinstance(branch, str) else branch
    if sum(count for _, count in counts) != images:
        total = " + ".join(str(count) for _, count in counts)
        raise BadInput(f"the route {total} does not add up to the batch of {images}")
    return [Part(count, layer.affine_holder(name), layer.statistics_holder(name)) for name, count in counts]


def groups_per_part(layer: Steered, parts: list[Part]) -> int:
    """Return the number of groups in each part on this process; refuse parts that cannot be split equally."""
    groups = layer.setting.groups or 1
    if layer.pools_processes():
        groups = local_groups(groups, layer.processes)
    for part in parts:
        if part.images % groups:
            raise BadInput(f"{part.images} images cannot be split into {groups} equal groups")
    return groups


def by_statistics(parts: list[Part]) -> list[tuple[Holder, list[int]]]:
    """Group parts by the holder of their statistics: parts that share one are estimated together."""
    together: dict[Holder, list[int]] = {}
    for index, part in enumerate(parts):
        together.setdefault(part.statistics, []).append(index)
    return list(together.items())
