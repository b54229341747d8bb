"""Mixture BN against two separate passes of stock layers, in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests.train.stock_layers import batch, buffers, grads, net

from trimtab import train
from trimtab.attacks import PGD, Linf
from trimtab.types import BadInput


@pytest.mark.parametrize("alp", [0.0, 0.5])
def test_mixture_equals_two_separate_passes(alp: float) -> None:
    x, y = batch()
    attack = PGD(Linf("8/255"), steps=2)
    objective = train.Mixture(attack, alp=alp)
    model = objective.prepare(net()).train()
    main, adv = net().train(), net().train()  # the branch starts as a copy, so the attack sees this network
    x_adv = attack(adv, x, y, seed=3)
    z_clean, z_adv = main(x), adv(x_adv)
    loss = 0.5 * F.cross_entropy(z_clean, y) + 0.5 * F.cross_entropy(z_adv, y)
    (loss + alp * F.mse_loss(z_clean, z_adv)).backward()
    objective(model, x, y, seed=3)

    found = grads(model)
    for name, p in main.named_parameters():
        branch = f"{name.split('.')[0]}.branches.adv.{name.split('.')[1]}"
        if branch in found:  # a norm layer: each branch learns from its own half
            torch.testing.assert_close(found[name], p.grad)
            torch.testing.assert_close(found[branch], adv.get_parameter(name).grad)
        else:
            torch.testing.assert_close(found[name], p.grad + adv.get_parameter(name).grad)
    seen = buffers(model)
    for name, b in main.named_buffers():
        torch.testing.assert_close(seen[name], b)
        layer, _, half = name.partition(".")
        torch.testing.assert_close(seen[f"{layer}.branches.adv.{half}"], adv.get_buffer(name))


@pytest.mark.parametrize("separate", ["affine", "statistics"])
def test_a_branch_has_only_the_half_of_its_own(separate: str) -> None:
    model = train.Mixture(separate=separate).prepare(net())
    halves = {name.split(".")[-1] for name in model.state_dict() if ".branches." in name}
    own = {"affine": {"weight", "bias"}, "statistics": {"running_mean", "running_var", "num_batches_tracked"}}
    assert halves == own[separate]


@pytest.mark.parametrize("objective", [train.Mixture(), train.AdvBN(cut="2")])
def test_a_model_that_was_not_prepared_is_refused_with_advice(objective: train.Objective) -> None:
    x, y = batch()
    with pytest.raises(BadInput, match="prepare"):
        objective(net().train(), x, y)
