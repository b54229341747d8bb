"""`tail(front(x)) == model(x)`, bit for bit, wherever the network is cut."""

import copy
import os

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torchvision import models as torchvision_models

from trimtab import norm
from trimtab.models import Pixels, build, cut, cuts, penultimate, wrap
from trimtab.models.cut import _Traced
from trimtab.types import BadInput, InputSpec

OURS = {
    "resnet8": {"width": 4},
    "resnet8 fixup": {"width": 4, "norm": "fixup"},
    "resnet8 plain": {"width": 4, "shortcut": False, "norm": "none"},
    "resnet50_cifar": {"width": 4, "norm": "gn"},
    "resnet18": {"width": 4},
    "preact18": {"width": 4},
    "wrn16_2": {"width": 4, "dropout": 0.3},
    "vgg11": {"width": 4, "activation": "selu"},
}


def ours(key):
    torch.manual_seed(0)
    return build(key.split()[0], classes=3, **OURS[key])


def values(crossing):
    return crossing if isinstance(crossing, tuple) else (crossing,)


def assert_exact_at_every_cut(net, x, step=1):
    """Trace once, then cut as `cut` does, behind every `step`-th value that a module returns."""
    traced = _Traced(net)
    places = sorted({traced.index[node] for node in traced.returned.values()})[::step]
    single = set(cuts(net))
    names = {traced.index[node]: name for name, node in traced.returned.items()}
    with torch.no_grad():
        expected = net(x)
        for place in places:
            crossing = traced.crossing(place)
            front, tail = traced.front(place, crossing), traced.tail(place, crossing)
            z = front(x)
            before = [value.clone() for value in values(z)]
            assert torch.equal(tail(z), expected), names[place]
            assert all(map(torch.equal, values(z), before)), (
                f"the tail wrote into what crosses {names[place]}"
            )
            assert isinstance(z, torch.Tensor) == (names[place] in single), names[place]
    return len(places)


STEP = int(os.environ.get("CUT_STEP", "7"))
"""In networks with hundreds of places. Blocks return 6 to 11 values, so that every seventh visits all kinds
at all depths; CUT_STEP=1 takes every single one, in some minutes."""


@pytest.mark.parametrize("name", ["resnet50", "densenet121", "efficientnet_b0"])
def test_torchvision_networks_are_exact_at_every_cut(name):
    torch.manual_seed(0)
    net = torchvision_models.get_model(name).eval()
    assert assert_exact_at_every_cut(net, torch.rand(1, 3, 32, 32), STEP) > 15


@pytest.mark.parametrize("key", OURS)
def test_our_networks_are_exact_at_every_cut(key):
    step = STEP if "50" in key else 1
    assert assert_exact_at_every_cut(ours(key).net.eval(), torch.rand(2, 3, 32, 32), step) > 15


@pytest.mark.parametrize("key", ["resnet8", "wrn16_2"])
def test_in_training_dropout_gradients_and_running_statistics_are_exact_too(key):
    whole = ours(key)
    for name in cuts(whole):
        pieces = copy.deepcopy(whole)
        front, tail = cut(pieces, name)
        x = torch.rand(4, 3, 32, 32)
        torch.manual_seed(1)
        expected = whole(x)
        torch.manual_seed(1)
        found = tail(front(x))
        assert torch.equal(found, expected)
        for out in (expected, found):
            out.square().sum().backward()
        for a, b in zip(whole.parameters(), pieces.parameters(), strict=True):
            assert torch.equal(a.grad, b.grad)
        whole.zero_grad()
        assert all(torch.equal(a, b) for a, b in zip(whole.buffers(), pieces.buffers(), strict=True))


