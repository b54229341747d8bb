"""Pixel space: normalization happens inside, once, and trouble with the input is said aloud.

Also tests models.check.
"""

import copy
import re

import pytest
import timm
import torch
from torch import nn

from trimtab import norm
from trimtab.models import Pixels, build, check_input, cut, wrap
from trimtab.types import BadInput, InputSpec

IMAGENET = InputSpec((224, 224), 3, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
PLAIN = InputSpec()


class BrightOrDark(nn.Module):
    """A classifier in closed form: class 1 if the mean of its (normalized) input is positive."""

    def forward(self, x):
        mean = x.mean((1, 2, 3))
        return torch.stack([-mean, mean], 1)


def bright_and_dark(n=200):
    torch.manual_seed(0)
    level = 0.45 + 0.2 * (2 * torch.rand(n, 1, 1, 1) - 1)
    x = (level + 0.05 * torch.randn(n, 3, 8, 8)).clamp(0, 1)
    mean, std = torch.tensor(IMAGENET.mean).view(3, 1, 1), torch.tensor(IMAGENET.std).view(3, 1, 1)
    return x, (((x - mean) / std).mean((1, 2, 3)) > 0).long()


def test_pixels_are_normalized_inside_once():
    net = build("resnet8").net.eval()
    x = torch.rand(2, 3, 32, 32)
    by_hand = (x - torch.tensor(IMAGENET.mean).view(3, 1, 1)) / torch.tensor(IMAGENET.std).view(3, 1, 1)
    assert torch.equal(Pixels(net, IMAGENET)(x), net(by_hand))


def test_the_state_dict_is_the_networks_own():
    model = wrap(build("resnet8"), IMAGENET)
    assert list(model.state_dict()) == [f"net.{key}" for key in model.net.state_dict()]


def test_attributes_of_the_network_are_reached_through_the_wrapper():
    model = build("resnet18_cifar", width=4)
    assert model.layer4 is model.net.layer4
    with pytest.raises(AttributeError, match="layer9"):
        _ = model.layer9


def test_private_names_are_not_the_networks():
    model = norm.steer(build("resnet8"))
    names = list(norm.layers(model))
    model.net._mine = 1
    with pytest.raises(AttributeError, match="_mine"):
        _ = model._mine
    model.net = torch.compile(model.net, backend="eager")
    assert list(norm.layers(model)) == names


def test_wrapping_twice_is_wrapping_once():
    model = wrap(build("resnet8").net, IMAGENET)
    assert wrap(model) is model
    assert wrap(model, IMAGENET) is model
    assert wrap(model, PLAIN).net is model.net
    assert wrap(model, PLAIN).spec == PLAIN


def test_what_timm_records_becomes_the_spec():
    net = timm.create_model("resnet10t", num_classes=3)
    assert wrap(net).spec == InputSpec((176, 176), 3, IMAGENET.mean, IMAGENET.std, 0.875, "bicubic")
    gray = timm.create_model("resnet10t", num_classes=3, in_chans=1)  # the record is for three channels
    assert wrap(gray).spec.mean == (0.0,)


def test_a_network_without_a_record_takes_pixels_as_they_are():
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten())
    x = torch.rand(2, 1, 8, 8)
    assert torch.equal(wrap(net)(x), net(x))


def test_copies_and_moves_take_the_wrapper_along():
    model = wrap(build("resnet8"), IMAGENET).eval()
    front, tail = cut(model, "layer1")  # its net is a GraphModule, which copies itself by a method of its own
    x = torch.rand(2, 3, 32, 32)
    again = copy.deepcopy(front)
    assert isinstance(again, Pixels)
    assert torch.equal(tail(again(x)), model(x))
    assert model.double()(x.double()).dtype == torch.float64


def test_a_wrapper_lives_where_its_network_does():
    model = build("resnet8").double()
    assert wrap(model, IMAGENET).normalize.mean.dtype == torch.float64
    assert cut(model.to("meta"), "layer1")[0].normalize.mean.device.type == "meta"


