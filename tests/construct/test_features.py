"""Gradients pass straight through the last activation of a network, whatever its class."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from trimtab import models
from trimtab._accel import accelerate
from trimtab.construct.features import is_activation, straight_through

timm = pytest.importorskip("timm")

LAST = {
    "mobilenetv3_small_050": "act2",  # hard swish; the last ReLU of the graph is a squeeze-excite gate
    "densenet121": "features.norm5.act",  # inside BatchNormAct2d
    "efficientnet_lite0": "bn2.act",  # ReLU6, inside BatchNormAct2d
}
"""The activation on whose output the penultimate feature is pooled, as timm's own `forward` calls them."""


class Identity(torch.autograd.Function):
    """An activation with the gradient of the identity, written as a function of its own."""

    @staticmethod
    def forward(ctx, x, act):
        return act(x.clone())

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class Straight(nn.Module):
    def __init__(self, act):
        super().__init__()
        self.act = act

    def forward(self, x):
        return Identity.apply(x, self.act)


@pytest.mark.parametrize("name", LAST)
def test_the_activation_before_the_pooled_feature_lets_gradients_through(name):
    torch.manual_seed(0)
    net = timm.create_model(name, num_classes=10).eval().double()  # in which no kink is met by rounding
    expected = copy.deepcopy(net)
    parent, _, child = LAST[name].rpartition(".")
    owner = expected.get_submodule(parent)
    setattr(owner, child, Straight(getattr(owner, child)))
    x = torch.rand(2, 3, 64, 64).double().requires_grad_(True)
    size = net.num_features if name != "mobilenetv3_small_050" else net.head_hidden_size
    weight = torch.randn(size).double()

    def gradient(features):
        (grad,) = torch.autograd.grad((features(x) * weight).sum(), x)
        return grad

    plain = models.penultimate(net)
    reference = gradient(lambda x: expected.forward_head(expected.forward_features(x), pre_logits=True))
    through = straight_through(plain)
    torch.testing.assert_close(gradient(through), reference, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(gradient(accelerate(through, x.detach())), reference, rtol=1e-3, atol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(through(x), plain(x), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(gradient(plain), reference, rtol=1e-3, atol=1e-5)


class Gated(nn.Module):
    """A ReLU on every path to the feature, and a later one only on the path of a gate."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.gate, self.head = (nn.Linear(4, 4) for _ in range(4))

    def forward(self, x):
        x = F.elu(self.a(x))
        x = self.b(x) * torch.sigmoid(self.gate(x).relu())
        return self.head(x)


def test_an_activation_on_one_of_two_paths_keeps_its_gradient():
    torch.manual_seed(0)
    net = Gated().double()
    x = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    (grad,) = torch.autograd.grad(straight_through(models.penultimate(net))(x).sum(), x)
    h = F.elu(net.a(x)).detach().requires_grad_(True)
    (inner,) = torch.autograd.grad((net.b(h) * torch.sigmoid(net.gate(h).relu())).sum(), h)
    torch.testing.assert_close(grad, inner @ net.a.weight)


def test_a_network_without_such_an_activation_warns():
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 4), nn.Linear(4, 3))
    with pytest.warns(UserWarning, match="no activation is on every path"):
        straight_through(models.penultimate(net))


@pytest.mark.parametrize(
    "layer",
    [nn.ReLU(), nn.ReLU6(), nn.Hardswish(), nn.GELU(), nn.SELU(), nn.LeakyReLU(), nn.PReLU(3), nn.Sigmoid()],
)
def test_elementwise_layers_that_are_not_linear_are_activations(layer):
    assert is_activation(layer)


@pytest.mark.parametrize(
    "layer",
    [
        *(nn.Identity(), nn.Dropout().eval(), nn.Flatten(), nn.Softmax(1), nn.MaxPool2d(3, 1, 1)),
        *(nn.AdaptiveAvgPool2d(1), nn.InstanceNorm2d(4), nn.Linear(4, 4), nn.Softmin(-1)),
    ],
)
def test_other_layers_are_none(layer):
    assert not is_activation(layer)