def test_the_parts_hold_the_networks_own_layers_under_their_own_names():
    model = wrap(ours("resnet18"), InputSpec(mean=(0.5,) * 3, std=(0.2,) * 3))
    front, tail = cut(model, "layer2")
    assert isinstance(front, Pixels)
    assert front.spec == model.spec
    parameters = dict(model.net.named_parameters())
    held = dict(front.net.named_parameters()) | dict(tail.named_parameters())
    assert held.keys() == parameters.keys()
    assert all(held[name] is parameters[name] for name in parameters)
    assert not dict(front.net.named_parameters()).keys() & dict(tail.named_parameters()).keys()


def test_steering_the_tail_steers_the_network():
    model = norm.steer(ours("resnet18")).eval()
    front, tail = cut(model, "layer2")
    norm.add_branch(tail, "adv")
    x = torch.rand(4, 3, 32, 32)
    stock = model(x)
    with norm.use(tail, source="batch", update=False):
        assert torch.equal(tail(front(x)), model(x))
        assert not torch.equal(model(x), stock)
    assert [len(layer.branch_names) for name, layer in norm.layers(model).items() if "layer2" in name] == [
        1
    ] * 5
    assert [len(layer.branch_names) for name, layer in norm.layers(model).items() if "layer3" in name] == [
        2
    ] * 5


def test_a_shortcut_crosses_as_a_second_value_behind_the_named_one():
    model = ours("resnet8").eval()
    x = torch.rand(2, 3, 32, 32)
    front, tail = cut(model, "layer1.0.bn1")
    z, shortcut = front(x)
    block_input = model.act(model.bn1(model.conv1(x)))
    assert torch.equal(shortcut, block_input)
    assert torch.equal(z, model.layer1[0].bn1(model.layer1[0].conv1(block_input)))
    assert not torch.equal(tail((z + 1, shortcut)), model(x))


def test_a_place_can_be_named_with_or_without_the_wrappers_prefix():
    model = ours("resnet8").eval()
    x = torch.rand(2, 3, 32, 32)
    assert torch.equal(cut(model, "layer1")[0](x), cut(model, "net.layer1")[0](x))
    assert cuts(model) == cuts(model.net)


def test_single_crossings_are_the_ends_of_blocks_and_the_chain_around_them():
    assert cuts(ours("resnet8")) == [
        "conv1", "bn1", "act", "layer1", "layer1.0", "layer1.0.act2", "layer2", "layer2.0", "layer2.0.act2",
        "layer3", "layer3.0", "layer3.0.act2", "avgpool", "flatten", "fc",
    ]  # fmt: skip


@pytest.mark.parametrize("place", "012345")
def test_a_leaf_that_requires_gradients_can_be_given_to_a_tail_that_works_in_place(place):
    pool, drop = nn.AdaptiveAvgPool2d(2), nn.Dropout(0.5, inplace=True)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), pool, nn.Flatten(), drop, nn.Linear(16, 3))
    front, tail = cut(net, place)
    z = front(torch.rand(2, 3, 32, 32)).detach()
    before = z.clone()
    tail(z.requires_grad_()).sum().backward()
    assert torch.equal(z, before)
    assert z.grad.abs().sum() > 0


def test_parameters_used_by_the_tail_do_not_cross():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Conv2d(3, 4, 3), nn.Linear(4, 2)
            self.gain = nn.Parameter(torch.rand(4, 1, 1))

        def forward(self, x):
            gain = self.gain
            return self.second((self.first(x) * gain).mean((2, 3)))

    net, x = Scaled(), torch.rand(2, 3, 8, 8)
    front, tail = cut(net, "first")
    assert isinstance(front(x), torch.Tensor)
    assert torch.equal(tail(front(x)), net(x))
    assert tail.gain is net.gain


