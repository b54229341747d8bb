"""The loss landscape along the gradient, against closed forms."""

import copy

import pytest
import torch
import torch.nn.functional as F
from tests.measure.networks import Quadratic, points
from torch import nn

from trimtab import measure


def test_beta_and_loss_range_of_a_quadratic_loss_are_exact():
    # Logits (0, w'x) at w = 0 with labels balanced: along small steps the loss is quadratic with the Hessian
    # H = X'X / (4 n), so beta = ||H g|| / ||g|| in the limit of small eta.
    x = torch.randn(8, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = torch.arange(8) % 2

    class Logistic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.zeros(6, dtype=torch.float64))

        def forward(self, x):
            z = x @ self.w
            return torch.stack([torch.zeros_like(z), z], 1)

    found = measure.landscape(Logistic(), x, y, etas=(1e-6, 2e-6))
    g = (x * (0.5 - y.double())[:, None]).mean(0)
    hessian = x.T @ x / (4 * len(x))
    assert found.beta == pytest.approx(float((hessian @ g).norm() / g.norm()), rel=1e-4)
    assert found.losses[0] == pytest.approx(0.6931471805599453)
    slope = float(g @ g)
    assert found.loss_range[0] == pytest.approx(0.6931471805599453 - 2e-6 * slope, abs=1e-10)
    assert found.gradient_change == pytest.approx(2e-6 * float((hessian @ g).norm()), rel=1e-4)


def test_a_walk_that_leaves_all_bounds_is_not_a_number():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 4), nn.ReLU(), nn.Linear(4, 2))
    found = measure.landscape(model, points().float(), torch.arange(10) % 2, etas=(1, 1e38, 1))
    assert found.losses[2] != found.losses[2]
    for value in (found.gradient_change, found.beta, *found.loss_range):
        assert value != value


def test_labels_of_any_whole_numbers_are_taken():
    y = torch.arange(10) % 2
    assert measure.landscape(Quadratic(), points(), y.int()) == measure.landscape(Quadratic(), points(), y)


def test_the_landscape_leaves_the_model_alone():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 2)).double()
    before = copy.deepcopy(model.state_dict())
    measure.landscape(model, points(), torch.arange(10) % 2)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert type(model[1]) is nn.BatchNorm2d


def test_the_landscape_of_a_batch_norm_of_its_own_kind_is_that_of_its_running_statistics():
    class Own(nn.BatchNorm2d):
        def forward(self, x):
            return super().forward(x)

    torch.manual_seed(0)
    own = nn.Sequential(nn.Conv2d(3, 4, 1), Own(4), nn.Flatten(), nn.Linear(16, 2)).double()
    y = torch.arange(10) % 2
    found = measure.landscape(own, points(), y)
    assert found.losses[0] == pytest.approx(float(F.cross_entropy(own.eval()(points()), y).detach()))
    assert type(own[1]) is Own


def test_one_layer_that_cannot_be_steered_leaves_the_others_on_batch_statistics():
    class Own(nn.BatchNorm2d):
        def forward(self, x):
            return super().forward(x)

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), Own(4), nn.Flatten(), nn.Linear(16, 2)
    ).double()  # fmt: skip
    x, y = points(), torch.arange(10) % 2
    wanted = copy.deepcopy(model).eval()
    wanted[1].train()
    found = measure.landscape(model, x, y).losses[0]
    assert found == pytest.approx(float(F.cross_entropy(wanted(x), y).detach()))
