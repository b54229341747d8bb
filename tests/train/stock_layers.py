"""A network, a batch and comparisons for objectives against mathematics with stock layers, in float64."""

from __future__ import annotations

import torch
from torch import Tensor, nn

N, CLASSES = 12, 5


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    made = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU(),
        nn.Conv2d(6, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, CLASSES),
    ).double()  # fmt: skip
    for layer in made:
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.weight, 0.5, 1.5)
            nn.init.normal_(layer.bias, std=0.3)
            nn.init.normal_(layer.running_mean, std=0.3)
            nn.init.uniform_(layer.running_var, 0.5, 2)
    return made


def batch(seed: int = 1, n: int = N) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 3, 8, 8, generator=g, dtype=torch.float64)
    return x, torch.randint(CLASSES, (n,), generator=g)


def grads(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def buffers(model: nn.Module) -> dict[str, Tensor]:
    return {name: b.clone() for name, b in model.named_buffers()}


def assert_equal(found: dict[str, Tensor], wanted: dict[str, Tensor], tolerance: float = 1e-10) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=tolerance, msg=name)
