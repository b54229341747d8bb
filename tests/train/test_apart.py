"""APART against Algorithm 1, written with stock layers in float64."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tests.train import bottlenecks
from tests.train.stock_layers import N, assert_equal, batch, buffers, grads, net
from torch import Tensor, nn

from trimtab import norm, rng, train
from trimtab.types import BadInput


def shifted_forward(
    model: nn.Sequential, x: Tensor, theta: dict[int, list[Tensor]], stop: bool = False
) -> Tensor:
    """The network of `net`, where layer i computes Eq. 3 with theta[i] = [d_mu, d_sigma]."""
    for i, layer in enumerate(model):
        if not isinstance(layer, nn.BatchNorm2d):
            x = layer(x)
            continue
        mu = x.mean((0, 2, 3), keepdim=True)
        sigma = (x.var((0, 2, 3), unbiased=False, keepdim=True) + layer.eps).sqrt()
        d_mu, d_sigma = (d.view(1, -1, 1, 1) for d in theta[i])
        ratio = mu / sigma
        xhat = (x - mu) / sigma - d_mu * (ratio.detach() if stop else ratio)
        x = layer.weight.view(1, -1, 1, 1) * (1 + d_sigma) * xhat + layer.bias.view(1, -1, 1, 1)
    return x


def algorithm_1(
    model: nn.Sequential,
    x: Tensor,
    y: Tensor,
    eps: float,
    chosen: Tensor,
    groups: int,
    rho: float = 0.0,
    stop: bool = False,
) -> dict[str, Tensor]:
    """g = M/(M+N) g_phi + N/(M+N) h_phi; with rho, h_phi at the weights that SAM would move to."""
    phi = dict(model.named_parameters())
    theta = {
        i: [torch.zeros_like(layer.weight, requires_grad=True) for _ in range(2)]
        for i, layer in enumerate(model) if isinstance(layer, nn.BatchNorm2d)
    }  # fmt: skip
    flat = [d for pair in theta.values() for d in pair]
    loss = F.cross_entropy(shifted_forward(model, x, theta, stop), y)
    found = torch.autograd.grad(loss, [*phi.values(), *flat])
    g_phi, g_theta = found[: len(phi)], found[len(phi) :]
    corners = iter([eps * g.sign() for g in g_theta])
    theta = {i: [next(corners), next(corners)] for i in theta}

    attacked = copy.deepcopy(model)
    size = torch.cat([g.flatten() for g in g_phi]).norm()
    with torch.no_grad():
        for p, g in zip(attacked.parameters(), g_phi, strict=True):
            p.add_(rho * g / size)
    h_phi = [torch.zeros_like(p) for p in phi.values()]
    for part in chosen.chunk(groups):
        defence = F.cross_entropy(shifted_forward(attacked, x[part], theta, stop), y[part])
        for h, g in zip(h_phi, torch.autograd.grad(defence, list(attacked.parameters())), strict=True):
            h.add_(g / groups)
    m, n = len(x), len(chosen)
    return {name: m / (m + n) * g + n / (m + n) * h for name, g, h in zip(phi, g_phi, h_phi, strict=True)}


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("samples", [None, 6])
@pytest.mark.parametrize("rho", [None, 0.2])
@pytest.mark.parametrize("stop", [False, True])
def test_aparts_gradient_is_that_of_algorithm_1(
    groups: int, samples: int | None, rho: float | None, stop: bool
) -> None:
    x, y = batch()
    model, plain = net().train(), net().train()
    chosen = torch.arange(N) if samples is None else rng.permutation(N, 7, 12)[:samples]
    wanted = algorithm_1(plain, x, y, 0.1, chosen, groups, rho or 0.0, stop)
    train.APART(eps=0.1, groups=groups, samples=samples, sam_rho=rho, stop_gradient=stop)(model, x, y, seed=7)
    assert_equal(grads(model), wanted, 1e-8)


def test_aparts_running_statistics_come_from_the_first_pass_only() -> None:
    x, y = batch()
    model, plain = net().train(), net().train()
    plain(x)
    train.APART(eps=0.1, groups=3, sam_rho=0.1)(model, x, y)
    assert_equal(buffers(model), buffers(plain), 1e-12)


def test_aparts_shift_never_sees_an_earlier_gradient() -> None:
    x, y = batch()
    fresh, used = net().train(), net().train()
    objective = train.APART(eps=0.1, sam_rho=0.1)
    objective(fresh, x, y)
    for p in used.parameters():
        p.grad = torch.randn_like(p) * 100
    before = grads(used)
    objective(used, x, y)
    added = {name: grad - before[name] for name, grad in grads(used).items()}
    assert_equal(added, grads(fresh), 1e-10)


def test_apart_without_radius_or_groups_is_standard_training() -> None:
    x, y = batch()
    apart, standard = net().train(), net().train()
    train.APART(eps=0.0)(apart, x, y)
    train.Standard()(standard, x, y)
    assert_equal(grads(apart), grads(standard))


def test_aparts_random_control_moves_statistics_but_not_by_the_gradient() -> None:
    x, y = batch()
    losses = []
    for attack in ("sign", "random"):
        model = net().train()
        losses.append(train.APART(eps=0.05, attack=attack)(model, x, y)["defended_loss"])
    rest = train.Standard()(net().train(), x, y)["loss"]
    assert losses[0] > rest  # a small step along the sign of the gradient climbs
    assert losses[0] > losses[1] != rest


def test_two_processes_equal_one_on_linear_bottlenecks(tmp_path: Path) -> None:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    done = subprocess.run(
        [*launch, bottlenecks.__file__, str(tmp_path)], capture_output=True, text=True, timeout=280,
        env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    two = torch.load(tmp_path / "two.pt", weights_only=True)
    one = bottlenecks.trained(tmp_path / "one")
    for key, value in one.items():
        torch.testing.assert_close(two[key], value, rtol=0, atol=1e-8, msg=f"{key} differs")


def bottleneck() -> nn.Sequential:
    """conv, BN, conv, BN, ReLU: the second BN undoes every shift of the first one's mean."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.Conv2d(6, 5, 1), nn.BatchNorm2d(5), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 3),
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_shift_that_the_next_norm_undoes_gets_sign_zero(dtype: torch.dtype) -> None:
    model = norm.steer(bottleneck().to(dtype)).train()
    x = torch.rand(16, 3, 8, 8, generator=torch.Generator().manual_seed(1)).to(dtype)
    y = torch.arange(16) % 3
    with norm.observe(model) as seen:
        F.cross_entropy(model(x), y).backward()
    gradients = {p: p.grad for p in model.parameters() if p.grad is not None}
    raw = norm.shift_gradients(model, seen, gradients)
    cleaned = norm.shift_gradients(model, seen, gradients, tolerance=1e3 * torch.finfo(dtype).eps)
    assert bool((raw["1"].mu != 0).any())  # rounding, which has a sign
    assert bool((cleaned["1"].mu == 0).all())
    for name, half in (("1", "sigma"), ("3", "mu"), ("3", "sigma")):
        if name == "3":  # these are no rounding
            assert torch.equal(getattr(cleaned[name], half), getattr(raw[name], half))


def test_the_threshold_is_an_option_and_zero_turns_it_off() -> None:
    assert train.APART(zero_below="1e-3").zero_below == 1e-3
    with pytest.raises(BadInput, match="zero_below"):
        train.APART(zero_below=1.5)
