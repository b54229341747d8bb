"""The LIGS regularizer against finite differences."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.train.stock_layers import batch, net
from torch import nn

from trimtab import norm, train


def test_the_ligs_gradient_is_that_of_finite_differences() -> None:
    x, y = batch(n=4)
    objective = train.LIGS(weight=2.0, size=0.05)
    model = net().train()
    norm.steer(model)
    kept = norm.snapshot(model)
    objective(model, x, y, seed=0)
    weight = model[3].weight
    direction = torch.randn_like(weight)
    h = 1e-5
    values = []
    for sign in (1, -1):
        norm.restore(model, kept)
        with torch.no_grad():
            weight.add_(sign * h * direction)
        moved = copy.deepcopy(model)
        with torch.no_grad():
            weight.sub_(sign * h * direction)
        values.append(float(objective(moved, x, y, seed=0)["loss"]))
    slope = (values[0] - values[1]) / (2 * h)
    assert float((weight.grad * direction).sum()) == pytest.approx(slope, rel=1e-4)


def test_a_linear_network_has_nothing_to_regularize() -> None:
    """The input gradient of w . x in a two-class problem turns by nothing: LIGS is 1."""
    torch.manual_seed(0)
    linear = nn.Sequential(nn.Flatten(), nn.Linear(192, 2)).double()
    x, y = batch()
    parts = train.LIGS(weight=1.0, size=0.1)(linear, x, y % 2)
    assert float(parts["turned"]) == pytest.approx(0, abs=1e-12)
