"""Operations whose gradients keep the layout, against the stock ones that do not."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.autograd import gradcheck, gradgradcheck

from trimtab import layout, models
from trimtab.attacks import FGSM, PGD, Linf
from trimtab.attacks.guard import fast, guard
from trimtab.layout import GlobalMean, PixelConv, quicken

LAYOUTS = [torch.contiguous_format, torch.channels_last]


def quick(*modules: nn.Module) -> nn.Sequential:
    """A copy of them one after the other, with quick gradients."""
    net = nn.Sequential(*modules)
    return quicken(copy.deepcopy(net), net)


def slopes(found: Tensor, wanted: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of two functions of x along the same direction."""
    weight = torch.randn_like(wanted)
    (grad,), (plain,) = (torch.autograd.grad((y * weight).sum(), x) for y in (found, wanted))
    return grad, plain


@pytest.mark.parametrize("size", [8, 7])
@pytest.mark.parametrize("form", LAYOUTS)
def test_thinning_is_slicing_and_padding_and_its_gradient_keeps_the_layout(size, form):
    x = torch.randn(2, 4, size, size).to(memory_format=form).requires_grad_()
    found, wanted = layout.thinned(x, 2, 3), F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 1, 2))
    grad, plain = slopes(found, wanted, x)
    assert torch.equal(found, wanted)
    assert torch.equal(grad, plain)
    assert grad.is_contiguous(memory_format=form)


@pytest.mark.parametrize("form", LAYOUTS)
@pytest.mark.parametrize("shape", [(2, 4, 8, 6), (4, 8, 6)])
def test_a_global_mean_is_the_stock_pool_and_its_gradient_keeps_the_layout(shape, form):
    x = torch.randn(shape)
    x = (x.to(memory_format=form) if x.dim() == 4 else x).requires_grad_()
    found, wanted = layout.global_mean(x), nn.AdaptiveAvgPool2d(1)(x)
    grad, plain = slopes(found, wanted, x)
    assert torch.equal(found, wanted)
    assert torch.equal(grad, plain)
    assert x.dim() == 3 or grad.is_contiguous(memory_format=form)


