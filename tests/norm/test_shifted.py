"""The short way of a constant shift against the general one, which defines it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from trimtab import norm
from trimtab.norm import _forward as module
from trimtab.norm._kernels.shifted import is_constant

SHIFTS = {
    "both": (0.1, 0.2),
    "mean": (-0.3, None),
    "std": (None, 0.25),
    "neither": (None, None),
}


def passed(
    x: Tensor,
    y: Tensor,
    weight: bool,
    which: str,
    through: bool,
    short: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> list[Tensor]:
    """Output, gradients and observed moments of a layer in training."""
    torch.manual_seed(0)
    layer = nn.BatchNorm2d(x.shape[1], affine=weight, dtype=y.dtype)
    if weight:
        nn.init.normal_(layer.weight)
        nn.init.normal_(layer.bias)
    net = norm.steer(nn.Sequential(layer))
    size = torch.randn(2, x.shape[1], dtype=y.dtype)
    mu, sigma = (None if eps is None else eps * size[i] for i, eps in enumerate(SHIFTS[which]))
    if not short:
        monkeypatch.setattr(module, "is_constant", lambda shift: False)
    taken = []
    way = module.normalize_shifted
    monkeypatch.setattr(module, "normalize_shifted", lambda *given: taken.append(1) or way(*given))
    x = x.detach().clone().requires_grad_(True)
    with norm.use(net, shift={"0": norm.Shift(mu, sigma, through)}), norm.observe(net) as seen:
        z = net(x)
        (z * y).sum().backward()
    monkeypatch.undo()
    assert bool(taken) == short
    held = [p.grad for p in net.parameters() if p.grad is not None]
    assert x.grad is not None
    return [z.detach(), x.grad, *held, seen["0"].mean, seen["0"].var]


@pytest.mark.parametrize("which", SHIFTS)
@pytest.mark.parametrize("through", [True, False])
@pytest.mark.parametrize("weight", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_it_is_the_general_pass(
    which: str, through: bool, weight: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    g = torch.Generator().manual_seed(1)
    x, y = (3 + torch.randn(2, 6, 5, 4, 4, generator=g, dtype=dtype)).unbind()
    for form in (torch.contiguous_format, torch.channels_last):
        x = x.contiguous(memory_format=form)
        both = [passed(x, y, weight, which, through, short, monkeypatch) for short in (True, False)]
        tolerance = 1e-10 if dtype == torch.float64 else 1e-4
        for ours, general in zip(*both, strict=True):
            torch.testing.assert_close(ours, general, atol=tolerance, rtol=tolerance)
        assert both[0][0].is_contiguous(memory_format=form)
        assert both[0][1].is_contiguous(memory_format=form)


@pytest.mark.parametrize("through", [True, False])
def test_it_can_be_differentiated_twice(through: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    shift = {"0": norm.Shift(torch.full((3,), 0.2).double(), torch.full((3,), -0.1).double(), through)}
    assert is_constant(shift["0"])
    found = []
    for short in (True, False):
        g = torch.Generator().manual_seed(2)
        x = torch.randn(7, 3, generator=g, dtype=torch.float64, requires_grad=True)
        layer = nn.BatchNorm1d(3, dtype=torch.float64)
        net = norm.steer(nn.Sequential(layer))
        if not short:
            monkeypatch.setattr(module, "is_constant", lambda shift: False)
        with norm.use(net, shift=shift, update=False):
            if through:
                assert torch.autograd.gradcheck(net, (x,))
                assert torch.autograd.gradgradcheck(net, (x,))
            (dx,) = torch.autograd.grad(net(x).pow(3).sum(), x, create_graph=True)
            dx.square().sum().backward()
        found.append([x.grad, layer.weight.grad, layer.bias.grad])
    for ours, general in zip(*found, strict=True):
        assert bool((general != 0).any())  # type: ignore[union-attr]
        torch.testing.assert_close(ours, general, atol=1e-9, rtol=1e-9)


def test_half_precision_keeps_its_type_and_its_parameters_theirs() -> None:
    net = norm.steer(nn.Sequential(nn.BatchNorm2d(4)))
    x = torch.randn(8, 4, 3, 3).bfloat16().requires_grad_(True)
    with norm.use(net, shift={"0": norm.Shift(torch.full((4,), 0.1), None)}):
        z = net(x)
        z.float().square().mean().backward()
    assert z.dtype == x.grad.dtype == torch.bfloat16  # type: ignore[union-attr]
    assert net[0].weight.grad.dtype == torch.float32  # type: ignore[index]


def test_a_shift_that_learns_takes_the_general_way_and_gets_its_gradient() -> None:
    net = norm.steer(nn.Sequential(nn.BatchNorm2d(4, dtype=torch.float64)))
    delta = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    assert not is_constant(norm.Shift(delta, None))
    with norm.use(net, shift={"0": norm.Shift(delta, None)}):
        ((1 + net(3 + torch.randn(8, 4, 2, 2, dtype=torch.float64))) ** 2).mean().backward()
    assert bool((delta.grad != 0).all())  # type: ignore[union-attr]