def test_steering_and_compiling_see_through_the_wrapper():
    model = norm.steer(wrap(build("resnet8"), IMAGENET)).eval()
    x = torch.rand(4, 3, 32, 32)
    assert len(norm.layers(model)) == 7
    stock = model(x)
    with norm.use(model.layer1, source="batch", update=False):
        assert not torch.equal(model(x), stock)
    assert torch.equal(model(x), stock)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), model(x))


@pytest.mark.parametrize(
    ("x", "complaint"),
    [
        (torch.rand(2, 1, 32, 32), "3 channels"),
        (torch.zeros(2, 3, 32, 32, dtype=torch.uint8), "divide by 255"),
        (torch.rand(32, 32), "3 channels"),
    ],
)
def test_images_that_would_broadcast_or_are_bytes_are_refused(x, complaint):
    with pytest.raises(BadInput, match=complaint):
        build("resnet8")(x)


# ---- check_input ----------------------------------------------------------------------------------------


class ImageNormalizer(nn.Module):
    """As other tools put it in front of their networks."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.tensor(IMAGENET.mean).view(3, 1, 1))
        self.register_buffer("std", torch.tensor(IMAGENET.std).view(3, 1, 1))

    def forward(self, x):
        return (x - self.mean) / self.std


def test_a_sound_model_and_sound_images_raise_nothing():
    x, y = bright_and_dark()
    assert check_input(Pixels(BrightOrDark(), IMAGENET), x, y) == []
    assert check_input(nn.Sequential(ImageNormalizer(), BrightOrDark()), x, y) == []
    assert check_input(build("resnet8"), x, y) == []  # untrained: nothing to tell by


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda x: x * 255, "go up to"),
        (lambda x: (x - 0.45) / 0.22, "leave normalizing to the model"),
        (lambda x: x / 255, "divided by 255 twice"),
        (lambda x: (x * 255).byte(), "uint8"),
        (lambda x: x[:, :1], "takes \\(N, 3, H, W\\)"),
        (lambda x: torch.full_like(x, torch.nan), "instead of \\[0, 1\\]"),
    ],
)
def test_images_that_are_no_pixels_are_named(spoil, complaint):
    x, _ = bright_and_dark(8)
    (sentence,) = check_input(Pixels(BrightOrDark(), IMAGENET), spoil(x))
    assert re.search(complaint, sentence)


@pytest.mark.parametrize(
    "net",
    [
        Pixels(BrightOrDark(), IMAGENET),
        nn.Sequential(ImageNormalizer(), BrightOrDark()),
        nn.Sequential(nn.Sequential(ImageNormalizer()), BrightOrDark()),
    ],
    ids=["ours", "theirs", "nested"],
)
def test_a_network_that_normalizes_inside_a_wrapper_that_does_is_named(net):
    x, _ = bright_and_dark(8)
    (sentence,) = check_input(Pixels(net, IMAGENET), x)
    assert "second normalization" in sentence
    assert check_input(Pixels(net, PLAIN), x) == []


def test_a_missing_normalization_shows_in_the_accuracy():
    x, y = bright_and_dark()
    (sentence,) = check_input(Pixels(BrightOrDark(), PLAIN), x, y)
    assert "ImageNet" in sentence
    assert "100.0%" in sentence


def test_a_hidden_double_normalization_shows_in_the_accuracy():
    class Hidden(BrightOrDark):
        def forward(self, x):
            return super().forward((x - 0.449) / 0.226)

    x, y = bright_and_dark()
    (sentence,) = check_input(Pixels(Hidden(), IMAGENET), x, y)
    assert "normalized twice" in sentence


def test_labels_beyond_the_classes_are_named():
    x, _ = bright_and_dark(8)
    (sentence,) = check_input(Pixels(BrightOrDark(), IMAGENET), x, torch.full((8,), 5))
    assert "labels go up to 5" in sentence
    assert "2 classes" in sentence


def test_checking_leaves_the_model_as_it_was():
    model = build("resnet8")
    model.layer1.eval()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    x, y = bright_and_dark(16)
    check_input(model, x, y)
    assert modes == [module.training for module in model.modules()]
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
