"""ResNets with pre-activation ("Identity mappings in deep residual networks", He et al. 2016).

    block:  y = conv(act(norm(conv(act(norm(x)))))) + x

Where the shape changes the shortcut is a projection of the activated input. A norm and an activation
end the network. APART's experiments use a public variant of PreAct-ResNet-18 that normalizes after the
first convolution instead and leaves the end as it is; ours is the paper's.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import Tensor, nn

from trimtab.models.style import Style, chain, stack
from trimtab.types import BadInput

BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}


def preact_resnet(
    depth: int,
    classes: int = 10,
    channels: int = 3,
    width: int = 64,
    norm: str = "bn",
    activation: str = "relu",
    shortcut: bool = True,
    init: str | None = None,
) -> nn.Sequential:
    """PreAct-ResNet-18 and 34 with a CIFAR stem."""
    if depth not in BLOCKS:
        raise BadInput(f"a pre-activation ResNet has {' or '.join(map(str, BLOCKS))} layers, found {depth}")
    widths = [width * 2**stage for stage in range(4)]
    style = Style(norm, activation, shortcut, init=init)
    return assemble(BLOCKS[depth], width, widths, classes, channels, style)


def assemble(
    blocks: Sequence[int],
    width: int,
    widths: Sequence[int],
    classes: int,
    channels: int,
    style: Style,
    dropout: float = 0.0,
) -> nn.Sequential:  # (N, channels, H, W) -> (N, classes)
    """A pre-activation network: `width` channels leave the first convolution, `widths` the stages."""
    net = chain(
        conv1=style.conv(channels, width, 3),
        **stack(blocks, width, widths, partial(PreActBlock, style=style, dropout=dropout)),
        bn=style.normalize(widths[-1]),
        act=style.activate(),
        avgpool=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
        fc=style.classify(widths[-1], classes),
    )
    style.initialize(net)
    return net


class PreActBlock(nn.Module):
    """Two 3x3 convolutions, each after a norm and an activation, added to the shortcut."""

    def __init__(self, incoming: int, outgoing: int, stride: int, style: Style, dropout: float):
        super().__init__()
        self.bn1 = style.normalize(incoming)
        self.act1 = style.activate()
        self.conv1 = style.conv(incoming, outgoing, 3, stride)
        self.bn2 = style.normalize(outgoing)
        self.act2 = style.activate()
        self.dropout = nn.Dropout(dropout)
        self.conv2 = style.conv(outgoing, outgoing, 3)
        self.adds = style.shortcut
        changes = stride != 1 or incoming != outgoing
        self.downsample = style.conv(incoming, outgoing, 1, stride) if self.adds and changes else None

    def forward(self, x: Tensor) -> Tensor:
        active = self.act1(self.bn1(x))
        out = self.act2(self.bn2(self.conv1(active)))
        out = self.conv2(self.dropout(out))
        if not self.adds:
            return out
        return out + (x if self.downsample is None else self.downsample(active))
