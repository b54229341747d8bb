"""The shortcut without parameters: it equals slicing and padding, and keeps the memory layout."""

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import gradcheck, gradgradcheck

from trimtab.models.resnet import thinned


@pytest.mark.parametrize("size", [8, 7])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_thinning_is_slicing_and_padding_and_its_gradient_keeps_the_layout(size, layout):
    x = torch.randn(2, 4, size, size).to(memory_format=layout).requires_grad_()
    found, wanted = thinned(x, 2, 3), F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 1, 2))
    weight = torch.randn_like(wanted)
    (grad,) = torch.autograd.grad((found * weight).sum(), x)
    (plain,) = torch.autograd.grad((wanted * weight).sum(), x)
    assert torch.equal(found, wanted)
    assert torch.equal(grad, plain)
    assert grad.is_contiguous(memory_format=layout)


def test_thinning_has_first_and_second_derivatives():
    x = torch.randn(2, 3, 4, 4, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda x: thinned(x, 2, 2) ** 2, x)
    assert gradgradcheck(lambda x: thinned(x, 2, 2) ** 2, x)
