"""Adversarial training against its loss, written with stock layers in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests.train.stock_layers import N, assert_equal, batch, buffers, grads, net
from torch import Tensor, nn

from trimtab import train
from trimtab.attacks import PGD, Linf


@pytest.mark.parametrize("clean", [0.0, 0.25, 1.0])
def test_the_adversarial_loss_is_the_mean_over_all_images(clean: float) -> None:
    x, y = batch()
    attack = PGD(Linf("8/255"), steps=3)
    model, plain = net().train(), net().train()
    x_adv = attack(plain, x, y, seed=5)
    k = round(clean * N)
    kept = torch.arange(N)[N // k - 1 :: N // k] if k else torch.arange(0)
    F.cross_entropy(plain(torch.cat([x[kept], x_adv])), torch.cat([y[kept], y])).backward()
    train.Adversarial(attack, clean=clean)(model, x, y, seed=5)
    assert_equal(grads(model), grads(plain))
    assert_equal(buffers(model), buffers(plain))


def test_alpha_weighs_clean_against_adversarial() -> None:
    x, y = batch()
    parts = train.Adversarial(PGD(steps=1), clean=0.5, alpha=0.9)(net().train(), x, y)
    torch.testing.assert_close(parts["loss"], 0.9 * parts["clean"] + 0.1 * parts["adv"])


def test_pairing_without_a_pair_is_left_out() -> None:
    x, y = batch(n=8)
    parts = train.Adversarial(PGD(Linf("8/255"), steps=1), clean=0.1, alp=0.5)(net().train(), x, y)
    assert "alp" not in parts
    assert torch.isfinite(parts["loss"])


def identity(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return x.clone()


@pytest.mark.parametrize("kind", [train.Adversarial, train.Mixture])
def test_pairing_is_zero_for_equal_logits_and_not_otherwise(kind: type) -> None:
    x, y = batch()
    extra = {"clean": 1.0} if kind is train.Adversarial else {}
    equal = kind(identity, alp=1.0, **extra)
    assert equal(equal.prepare(net()).train(), x, y)["alp"] == 0
    differ = kind(PGD(Linf("16/255"), steps=1), alp=1.0, **extra)
    assert differ(differ.prepare(net()).train(), x, y)["alp"] > 0
