"""Operations whose gradients keep the layout, against the stock ones that do not."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.autograd import gradcheck, gradgradcheck

from trimtab import layout, models
from trimtab.layout import GlobalMean, PixelConv, backwards_too

LAYOUTS = [torch.contiguous_format, torch.channels_last]


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
    quick = backwards_too(nn.Sequential(copy.deepcopy(conv)))
    assert type(quick[0]) is PixelConv
    x = torch.randn(2, channels, 6, width, dtype=torch.float64).to(memory_format=form).requires_grad_()
    found, wanted = quick(x), conv(x)
    grad, plain = slopes(found, wanted, x)
    assert torch.equal(found, wanted)
    torch.testing.assert_close(grad, plain, atol=1e-12, rtol=1e-12)
    assert grad.is_contiguous(memory_format=form) or channels == 1


def test_they_have_first_and_second_derivatives():
    x = torch.randn(2, 3, 4, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(2, 3, 3, 3, dtype=torch.float64)
    last = x.detach().to(memory_format=torch.channels_last).requires_grad_()
    for run in (
        lambda x: layout.thinned(x, 2, 2),
        layout.global_mean,
        lambda x: layout.pixel_conv(x, weight, None, layout.across(weight)),
    ):
        for at in (x, last):
            assert gradcheck(lambda x, run=run: run(x) ** 2, at)
            assert gradgradcheck(lambda x, run=run: run(x) ** 2, at)


UNLIKE = {
    "many channels": nn.Conv2d(5, 4, 3, padding=1),
    "strided": nn.Conv2d(3, 4, 3, stride=2, padding=1),
    "smaller": nn.Conv2d(3, 4, 3),
    "dilated": nn.Conv2d(3, 4, 3, padding=1, dilation=2),
    "grouped": nn.Conv2d(3, 6, 3, padding=1, groups=3),
    "reflecting": nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"),
    "even": nn.Conv2d(3, 4, 2, padding=1),
    "oblong": nn.Conv2d(3, 4, (1, 3), padding=(0, 1)),
    "its own": type("Own", (nn.Conv2d,), {})(3, 4, 3, padding=1),
    "larger pool": nn.AdaptiveAvgPool2d(2),
    "half a pool": nn.AdaptiveAvgPool2d((1, None)),
}


@pytest.mark.parametrize("module", UNLIKE.values(), ids=UNLIKE)
def test_what_is_not_alike_stays_as_it_is(module):
    kind = type(module)
    assert type(backwards_too(nn.Sequential(module))[0]) is kind


@pytest.mark.parametrize("module", [nn.Conv2d(3, 4, 3, padding=1), nn.AdaptiveAvgPool2d(1)], ids=str)
@pytest.mark.parametrize("hook", ["register_forward_hook", "register_full_backward_hook"])
def test_what_somebody_listens_to_stays_as_it_is(module, hook):
    module = copy.deepcopy(module)
    kind = type(module)
    getattr(module, hook)(lambda *_: None)
    assert type(backwards_too(nn.Sequential(module))[0]) is kind


def test_a_whole_network_is_changed_in_two_places_and_says_the_same():
    torch.manual_seed(0)
    net = models.build("resnet8", classes=10, width=8).double().eval().requires_grad_(False)
    quick = layout.channels_last(backwards_too(copy.deepcopy(net)))
    changed = [type(m) for m in quick.modules() if type(m) in (PixelConv, GlobalMean)]
    assert changed == [PixelConv, GlobalMean]
    assert list(quick.state_dict()) == list(net.state_dict())
    x = torch.rand(2, 3, 32, 32, dtype=torch.float64).to(memory_format=torch.channels_last).requires_grad_()
    grad, plain = slopes(quick(x), net(x), x)
    torch.testing.assert_close(grad, plain, atol=1e-12, rtol=1e-9)


def test_tracers_see_one_node_each():
    class Net(nn.Module):
        def forward(self, x: Tensor, weight: Tensor) -> Tensor:
            z = layout.thinned(layout.pixel_conv(x, weight, None, weight), 2, 2)
            return layout.global_mean(z)

    calls = [node.target for node in fx.symbolic_trace(Net()).graph.nodes if node.op == "call_function"]
    assert [call.__name__ for call in calls] == ["pixel_conv", "thinned", "global_mean"]
