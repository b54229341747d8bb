"""The papers' networks: published sizes, torchvision as oracle, and what each parameter must change.

Also tests models.preact, models.resnet, models.style, models.vgg, models.wide_resnet.
"""

import pytest
import torch
from torch import nn
from torchvision import models as torchvision_models

from trimtab.models import build
from trimtab.models.resnet import Basic, Bottleneck, Padded
from trimtab.models.style import Bias, Multiplier, Style
from trimtab.types import BadInput, InputSpec

SMALL = {
    "resnet8": {"width": 4},
    "resnet18_cifar": {"width": 4},
    "resnet50_cifar": {"width": 4},
    "preact18": {"width": 4},
    "wrn16_2": {"width": 4},
    "vgg11": {"width": 4},
}


def count(model):
    return sum(p.numel() for p in model.parameters())


def small(name, **arguments):
    torch.manual_seed(0)
    return build(name, classes=3, **{**SMALL[name], **arguments})


@pytest.mark.parametrize(
    ("name", "classes", "millions", "digits"),
    [
        ("resnet20", 10, 0.27, 2),  # He et al., table 6
        ("resnet56", 10, 0.85, 2),
        ("resnet110", 10, 1.7, 1),
        ("resnet18_cifar", 10, 11.17, 2),
        ("resnet50_cifar", 10, 23.52, 2),
        ("preact18", 10, 11.17, 2),
        ("wrn40_2", 10, 2.2, 1),  # Zagoruyko and Komodakis, table 5
        ("wrn28_10", 10, 36.5, 1),
        ("vgg16", 10, 14.7, 1),
        ("resnet18", 1000, 11.69, 2),
        ("resnet50", 1000, 25.56, 2),
        ("resnet152", 1000, 60.19, 2),
    ],
)
def test_parameter_counts_are_the_published_ones(name, classes, millions, digits):
    with torch.device("meta"):
        model = build(name, classes=classes)
    assert round(count(model) / 1e6, digits) == millions


@pytest.mark.parametrize("depth", [18, 34, 50, 101, 152])
def test_imagenet_resnets_have_the_keys_and_shapes_of_torchvision(depth):
    with torch.device("meta"):
        ours = build(f"resnet{depth}").net.state_dict()
        theirs = torchvision_models.get_model(f"resnet{depth}").state_dict()
    assert {key: value.shape for key, value in ours.items()} == {
        key: value.shape for key, value in theirs.items()
    }


@pytest.mark.parametrize("depth", [18, 50])
def test_imagenet_resnets_compute_what_torchvision_computes(depth):
    torch.manual_seed(depth)
    theirs = torchvision_models.get_model(f"resnet{depth}")
    ours = build(f"resnet{depth}")
    ours.net.load_state_dict(theirs.state_dict())
    x = torch.rand(2, 3, 64, 64)
    for mode in (False, True):
        assert torch.equal(ours.train(mode)(x), theirs.train(mode)(x))


@pytest.mark.parametrize("depth", [18, 50, 101, 152, 200, 338, 518, 638])
def test_a_resnet_has_as_many_weighted_layers_as_its_name_says(depth):
    with torch.device("meta"):
        net = build(f"resnet{depth}").net
    layers = [
        n for n, m in net.named_modules() if isinstance(m, nn.Conv2d | nn.Linear) and "downsample" not in n
    ]
    assert len(layers) == depth


@pytest.mark.parametrize("depth", [8, 20, 32, 44, 56, 110])
def test_a_thin_resnet_has_as_many_weighted_layers_as_its_name_says_and_no_others(depth):
    with torch.device("meta"):
        net = build(f"resnet{depth}").net
    assert sum(isinstance(m, nn.Conv2d | nn.Linear) for m in net.modules()) == depth


def test_vgg_has_three_convolutions_fewer_than_its_name_says():
    for depth in (11, 13, 16, 19):
        with torch.device("meta"):
            net = build(f"vgg{depth}").net
        assert sum(isinstance(m, nn.Conv2d) for m in net.modules()) == depth - 3


@pytest.mark.parametrize("name", SMALL)
def test_gray_images_of_28_pixels_go_through_every_network(name):
    spec = InputSpec((28, 28), 1, (0.3,), (0.35,))
    model = build(name, classes=7, input=spec, **SMALL[name])
    assert model(torch.rand(2, 1, 28, 28)).shape == (2, 7)
    assert model.spec == spec


@pytest.mark.parametrize("kind", ["gn", "in", "ln", "none"])
@pytest.mark.parametrize("name", SMALL)
def test_without_batch_norm_an_image_does_not_see_its_batch(name, kind):
    model = small(name, norm=kind).double()
    size = 64 if name == "vgg11" else 32  # instance norm needs more than one position behind four poolings
    x = torch.rand(3, 3, size, size, dtype=torch.float64)
    assert not any("BatchNorm" in type(m).__name__ for m in model.modules())
    torch.testing.assert_close(model(x)[:1], model(x[:1]))


@pytest.mark.parametrize("name", SMALL)
def test_batch_norm_is_the_default_and_couples_the_batch(name):
    model = small(name).double()
    x = torch.rand(3, 3, 32, 32, dtype=torch.float64)
    assert not torch.allclose(model(x)[:1], model(x[[0, 0]])[:1])


@pytest.mark.parametrize("name", ["resnet8", "resnet18_cifar", "resnet50_cifar"])
def test_a_fixup_network_starts_at_zero_with_every_block_its_shortcut(name):
    model = small(name, norm="fixup")
    x = torch.rand(2, 3, 32, 32)
    assert torch.equal(model(x), torch.zeros(2, 3))
    block = next(m for m in model.modules() if isinstance(m, Basic | Bottleneck))
    z = torch.randn(2, block.downsample[1].in_channels if name == "resnet50_cifar" else 4, 8, 8)
    assert torch.equal(block(z), torch.relu(block.downsample(z)))