def test_values_that_are_no_tensors_can_cross():
    class Sized(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Conv2d(3, 4, 3), nn.Linear(4 * 36, 2)

        def forward(self, x):
            n = x.size(0)
            return self.second(self.first(x).view(n, -1))

    net, x = Sized(), torch.rand(2, 3, 8, 8)
    front, tail = cut(net, "first")
    _, n = front(x)
    assert n == 2
    assert torch.equal(tail(front(x)), net(x))


@pytest.mark.parametrize("key", OURS)
def test_the_last_linear_layer_of_the_penultimate_feature_is_the_model(key):
    model = ours(key).eval()
    linear = next(m for m in reversed(list(model.modules())) if isinstance(m, nn.Linear))
    x = torch.rand(2, 3, 32, 32)
    assert torch.equal(linear(penultimate(model)(x)), model(x))


def test_a_network_without_a_linear_layer_has_no_penultimate_feature():
    with pytest.raises(BadInput, match="no linear layer"):
        penultimate(nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten()))


class Moody(nn.Module):
    """Drops out by a function, which a trace freezes in the mode it saw."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.second(F.dropout(self.first(x), 0.5, self.training))


def test_a_network_with_other_steps_in_training_works_in_the_mode_it_was_cut_in_and_refuses_the_other():
    net, x = Moody().eval(), torch.rand(3, 4)
    front, tail = cut(net, "first")
    assert torch.equal(tail(front(x)), net(x))
    assert net.training is False
    with pytest.raises(BadInput, match="cut it again in train mode"):
        tail.train()(front(x))
    front, tail = cut(net.train(), "first")
    torch.manual_seed(0)
    found = tail(front(x))
    torch.manual_seed(0)
    assert torch.equal(found, net(x))


def test_cutting_leaves_the_modes_of_all_modules_alone():
    model = ours("wrn16_2")
    model.layer2.eval()
    modes = [module.training for module in model.modules()]
    cut(model, "layer1")
    assert [module.training for module in model.modules()] == modes


class Remembering(nn.Module):
    """A forward pass that writes into the network: an attribute, a buffer, and a constant that it makes."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3), nn.Linear(4, 2)
        self.register_buffer("passes", torch.zeros(()))
        self.feature = None

    def forward(self, x):
        h = self.first(x)
        self.feature = h
        self.passes += 1
        return self.second((h * torch.full((4, 1, 1), 2.0)).mean((2, 3)))


@pytest.mark.parametrize("seen", [False, True], ids=["fresh", "used"])
def test_cutting_leaves_what_a_network_remembers_alone(seen):
    net, x = Remembering(), torch.rand(2, 3, 8, 8)
    if seen:
        net(x)
    before = dict(vars(net)), float(net.passes)
    assert "first" in cuts(net)
    front, tail = cut(net, "first")
    penultimate(net)
    assert (dict(vars(net)), float(net.passes)) == before
    assert torch.equal(tail(front(x)), net(x))
    assert torch.equal(tail.train()(front.train()(x)), net(x))


def test_a_network_that_cannot_be_traced_is_left_alone():
    class Stuck(Remembering):
        def forward(self, x):
            return super().forward(x) if super().forward(x).sum() > 0 else x

    net = Stuck()
    with pytest.raises(BadInput, match="tracing it failed"):
        cuts(net)
    assert net.feature is None


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        return self.inner(x) if x.sum() > 0 else x


@pytest.mark.parametrize(
    ("net", "name", "complaint"),
    [
        (Branching(), "inner", "tracing it failed"),
        (nn.Sequential(nn.Linear(4, 4)), "lin", "no module 'lin'"),
    ],
)
def test_what_cannot_be_cut_is_refused_in_one_sentence(net, name, complaint):
    with pytest.raises(BadInput, match=complaint) as refused:
        cut(net, name)
    assert "\n" not in str(refused.value)


def test_a_wrong_name_is_answered_with_near_ones():
    with pytest.raises(BadInput, match=r"layer1\.0"):
        cut(ours("resnet8"), "layer1.9")


def test_a_module_inside_a_layer_cannot_be_cut_at():
    model = norm.steer(ours("resnet8"))
    norm.add_branch(model, "adv")
    with pytest.raises(BadInput, match="does not run on its own"):
        cut(model, "bn1.branches.adv")
