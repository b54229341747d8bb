"""Where PGD starts."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from trimtab.attacks import PGD, Linf


@pytest.mark.parametrize("fraction", [0.0, 0.2, 1.0])
def test_a_fraction_of_the_images_starts_at_the_image_and_the_rest_in_the_ball(fraction: float) -> None:
    n, eps = 1000, 0.1
    x = torch.full((n, 1, 2, 2), 0.5)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    start = PGD(Linf(eps), steps=0, clean_start=fraction)(model, x, torch.zeros(n, dtype=torch.long))
    moved = (start - x).flatten(1)
    clean = int((moved == 0).all(1).sum())
    assert abs(clean - fraction * n) <= 4 * (n * fraction * (1 - fraction)) ** 0.5  # four standard errors
    assert float(moved.abs().max()) <= eps + 1e-6
    if clean < n:  # uniform in the ball: mean 0, variance eps^2 / 3
        drawn = moved[(moved != 0).any(1)]
        assert float(drawn.var()) == pytest.approx(eps**2 / 3, rel=0.1)
        assert abs(float(drawn.mean())) < 0.01
