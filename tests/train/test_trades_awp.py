"""TRADES and AWP against the papers' equations, written here in plain PyTorch."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trimtab import attacks, norm, rng, train
from trimtab.attacks import PGD, Linf

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


def kl(p: Tensor, q: Tensor) -> Tensor:
    """Sum over images and classes of p log(p / q), from its definition."""
    return (p * (p / q).log()).sum()


def trades_images(model: nn.Module, x: Tensor, start: Tensor) -> Tensor:
    model.eval()
    x_adv = start.clone()
    for _ in range(ATTACK.steps):
        x_adv.requires_grad_(True)
        (grad,) = torch.autograd.grad(kl(model(x).softmax(1).detach(), model(x_adv).softmax(1)), x_adv)
        x_adv = x_adv.detach() + STEP * grad.sign()
        x_adv = x_adv.clamp(x - EPS, x + EPS).clamp(0, 1)
    model.train()
    return x_adv


def trades_gradients(model: nn.Module, x: Tensor, y: Tensor, x_adv: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    p, q = model(x).softmax(1), model(x_adv).softmax(1)
    loss = -p[range(8), y].log().mean() + BETA * kl(p, q) / len(x)
    loss.backward()
    return gradients(model)


def test_trades_gradients_are_those_of_its_equation() -> None:
    x, y = batch()
    noise = rng.normal(x, 3, range(8), rng.purpose("start of TRADES"))
    reference, model = net(), net()
    x_adv = trades_images(reference, x, x + 0.001 * noise)
    expected = trades_gradients(reference, x, y, x_adv)
    parts = train.TRADES(BETA, ATTACK)(model, x, y, seed=3)
    assert float(parts["divergence"]) > 1e-3
    assert float(parts["loss"]) == pytest.approx(float(parts["clean"] + BETA * parts["divergence"]))
    for name, grad in gradients(model).items():
        torch.testing.assert_close(grad, expected[name], rtol=1e-7, atol=1e-10, msg=name)


def test_running_statistics_of_trades_are_those_of_one_pass_over_the_clean_images() -> None:
    x, y = batch()
    stock, model = net(), net()
    stock(x)
    train.TRADES(BETA, ATTACK)(model, x, y, seed=3)
    for name, value in stock.named_buffers():
        torch.testing.assert_close(model.get_buffer(name), value, msg=name)


def test_trades_without_weight_is_standard_training() -> None:
    x, y = batch()
    model, standard = net(), net()
    train.TRADES(0.0, ATTACK)(model, x, y, seed=3)
    train.Standard()(standard, x, y, seed=3)
    for name, grad in gradients(standard).items():
        torch.testing.assert_close(gradients(model)[name], grad, msg=name)


def test_the_attack_of_trades_needs_no_label_and_stays_in_its_ball() -> None:
    (x, y), model = batch(), net().eval()
    x_adv = ATTACK(model, x, y, seed=3)
    assert torch.equal(x_adv, ATTACK(model, x, (y + 1) % 4, seed=3))
    assert float((x_adv - x).abs().max()) <= EPS + 1e-9
    signs = torch.where(rng.uniform(x, 5, range(8)) < 0.5, -EPS, EPS)
    with torch.no_grad():
        p = model(x).softmax(1)
        reached, at_random = (kl(p, model(moved).softmax(1)) for moved in (x_adv, x + signs))
    assert reached > 2 * at_random


def test_trades_takes_the_images_of_another_attack() -> None:
    (x, y), model, reference = batch(), net(), net()
    attack = PGD(Linf(EPS), steps=2)
    train.TRADES(BETA, attack)(model, x, y, seed=3)
    norm.steer(reference)
    expected = trades_gradients(reference, x, y, attack(reference, x, y, seed=3, ids=range(8)))
    for name, grad in gradients(model).items():
        torch.testing.assert_close(grad, expected[name], rtol=1e-7, atol=1e-10, msg=name)


# ---- AWP ----------------------------------------------------------------------------------------------


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


def test_costs_count_the_attack_once() -> None:
    trades = train.TRADES(attack=train.DivergenceAttack(steps=10))
    assert trades.passes(128) == (13, 12)
    assert train.AWP(inner=trades).passes(128) == (15, 14)
    assert train.AWP(inner=train.Adversarial(PGD(steps=10))).passes(128) == (12, 12)
