"""A global mean whose gradient keeps the layout, against the stock one, whose gradient does not."""

from __future__ import annotations

import copy
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, fx, nn
from torch.autograd import gradcheck, gradgradcheck

from trimtab import layout, models
from trimtab.attacks import FGSM, PGD, Linf
from trimtab.attacks.guard import fast, guard
from trimtab.layout import GlobalMean, lay_out_gradients

LAYOUTS = [torch.contiguous_format, torch.channels_last]


def slopes(found: Tensor, wanted: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of two functions of x along the same direction."""
    weight = torch.randn_like(wanted)
    (grad,), (plain,) = (torch.autograd.grad((y * weight).sum(), x) for y in (found, wanted))
    return grad, plain


@pytest.mark.parametrize("form", LAYOUTS)
@pytest.mark.parametrize("shape", [(2, 4, 8, 6), (4, 8, 6), (0, 4, 8, 6)])
def test_a_global_mean_is_the_stock_pool_and_its_gradient_keeps_the_layout(shape, form):
    x = torch.randn(shape)
    x = (x.to(memory_format=form) if x.dim() == 4 else x).requires_grad_()
    found, wanted = layout.global_mean(x), nn.AdaptiveAvgPool2d(1)(x)
    grad, plain = slopes(found, wanted, x)
    assert torch.equal(found, wanted)
    assert torch.equal(grad, plain)
    assert x.dim() == 3 or grad.is_contiguous(memory_format=form)


@pytest.mark.parametrize("form", LAYOUTS)
def test_a_global_mean_has_first_and_second_derivatives(form):
    x = torch.randn(2, 3, 4, 4, dtype=torch.float64).to(memory_format=form).requires_grad_()
    assert gradcheck(lambda x: layout.global_mean(x) ** 2, x)
    assert gradgradcheck(lambda x: layout.global_mean(x) ** 2, x)


def replaced(module: nn.Module) -> bool:
    net = nn.Sequential(module)
    return type(lay_out_gradients(copy.deepcopy(net), net)[0]) is GlobalMean


def test_only_stock_pools_to_one_position_are_replaced():
    assert replaced(nn.AdaptiveAvgPool2d(1))
    assert replaced(nn.AdaptiveAvgPool2d((1, 1)))
    for other in (nn.AdaptiveAvgPool2d(2), nn.AdaptiveAvgPool2d((1, None)), nn.AdaptiveMaxPool2d(1)):
        assert not replaced(other)
    assert not replaced(type("Own", (nn.AdaptiveAvgPool2d,), {})(1))


@pytest.mark.parametrize("hook", ["register_forward_hook", "register_full_backward_hook"])
def test_a_pool_that_somebody_listens_to_is_not_replaced(hook):
    pool = nn.AdaptiveAvgPool2d(1)
    getattr(pool, hook)(lambda *_: None)
    assert not replaced(pool)


def test_a_pool_with_a_pass_of_its_own_is_not_replaced():
    pool = nn.AdaptiveAvgPool2d(1)
    pool.forward = lambda x: x
    assert not replaced(pool)


class Usual(nn.Module):
    """What the others vary."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.pool = nn.Conv2d(3, 8, 3, padding=1), nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.pool(torch.tanh(self.conv(x))).flatten(1))


class Unbatched(Usual):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.stack([self.pool(torch.tanh(self.conv(one))) for one in x]).flatten(1))


class Mapped(Usual):
    def forward(self, x: Tensor) -> Tensor:
        z = torch.func.vmap(lambda one: self.pool(torch.tanh(self.conv(one[None]))))(x)
        return self.fc(z.flatten(1))


class Narrow(Usual):
    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(x).float()


class Named(Usual):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.pool(input=torch.tanh(self.conv(x))).flatten(1))


