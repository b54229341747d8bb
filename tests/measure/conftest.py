"""A network with two branches."""

import pytest
import torch
from tests.measure.networks import points
from torch import nn

from trimtab import norm


@pytest.fixture
def branched():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2)
    ).double()
    model(points(32))
    model = norm.add_branch(norm.steer(model.eval()), "adv")
    with norm.use(model, branch="adv", source="batch", update=1.0):
        model(points(32, seed=5) * 0.5)
    return model
