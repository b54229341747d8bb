"""Linear classifiers, on which the best attack is known."""

import torch
from torch import nn


class Linear(nn.Module):
    """Two classes: logits (0, w . (x - 1/2))."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.w = nn.Parameter(
            torch.randn(48, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        )

    def forward(self, x):
        z = (x.flatten(1) - 0.5) @ self.w
        return torch.stack([torch.zeros_like(z), z], 1)


def inner_images(n=20):
    g = torch.Generator().manual_seed(1)
    return 0.5 + 0.1 * (2 * torch.rand(n, 3, 4, 4, generator=g, dtype=torch.float64) - 1)  # far from the box
