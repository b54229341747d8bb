"""VGG (Simonyan and Zisserman 2015) as it is used on CIFAR: 3x3 convolutions, poolings, one linear layer.

The ImageNet network ends in three linear layers; with 32x32 images the five poolings leave one position,
and the usual CIFAR variant classifies it directly. Poolings round up, which changes nothing at 32x32 and
lets 28x28 images through.
"""

from __future__ import annotations

from torch import nn

from trimtab.models.style import Style, chain
from trimtab.types import BadInput

CONVOLUTIONS = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
"""Per stage; a pooling ends each."""


def vgg(
    depth: int,
    classes: int = 10,
    channels: int = 3,
    width: int = 64,
    norm: str = "bn",
    activation: str = "relu",
    init: str | None = None,
) -> nn.Sequential:  # (N, channels, H, W) -> (N, classes)
    """VGG-11, 13, 16 and 19; `width` channels in the first stage."""
    if depth not in CONVOLUTIONS:
        raise BadInput(f"VGG has {', '.join(map(str, CONVOLUTIONS))} layers, found {depth}")
    style = Style(norm, activation, init=init)
    features = nn.Sequential()
    incoming = channels
    for stage, convolutions in enumerate(CONVOLUTIONS[depth]):
        outgoing = width * min(2**stage, 8)
        for _ in range(convolutions):
            features.append(nn.Conv2d(incoming, outgoing, 3, padding=1))  # with a bias, as in the paper
            features.append(style.normalize(outgoing))
            features.append(style.activate())
            incoming = outgoing
        features.append(nn.MaxPool2d(2, ceil_mode=True))
    net = chain(
        features=features,
        avgpool=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
        classifier=style.classify(incoming, classes),
    )
    style.initialize(net)
    return net
