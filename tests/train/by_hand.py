"""A loop that averages gradients by hand: alone, or as one of two processes (`torchrun ... FOLDER`)."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor, nn

from trimtab import norm, train
from trimtab.attacks import PGD, Linf

CLASSES = 4
ATTACK = PGD(Linf("8/255"), steps=2)
OBJECTIVES: dict[str, train.Objective] = {
    "apart": train.APART(eps=0.1, groups=2),
    "apart sam": train.APART(eps=0.1, samples=4, sam_rho=0.1),
    "sam": train.SAM(rho=0.1),
    "mixture": train.Mixture(ATTACK),
    "gaussian": train.Gaussian(sigma=0.1),
}


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 8, 3), nn.BatchNorm2d(8), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, CLASSES),
    ).double()  # fmt: skip


def batch(n: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    return torch.rand(n, 3, 8, 8, generator=g, dtype=torch.float64), torch.arange(n) % CLASSES


def gradients(objective: train.Objective, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """One step on synchronized layers; neither `ids` nor `backward` is given."""
    model = norm.synchronize(objective.prepare(net()).train())
    objective(model, x, y, seed=3)
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


if __name__ == "__main__":
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    x, y = batch(8)
    for name, objective in OBJECTIVES.items():
        found = gradients(objective, x[4 * rank :][:4], y[4 * rank :][:4])
        for gradient in found.values():
            torch.distributed.all_reduce(gradient)
            gradient /= 2
        if rank == 0:
            torch.save(found, Path(sys.argv[1]) / f"{name}.pt")
    torch.distributed.destroy_process_group()
