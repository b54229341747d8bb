"""The images and networks that the tests of measurements share."""

import torch
from torch import nn


class Quadratic(nn.Module):
    """Two logits (0, (x - c)' A (x - c) / 2): the input gradient of the loss is (p - y) A (x - c)."""

    def __init__(self) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(0)
        a = torch.randn(12, 12, generator=g, dtype=torch.float64)
        self.A = nn.Parameter(a + a.T)

    def forward(self, x):
        d = x.flatten(1) - 0.5
        q = 0.5 * ((d @ self.A) * d).sum(1)
        return torch.stack([torch.zeros_like(q), q], 1)


def points(n=10, seed=1):
    return torch.rand(n, 3, 2, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
