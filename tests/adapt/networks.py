"""The network and images that the tests of adaptation share."""

import torch
from torch import nn


def net() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(),
        nn.Conv2d(6, 6, 3, stride=2), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 5 * 5, 4),
    ).double()  # fmt: skip
    for seed in range(20):
        model(draw(32, seed))
    return model.eval()


def draw(n: int, seed: int, shift: float = 0.0):
    g = torch.Generator().manual_seed(seed)
    return (0.5 + 0.2 * torch.randn(n, 3, 12, 12, generator=g, dtype=torch.float64) + shift).clamp(0, 1)
