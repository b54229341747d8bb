"""SAM against its two steps, written with stock layers in float64.

Also tests train.two_pass.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests.train.stock_layers import assert_equal, batch, buffers, grads, net

from trimtab import train
from trimtab.attacks import PGD, Linf


def test_sams_gradient_is_the_one_at_the_top_of_the_ball() -> None:
    x, y = batch()
    model, plain = net().train(), net().train()
    F.cross_entropy(plain(x), y).backward()
    g = grads(plain)
    size = torch.cat([v.flatten() for v in g.values()]).norm()
    with torch.no_grad():
        for name, p in plain.named_parameters():
            p.add_(0.1 * g[name] / size)
    plain.zero_grad()
    F.cross_entropy(plain(x), y).backward()
    train.SAM(rho=0.1)(model, x, y)
    assert_equal(grads(model), grads(plain), 1e-10)


@pytest.mark.parametrize("objective", [train.SAM(rho=2.0), train.APART(sam_rho=2.0)])
def test_sam_moves_weights_in_narrow_formats_too(objective: train.Objective) -> None:
    """Autocast caches narrow weights; a second pass that reuses them would not see the move."""
    x, y = batch()
    wide, narrow = (objective.prepare(net().float()).train() for _ in range(2))
    full = objective(wide, x.float(), y)["defended_loss"]
    with torch.autocast("cpu", torch.bfloat16):
        rough = objective(narrow, x.float(), y)
        torch.testing.assert_close(rough["defended_loss"], full, rtol=0.05, atol=0)
        torch.testing.assert_close(objective(narrow, x.float(), y)["loss"], rough["loss"])
    assert float(full) > 1.2 * float(rough["loss"])


def test_sam_leaves_weights_bit_for_bit_and_running_statistics_as_a_plain_step() -> None:
    x, y = batch()
    model, plain = net().train(), net().train()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    train.SAM(rho=0.1)(model, x, y)
    F.cross_entropy(plain(x), y).backward()
    for name, p in model.named_parameters():
        assert torch.equal(p, before[name])
    assert_equal(buffers(model), buffers(plain), 0.0)


def test_sam_of_radius_zero_is_its_inner_objective() -> None:
    x, y = batch()
    inner = train.Adversarial(PGD(Linf("8/255"), steps=2))
    sam, plain = net().train(), net().train()
    train.SAM(rho=0.0, inner=inner)(sam, x, y, seed=0)
    inner(plain, x, y, seed=0)
    assert_equal(grads(sam), grads(plain))
