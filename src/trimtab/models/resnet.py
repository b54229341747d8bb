"""ResNets (He et al. 2016), thin ones for CIFAR and wide ones for CIFAR and ImageNet.

    block:       y = act(branch(x) + shortcut(x))
    basic:       branch = conv3x3 norm act conv3x3 norm
    bottleneck:  branch = conv1x1 norm act conv3x3 norm act conv1x1 norm, a quarter as wide inside

`thin_resnet` is the paper's CIFAR family: 6n+2 layers, three stages of 16, 32, 64 channels, shortcuts
without parameters (strided, padded with channels of zeros). `resnet` has four stages of 64 to 512
channels and projections where the shape changes; `stem="cifar"` takes a 3x3 convolution and no pooling.
Its stride sits in the 3x3 convolution, and its keys and shapes are torchvision's (norm layers are called
bn1, bn2, ... whatever their kind), so checkpoints go both ways.

Beyond 200 layers: "Intriguing properties of adversarial training" trains ResNet-338, 518 and 638 by
"adding more residual blocks" and does not say where. Ours keep three blocks in the outer stages and give
the second and third stage 2/5 and 3/5 of the rest, as ResNet-50 and ResNet-200 do.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import Tensor, nn
from torch.nn import functional as F

from trimtab.models.style import Style, chain, fixup_init, stack
from trimtab.types import BadInput

BASIC = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}
BOTTLENECK = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3), 200: (3, 24, 36, 3)}


def thin_resnet(
    depth: int,
    classes: int = 10,
    channels: int = 3,
    width: int = 16,
    norm: str = "bn",
    activation: str = "relu",
    shortcut: bool = True,
    init: str | None = None,
) -> nn.Sequential:
    """The CIFAR family: ResNet-8, 20, 32, 44, 56, 110, ..."""
    n, rest = divmod(depth - 2, 6)
    if n < 1 or rest:
        raise BadInput(f"a thin ResNet has 6n+2 layers (8, 14, 20, ...), found {depth}")
    style = Style(norm, activation, shortcut, fixup_allowed=True, init=init)
    return _assemble(Basic, (n, n, n), classes, channels, width, style, "cifar", projections=False)


def resnet(
    depth: int,
    classes: int = 1000,
    channels: int = 3,
    width: int = 64,
    norm: str = "bn",
    activation: str = "relu",
    shortcut: bool = True,
    init: str | None = None,
    stem: str = "imagenet",
) -> nn.Sequential:
    """Four stages: basic blocks for 18 and 34 layers, bottlenecks from 50 on, to any depth 3n+2."""
    block = Basic if depth in BASIC else Bottleneck
    blocks = BASIC.get(depth) or BOTTLENECK.get(depth) or _deep(depth)
    style = Style(norm, activation, shortcut, fixup_allowed=True, init=init)
    return _assemble(block, blocks, classes, channels, width, style, stem, projections=True)


def _deep(depth: int) -> tuple[int, int, int, int]:
    if (depth - 2) % 3 or depth < 50:
        raise BadInput(f"a ResNet has 18 or 34 layers, or 3n+2 from 50 on, found {depth}")
    inner = (depth - 2) // 3 - 6
    second = round(inner * 2 / 5)
    return 3, second, inner - second, 3


def _assemble(
    block: type[Basic] | type[Bottleneck],
    blocks: Sequence[int],
    classes: int,
    channels: int,
    width: int,
    style: Style,
    stem: str,
    projections: bool,
) -> nn.Sequential:  # (N, channels, H, W) -> (N, classes)
    if stem == "imagenet":
        first = nn.Conv2d(channels, width, 7, 2, padding=3, bias=False)
        pool = {"maxpool": nn.MaxPool2d(3, 2, padding=1)}
    elif stem == "cifar":
        first, pool = nn.Conv2d(channels, width, 3, padding=1, bias=False), {}
    else:
        raise BadInput(f"{stem!r} is no stem; take cifar or imagenet")
    widths = [width * block.expansion * 2**stage for stage in range(len(blocks))]
    net = chain(
        conv1=first,
        bn1=style.normalize(width),
        act=style.activate(),
        **pool,
        **stack(blocks, width, widths, partial(block, style=style, projections=projections)),
        avgpool=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
        fc=style.classify(widths[-1], classes),
    )
    style.initialize(net)
    if style.fixup:
        fixup_init(net, block)
    return net


class Basic(nn.Module):
    """Two 3x3 convolutions, added to the shortcut."""

    expansion = 1

    def __init__(self, incoming: int, outgoing: int, stride: int, style: Style, projections: bool):
        super().__init__()
        self.conv1 = style.conv(incoming, outgoing, 3, stride)
        self.bn1 = style.normalize(outgoing)
        self.act1 = style.activate()
        self.conv2 = style.conv(outgoing, outgoing, 3)
        self.bn2 = style.normalize(outgoing, ends_branch=True)
        self.downsample = _shortcut(incoming, outgoing, stride, style, projections)
        self.act2 = style.activate()

    def forward(self, x: Tensor) -> Tensor:
        out = self.act1(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            out = out + self.downsample(x)
        return self.act2(out)


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions, a quarter as wide inside, added to the shortcut."""

    expansion = 4

    def __init__(self, incoming: int, outgoing: int, stride: int, style: Style, projections: bool):
        super().__init__()
        inner = outgoing // self.expansion
        self.conv1 = style.conv(incoming, inner, 1)
        self.bn1 = style.normalize(inner)
        self.act1 = style.activate()
        self.conv2 = style.conv(inner, inner, 3, stride)
        self.bn2 = style.normalize(inner)
        self.act2 = style.activate()
        self.conv3 = style.conv(inner, outgoing, 1)
        self.bn3 = style.normalize(outgoing, ends_branch=True)
        self.downsample = _shortcut(incoming, outgoing, stride, style, projections)
        self.act3 = style.activate()

    def forward(self, x: Tensor) -> Tensor:
        out = self.act1(self.bn1(self.conv1(x)))
        out = self.act2(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        if self.downsample is not None:
            out = out + self.downsample(x)
        return self.act3(out)


def _shortcut(incoming: int, outgoing: int, stride: int, style: Style, projections: bool) -> nn.Module | None:
    """What a block adds to its branch: nothing, its input, or its input in the branch's shape."""
    if not style.shortcut:
        return None
    if stride == 1 and incoming == outgoing:
        return nn.Identity()
    if not projections:
        return Padded(stride, outgoing - incoming)
    projection = style.conv(incoming, outgoing, 1, stride)
    return projection if style.fixup else nn.Sequential(projection, style.normalize(outgoing))


class Padded(nn.Module):
    """The shortcut without parameters: every `stride`-th position, and `extra` channels of zeros."""

    def __init__(self, stride: int, extra: int):
        super().__init__()
        self.stride, self.extra = stride, extra

    def forward(self, x: Tensor) -> Tensor:
        before, after = self.extra // 2, self.extra - self.extra // 2
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, before, after))