@pytest.mark.parametrize("kind", [Usual, Unbatched, Mapped, Narrow, Named])
def test_whatever_a_forward_pass_does_with_it_the_gradient_is_the_models(kind):
    torch.manual_seed(0)
    model = kind().eval().requires_grad_(False)
    x = torch.rand(4, 3, 8, 8).to(memory_format=torch.channels_last).requires_grad_()
    with guard(model):
        net = fast(model, x.detach())
    assert GlobalMean in {type(module) for module in net.modules()}
    grad, plain = slopes(net(x), model(x), x)
    torch.testing.assert_close(grad, plain, atol=1e-2 if kind is Narrow else 1e-6, rtol=1e-4)


class Keeps(Usual):
    def __deepcopy__(self, memo: dict) -> Usual:
        return self


@pytest.mark.parametrize("kind", [Usual, Keeps])
@pytest.mark.parametrize("attack", [FGSM(Linf("8/255")), PGD(Linf("8/255"), precision="bfloat16")], ids=str)
def test_an_attack_leaves_the_kinds_of_a_models_modules_alone(kind, attack):
    torch.manual_seed(0)
    model = kind().eval()
    kinds = [type(module) for module in model.modules()]
    attack(model, torch.rand(4, 3, 8, 8), torch.arange(4))
    assert [type(module) for module in model.modules()] == kinds


def test_gradients_of_a_whole_network_stay_channels_last_and_the_same():
    torch.manual_seed(0)
    net = models.build("resnet8", classes=10, width=8).eval().requires_grad_(False)
    net = layout.channels_last(net)
    quick = lay_out_gradients(copy.deepcopy(net), net)
    x = torch.rand(2, 3, 32, 32).to(memory_format=torch.channels_last).requires_grad_()
    forms = []
    features = quick.layer3(quick.layer2(quick.layer1(quick.act(quick.bn1(quick.conv1(x))))))
    features.register_hook(
        lambda grad: forms.append(grad.is_contiguous(memory_format=torch.channels_last)) or grad
    )
    found, wanted = quick.fc(quick.flatten(quick.avgpool(features))), net(x)
    grad, plain = slopes(found, wanted, x)
    assert forms == [True]
    assert torch.equal(found, wanted)
    torch.testing.assert_close(grad, plain, atol=1e-6, rtol=1e-5)


def test_inside_a_block_gradients_of_parameters_are_the_same_and_the_layout_stays():
    torch.manual_seed(0)
    net = layout.channels_last(models.build("resnet8", classes=10, width=8).double().train())
    x = torch.rand(4, 3, 32, 32, dtype=torch.float64).to(memory_format=torch.channels_last)
    forms = []

    def listen(_module: nn.Module, _given: object, features: Tensor) -> None:
        features.register_hook(lambda g: forms.append(g.is_contiguous(memory_format=torch.channels_last)))

    net.layer3.register_forward_hook(listen)
    found = {}
    for inside in (True, False):
        net.zero_grad()
        with layout.gradients_laid_out(net) if inside else nullcontext():
            net(x).square().sum().backward()
        found[inside] = [p.grad.clone() for p in net.parameters()]
    torch.testing.assert_close(found[True], found[False], atol=1e-12, rtol=1e-10)
    assert forms == [True, False]


def test_after_the_block_the_kinds_of_modules_are_what_they_were_however_it_ended():
    net = Usual()
    with layout.gradients_laid_out(net):
        assert type(net.pool) is GlobalMean
    assert type(net.pool) is nn.AdaptiveAvgPool2d
    with pytest.raises(RuntimeError), layout.gradients_laid_out(net):
        net(torch.rand(1, 5, 8, 8))
    assert type(net.pool) is nn.AdaptiveAvgPool2d


def test_tracers_see_one_node():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pool = nn.AdaptiveAvgPool2d(1)
            self.pool.__class__ = GlobalMean

        def forward(self, x: Tensor) -> Tensor:
            return self.pool(x)

    calls = [node.target for node in fx.symbolic_trace(Net()).graph.nodes if node.op == "call_function"]
    assert [call.__name__ for call in calls] == ["global_mean"]
