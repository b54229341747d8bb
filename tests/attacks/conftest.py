"""A small classifier, trained in a second, that an attack of 4/255 breaks in part.

It is trained in double precision, where the order of sums is too little to be seen in the result: the
weights are the same on every CPU.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

CLASSES = 5


def draw(n: int, seed: int):
    g = torch.Generator().manual_seed(seed)
    prototypes = torch.rand(CLASSES, 3, 16, 16, generator=torch.Generator().manual_seed(99))
    y = torch.randint(0, CLASSES, (n,), generator=g)
    x = 0.45 + 0.12 * (prototypes[y] - 0.5) + 0.1 * torch.randn(n, 3, 16, 16, generator=g)
    return x.clamp(0, 1), y


def small_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Flatten(), nn.Linear(8 * 8 * 8, CLASSES),
    )  # fmt: skip


@pytest.fixture(scope="session")
def trained():
    model = small_net().double()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, 0.9)
    for step in range(40):
        x, y = draw(64, step)
        x = x.double()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    model.zero_grad()
    return model.float().eval()


@pytest.fixture
def model(trained):
    return trained


@pytest.fixture(scope="session")
def images():
    return draw(96, 10_000)