@pytest.mark.parametrize(("name", "power"), [("resnet56", -1 / 2), ("resnet50_cifar", -1 / 4)])
def test_fixup_scales_the_early_convolutions_by_the_papers_power_of_the_depth(name, power):
    torch.manual_seed(0)
    net = build(name, norm="fixup").net
    blocks = [m for m in net.modules() if isinstance(m, Basic | Bottleneck)]
    conv = blocks[-1].conv1[1]
    he = (2 / (conv.out_channels * conv.kernel_size[0] ** 2)) ** 0.5
    assert conv.weight.std().item() == pytest.approx(he * len(blocks) ** power, rel=0.05)


def test_fixup_has_the_papers_scalars_and_nothing_that_normalizes():
    net = build("resnet20", norm="fixup").net
    blocks = 9
    assert sum(isinstance(m, Multiplier) for m in net.modules()) == blocks
    # Before each convolution of a block, before its activations, behind the stem, before the classifier.
    assert sum(isinstance(m, Bias) for m in net.modules()) == 4 * blocks + 2
    with_norm, norms = build("resnet20").net, 2 * (16 + 6 * (16 + 32 + 64))
    assert count(net) == count(with_norm) - norms + 5 * blocks + 2


def test_fixup_trains_from_its_start():
    model = small("resnet8", norm="fixup")
    y = torch.arange(12) % 3
    x = torch.rand(12, 3, 16, 16) * 0.2
    x[torch.arange(12), y] += 0.8  # the class is a color
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(30):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(torch.tensor(3.0).log())  # all logits are zero
    assert losses[-1] < 0.1


@pytest.mark.parametrize(("block", "last"), [(Basic, "conv2"), (Bottleneck, "conv3")])
def test_without_shortcut_a_block_is_its_branch_alone(block, last):
    x = torch.randn(2, 8, 6, 6)
    for shortcut, expected in ((True, torch.relu(x)), (False, torch.zeros_like(x))):
        made = block(8, 8, 1, Style("none", shortcut=shortcut), True)
        nn.init.zeros_(getattr(made, last).weight)
        assert torch.equal(made(x), expected)


@pytest.mark.parametrize("name", ["resnet8", "resnet18_cifar", "preact18", "wrn16_2"])
def test_without_shortcuts_projections_vanish_and_the_convolutions_stay(name):
    plain, residual = small(name, shortcut=False), small(name)
    projections = sum(p.numel() for n, p in residual.named_parameters() if "downsample" in n)
    assert count(plain) == count(residual) - projections
    x = torch.rand(2, 3, 32, 32)
    assert not torch.equal(plain(x), residual(x))


def test_the_shortcut_without_parameters_takes_every_second_position_and_adds_zero_channels():
    x = torch.randn(2, 4, 8, 8)
    y = Padded(2, 5)(x)
    assert torch.equal(y[:, 2:6], x[:, :, ::2, ::2])
    assert torch.equal(y[:, [0, 1, 6, 7, 8]], torch.zeros(2, 5, 4, 4))


@pytest.mark.parametrize(
    ("activation", "kind"), [("relu", nn.ReLU), ("leaky", nn.LeakyReLU), ("selu", nn.SELU)]
)
@pytest.mark.parametrize("name", SMALL)
def test_the_activation_is_the_one_asked_for_everywhere(name, activation, kind):
    found = {type(m) for m in small(name, activation=activation).modules()}
    assert found & {nn.ReLU, nn.LeakyReLU, nn.SELU} == {kind}


@pytest.mark.parametrize("name", SMALL)
def test_width_scales_every_convolution(name):
    narrow, wide = small(name), small(name, width=8)
    ratios = [
        b.out_channels / a.out_channels
        for a, b in zip(narrow.modules(), wide.modules(), strict=True)
        if isinstance(a, nn.Conv2d)
    ]
    assert set(ratios) == {2.0}


def test_dropout_of_a_wide_resnet_is_active_in_training_only():
    model = small("wrn16_2", norm="none", dropout=0.5)
    x = torch.rand(2, 3, 32, 32)
    assert not torch.equal(model.train()(x), model.train()(x))
    assert torch.equal(model.eval()(x), model.eval()(x))


@pytest.mark.parametrize(
    ("name", "arguments", "complaint"),
    [
        ("resnet9", {}, "6n\\+2"),
        ("resnet60_imagenet", {}, "3n\\+2"),
        ("wrn41_2", {}, "6n\\+4"),
        ("vgg12", {}, "VGG has"),
        ("preact50", {}, "18 or 34"),
        ("lenet", {}, "no network 'lenet'"),
        ("resnet8", {"norm": "bm"}, "no kind of normalization"),
        ("resnet8", {"activation": "gelu"}, "no activation"),
        ("resnet8", {"wdth": 3}, "no parameter 'wdth'"),
        ("vgg16", {"shortcut": False}, "no parameter 'shortcut'"),
        ("vgg16", {"norm": "fixup"}, "fixup"),
        ("wrn16_2", {"norm": "fixup"}, "fixup"),
        ("resnet8", {"width": 0}, "whole number"),
        ("resnet18", {"stem": "mnist"}, "no stem"),
        ("resnet8", {"channels": 3, "input": InputSpec((28, 28), 1, (0.0,), (1.0,))}, "channels"),
    ],
)
def test_what_cannot_be_built_is_refused_in_one_sentence(name, arguments, complaint):
    with pytest.raises(BadInput, match=complaint) as refused:
        build(name, **arguments)
    assert "\n" not in str(refused.value)
