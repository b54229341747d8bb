"""How far apart two sets of statistics are, layer by layer.

mean shift   |m - m0| / s0, averaged over channels
std ratio    s / s0, geometric mean over channels
divergence   KL( N(m, s^2) || N(m0, s0^2) ) = log(s0/s) + (s^2 + (m - m0)^2) / (2 s0^2) - 1/2, averaged
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from trimtab.norm.pack_files import Pack
from trimtab.types import BadInput

EPS = 1e-5
"""Added to variances, as in batch norm: channels that are constant have no scale to measure by."""


class LayerDifference(NamedTuple):
    """What separates one layer's statistics from those of a reference."""

    layer: str
    mean_shift: float
    """Shift of the mean in stds of the reference, averaged over channels."""
    std_ratio: float
    """Std over that of the reference, geometric mean over channels."""
    affine_change: float
    """Largest absolute change of gamma or beta; 0 without them."""


def compare(new: Pack, reference: Pack) -> list[LayerDifference]:
    """Compare two packs of one architecture, layer by layer.

    Args:
        new: The pack to describe.
        reference: The pack to describe it by.
    """
    if new.architecture != reference.architecture:
        raise BadInput("packs of different architectures cannot be compared")
    rows = []
    for name, old in reference.layers.items():
        layer = new.layers[name]
        std, old_std = (layer.var + EPS).sqrt(), (old.var + EPS).sqrt()
        pairs = [(layer.weight, old.weight), (layer.bias, old.bias)]
        changes = [float((a - b).abs().max()) for a, b in pairs if a is not None and b is not None]
        rows.append(
            LayerDifference(
                name,
                float(((layer.mean - old.mean).abs() / old_std).mean()),
                float((std / old_std).log().mean().exp()),
                max(changes, default=0.0),
            )
        )
    return rows


def divergence(mean: Tensor, var: Tensor, reference_mean: Tensor, reference_var: Tensor) -> Tensor:
    """Return KL(N(mean, var) || N(reference)), averaged over channels: (..., C) -> (...).

    Args:
        mean: Channel means (..., C).
        var: Channel variances (..., C).
        reference_mean: (C,)
        reference_var: (C,)
    """
    var, reference_var = var + EPS, reference_var + EPS
    square = (mean - reference_mean) ** 2
    kl = ((reference_var / var).log() + (var + square) / reference_var - 1) / 2
    return torch.mean(kl, -1)