@pytest.mark.parametrize("form", LAYOUTS)
@pytest.mark.parametrize("width", [8, 7])
@pytest.mark.parametrize("kernel", [1, 3, 5])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_a_convolution_of_pixels_has_the_stock_gradient_in_the_same_layout(channels, kernel, width, form):
    conv = nn.Conv2d(channels, 5, kernel, padding=kernel // 2).double().requires_grad_(False)
    net = quick(conv)
    assert type(net[0]) is PixelConv
    x = torch.randn(2, channels, 6, width, dtype=torch.float64).to(memory_format=form).requires_grad_()
    found, wanted = net(x), conv(x)
    grad, plain = slopes(found, wanted, x)
    assert torch.equal(found, wanted)
    torch.testing.assert_close(grad, plain, atol=1e-12, rtol=1e-12)
    assert grad.is_contiguous(memory_format=form) or channels == 1


def test_every_operation_has_first_and_second_derivatives():
    x = torch.randn(2, 3, 4, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(2, 3, 3, 3, dtype=torch.float64)
    last = x.detach().to(memory_format=torch.channels_last).requires_grad_()
    for run in (
        lambda x: layout.thinned(x, 2, 2),
        layout.global_mean,
        lambda x: layout.pixel_conv(x, weight, None, (1, 1)),
    ):
        for at in (x, last):
            assert gradcheck(lambda x, run=run: run(x) ** 2, at)
            assert gradgradcheck(lambda x, run=run: run(x) ** 2, at)


UNLIKE = {
    "many channels": nn.Conv2d(5, 4, 3, padding=1),
    "strided": nn.Conv2d(3, 4, 3, stride=2, padding=1),
    "dilated": nn.Conv2d(3, 4, 3, padding=1, dilation=2),
    "grouped": nn.Conv2d(3, 6, 3, padding=1, groups=3),
    "reflecting": nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"),
    "its own": type("Own", (nn.Conv2d,), {})(3, 4, 3, padding=1),
    "larger pool": nn.AdaptiveAvgPool2d(2),
    "half a pool": nn.AdaptiveAvgPool2d((1, None)),
}


@pytest.mark.parametrize("module", UNLIKE.values(), ids=UNLIKE)
def test_what_is_not_alike_stays_as_it_is(module):
    assert type(quick(module)[0]) is type(module)


@pytest.mark.parametrize("module", [nn.Conv2d(3, 4, 3, padding=1), nn.AdaptiveAvgPool2d(1)], ids=str)
@pytest.mark.parametrize("hook", ["register_forward_hook", "register_full_backward_hook"])
def test_what_somebody_listens_to_stays_as_it_is(module, hook):
    module = copy.deepcopy(module)
    getattr(module, hook)(lambda *_: None)
    assert type(quick(module)[0]) is type(module)


@pytest.mark.parametrize("name", ["forward", "_conv_forward"])
def test_a_pass_of_its_own_is_not_replaced(name):
    conv = nn.Conv2d(3, 4, 3, padding=1)
    setattr(conv, name, lambda x, *_: x)
    assert type(quick(conv)[0]) is nn.Conv2d


ODD = {
    "smaller": nn.Conv2d(3, 4, 3),
    "larger": nn.Conv2d(3, 4, 1, padding=1),
    "even": nn.Conv2d(3, 4, 2, padding=1),
    "oblong": nn.Conv2d(3, 4, (1, 3), padding=(0, 1)),
    "any size": nn.Conv2d(3, 4, 4, padding="same"),
    "complex": nn.Conv2d(3, 4, 3, padding=1, dtype=torch.complex64),
}


@pytest.mark.parametrize("conv", ODD.values(), ids=ODD)
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
def test_a_convolution_that_does_not_keep_the_size_takes_the_stock_way(conv):
    net = quick(conv.requires_grad_(False))
    x = torch.randn(2, 3, 8, 8, dtype=conv.weight.dtype).requires_grad_()
    grads = [torch.autograd.grad(one(x).abs().sum(), x)[0] for one in (net, conv)]
    assert torch.equal(*grads)


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
        return self.fc(self.pool(input=torch.tanh(self.conv(input=x))).flatten(1))


class Changing(Usual):
    """Its weights are set anew in each pass, and are of another size than it was made with."""

    def forward(self, x: Tensor) -> Tensor:
        if self.conv.weight.shape[-1] == 3:
            self.conv.weight = nn.Parameter(torch.linspace(-1, 1, 24).view(8, 3, 1, 1), requires_grad=False)
        self.conv.weight.data = torch.linspace(-1, 2, 24).view(8, 3, 1, 1)
        return super().forward(x)


@pytest.mark.parametrize("kind", [Usual, Unbatched, Mapped, Narrow, Named, Changing])
def test_whatever_a_forward_pass_does_with_them_the_gradient_is_the_models(kind):
    torch.manual_seed(0)
    model = kind().eval().requires_grad_(False)
    x = torch.rand(4, 3, 8, 8).to(memory_format=torch.channels_last).requires_grad_()
    if kind is Changing:
        model(x)
    with guard(model):
        net = fast(model, x.detach())
    assert {type(m) for m in net.modules()} >= {GlobalMean, PixelConv}
    grad, plain = slopes(net(x), model(x), x)
    torch.testing.assert_close(grad, plain, atol=1e-2 if kind is Narrow else 1e-6, rtol=1e-4)


def test_a_weight_that_learns_in_the_copy_takes_the_stock_way():
    net = quick(nn.Conv2d(3, 8, 3, padding=1))
    x = torch.rand(2, 3, 8, 8, requires_grad=True)
    net(x).square().sum().backward()
    assert bool(net[0].weight.grad.any())


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
    assert list(model.buffers()) == []


def test_a_whole_network_is_changed_in_two_places_and_says_the_same():
    torch.manual_seed(0)
    net = models.build("resnet8", classes=10, width=8).double().eval().requires_grad_(False)
    other = layout.channels_last(quicken(copy.deepcopy(net), net))
    changed = [type(m) for m in other.modules() if type(m) in (PixelConv, GlobalMean)]
    assert changed == [PixelConv, GlobalMean]
    assert list(other.state_dict()) == list(net.state_dict())
    x = torch.rand(2, 3, 32, 32, dtype=torch.float64).to(memory_format=torch.channels_last).requires_grad_()
    found, wanted = other(x), net(x)
    grad, plain = slopes(found, wanted, x)
    torch.testing.assert_close(found, wanted, atol=1e-12, rtol=1e-9)
    torch.testing.assert_close(grad, plain, atol=1e-12, rtol=1e-9)


def test_tracers_see_one_node_each():
    class Net(nn.Module):
        def forward(self, x: Tensor, weight: Tensor) -> Tensor:
            z = layout.thinned(layout.pixel_conv(x, weight, None, (1, 1)), 2, 2)
            return layout.global_mean(z)

    calls = [node.target for node in fx.symbolic_trace(Net()).graph.nodes if node.op == "call_function"]
    assert [call.__name__ for call in calls] == ["pixel_conv", "thinned", "global_mean"]
