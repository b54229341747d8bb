"""Optimizers and schedules against those of torch."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from trimtab.train.optimizers import optimizer_for, rate
from trimtab.train.recipe import (
    OptimizerConfig,
    Schedule,
)
from trimtab.types import BadInput

# ---- schedules and optimizers -------------------------------------------------------------------------


def rates(schedule: Schedule, per_epoch: int, epochs: int) -> list[float]:
    total = per_epoch * epochs
    return [rate(schedule, step, per_epoch, total) for step in range(total)]


def torch_rates(make: object, steps: int, every: int = 1) -> list[float]:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0, momentum=0.9)
    scheduler = make(optimizer)  # type: ignore[operator]
    found = []
    for step in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if (step + 1) % every == 0:
            scheduler.step()
    return found


def test_schedules_are_those_of_torch() -> None:
    from torch.optim import lr_scheduler as s

    assert rates(Schedule("step", (2, 3), 0.1), 5, 4) == pytest.approx(
        torch_rates(lambda o: s.MultiStepLR(o, [2, 3], 0.1), 20, every=5)
    )
    assert rates(Schedule("exponential", gamma=0.94, every=2), 5, 6) == pytest.approx(
        torch_rates(lambda o: s.ExponentialLR(o, 0.94), 30, every=10)
    )
    assert rates(Schedule("one-cycle", peak=0.3), 10, 4) == pytest.approx(
        torch_rates(lambda o: s.OneCycleLR(o, 1.0, total_steps=40, final_div_factor=400), 40)
    )
    assert rates(Schedule("cosine"), 10, 3) == pytest.approx(
        torch_rates(lambda o: s.CosineAnnealingLR(o, 29), 30), abs=1e-12
    )
    assert rates(Schedule("constant"), 2, 2) == [1.0] * 4


def test_warm_up_grows_evenly_from_nothing() -> None:
    found = rates(Schedule("constant", warmup=2), 5, 4)
    assert found == pytest.approx([min(1.0, (step + 1) / 10) for step in range(20)])


@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw", "adagrad", "rmsprop"])
def test_every_optimizer_descends_and_spares_what_it_should_not_decay(kind: str) -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    how = OptimizerConfig(kind=kind, lr=1e-3, weight_decay=0.5, decay="weights")  # type: ignore[arg-type]
    optimizer = optimizer_for(net.parameters(), how)
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert decay[id(net[0].weight)] == 0.5
    assert {decay[id(p)] for p in (net[0].bias, net[1].weight, net[1].bias)} == {0.0}
    x = torch.randn(16, 3)
    before = net(x).square().sum()
    before.backward()
    optimizer.step()
    assert net(x).square().sum() < before


def test_a_network_with_nothing_to_train_is_refused() -> None:
    with pytest.raises(BadInput, match="nothing is left to train"):
        optimizer_for(nn.Linear(2, 2).requires_grad_(False).parameters(), OptimizerConfig())


def test_fixup_trains_scales_and_biases_at_a_tenth_of_the_rate() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    how = OptimizerConfig(lr=1.0, momentum=0.0, weight_decay=0.5, small_lr=0.1)
    groups = optimizer_for(net.parameters(), how).param_groups
    factor = {id(p): (group["factor"], group["weight_decay"]) for group in groups for p in group["params"]}
    assert factor[id(net[0].weight)] == (1.0, 0.5)
    assert {factor[id(p)] for p in (net[0].bias, net[1].weight, net[1].bias)} == {(0.1, 0.5)}
