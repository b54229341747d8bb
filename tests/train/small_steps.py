"""The network, batch and attack that the tests of TRADES and AWP share."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trimtab import train
from trimtab.attacks import Linf

EPS, STEP, BETA, GAMMA = 0.05, 0.02, 6.0, 0.05
ATTACK = train.DivergenceAttack(Linf(EPS), steps=3, step_size=STEP)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.Softplus(), nn.Conv2d(6, 8, 3), nn.BatchNorm2d(8),
        nn.Softplus(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4),
    ).double()  # fmt: skip
    for layer in (model[1], model[4]):
        layer.running_mean.normal_()
        layer.running_var.uniform_(0.5, 2)
    return model.train()


def batch() -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    return 0.2 + 0.6 * torch.rand(8, 3, 8, 8, generator=g, dtype=torch.float64), torch.arange(8) % 4


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
