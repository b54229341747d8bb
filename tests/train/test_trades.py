"""TRADES and AWP against the papers' equations, written here in plain PyTorch."""

from __future__ import annotations

import pytest
import torch
from tests.train.small_steps import ATTACK, BETA, EPS, STEP, batch, gradients, net
from torch import Tensor, nn

from trimtab import norm, rng, train
from trimtab.attacks import PGD, Linf


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


def test_costs_count_the_attack_once() -> None:
    trades = train.TRADES(attack=train.DivergenceAttack(steps=10))
    assert trades.passes(128) == (13, 12)
    assert train.AWP(inner=trades).passes(128) == (15, 14)
    assert train.AWP(inner=train.Adversarial(PGD(steps=10))).passes(128) == (12, 12)
