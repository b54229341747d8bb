"""AWP against its paper's equations, written here in plain PyTorch."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from tests.train.small_steps import ATTACK, BETA, EPS, GAMMA, batch, gradients, net
from torch import Tensor, nn

from trimtab import attacks, train
from trimtab.attacks import Linf


def awp_gradients(model: nn.Module, x_adv: Tensor, y: Tensor) -> dict[str, Tensor]:
    """A copy of the network takes one ascent step, whose length per tensor is then set to gamma |w|."""
    proxy = copy.deepcopy(model)
    (-F.cross_entropy(proxy(x_adv), y)).backward()
    torch.optim.SGD(proxy.parameters(), lr=0.01).step()
    moved = copy.deepcopy(model)
    with torch.no_grad():
        for w, w_proxy, target in zip(
            model.parameters(), proxy.parameters(), moved.parameters(), strict=True
        ):
            if w.dim() > 1:
                v = w_proxy - w
                target += GAMMA * w.norm() / v.norm() * v
    F.cross_entropy(moved(x_adv), y).backward()
    return gradients(moved)


def test_awp_gradients_are_those_of_the_perturbed_weights() -> None:
    x, y = batch()
    attack = attacks.PGD(Linf(EPS), steps=2)
    model, reference = net(), net()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    train.AWP(GAMMA, train.Adversarial(attack))(model, x, y, seed=3)
    expected = awp_gradients(reference, attack(reference, x, y, seed=3, ids=range(8)), y)
    for name, grad in gradients(model).items():
        torch.testing.assert_close(grad, expected[name], rtol=1e-7, atol=1e-10, msg=name)
    for name, p in model.named_parameters():
        assert torch.equal(p, before[name]), name


def test_awp_updates_running_statistics_once() -> None:
    (x, y), model = batch(), net()
    train.AWP(GAMMA, train.TRADES(BETA, ATTACK))(model, x, y, seed=3)
    assert int(model[1].num_batches_tracked) == 1


def test_awp_of_radius_zero_is_its_inner_objective() -> None:
    x, y = batch()
    inner = train.TRADES(BETA, ATTACK)
    model, alone = net(), net()
    train.AWP(0, inner)(model, x, y, seed=3)
    inner(alone, x, y, seed=3)
    for name, grad in gradients(alone).items():
        torch.testing.assert_close(gradients(model)[name], grad, msg=name)
