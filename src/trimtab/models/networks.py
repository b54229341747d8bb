"""The papers' networks by name: `build("resnet8", classes=10, norm="gn", width=32)`.

    resnet8  resnet20  resnet56  ...    thin CIFAR ResNets, 6n+2 layers
    resnet18_cifar  resnet50_cifar      the ImageNet ResNets with a CIFAR stem
    resnet18 34 50 101 152 200 338 518 638, and resnetN_imagenet for any other depth 3n+2
    preact18  preact34                  pre-activation ResNets
    wrn40_2  wrn28_10  ...              wide ResNets
    vgg11  vgg13  vgg16  vgg19          VGG for CIFAR

Where a depth exists in both families (50, 152, 200, ...) the bare name means the ImageNet network.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import nn

from trimtab.models.pixels import Origin, Pixels
from trimtab.models.preact import preact_resnet
from trimtab.models.resnet import BASIC, BOTTLENECK, resnet, thin_resnet
from trimtab.models.vgg import vgg
from trimtab.models.wide_resnet import wide_resnet
from trimtab.types import BadInput, InputSpec

IMAGENET_DEPTHS = (*BASIC, *BOTTLENECK, 338, 518, 638)
EXAMPLES = (
    "resnet8", "resnet20", "resnet56", "resnet18_cifar", "resnet50_cifar", "resnet18", "resnet50",
    "preact18", "wrn40_2", "vgg11", "vgg16", "vgg19",
)  # fmt: skip

Maker = Callable[..., nn.Module]


def build(
    name: str, classes: int | Sequence[str] | None = None, input: InputSpec | None = None, **arguments: Any
) -> Pixels:
    """An untrained network in pixel space.

    `classes` is their number or their names. `input` is what it will see (size, channels, mean, std);
    else pixels are taken as they are, at the size the network is meant for. The other arguments are the
    network's own: norm, width, activation, shortcut, channels, init, ...
    """
    maker, size = _find(name)
    if input is not None and arguments.setdefault("channels", input.channels) != input.channels:
        raise BadInput(f"{arguments['channels']} channels were asked for, the input has {input.channels}")
    if classes is not None:
        arguments["classes"] = classes if isinstance(classes, int) else len(classes)
    _require_known(name, maker, arguments)
    net = maker(**arguments)
    channels = arguments.get("channels", 3)
    spec = input or InputSpec(size, channels)
    names = None if classes is None or isinstance(classes, int) else classes
    return Pixels(net, spec, names, Origin(f"net:{name}", arguments))


def usual_width(name: str) -> int:
    """Return the `width` that a network has if none is given."""
    return int(inspect.signature(_find(name)[0]).parameters["width"].default)


def _find(name: str) -> tuple[Maker, tuple[int, int]]:
    """The function that makes a network, and the image size it is meant for."""
    small, large = (32, 32), (224, 224)
    if match := re.fullmatch(r"resnet(\d+)(_cifar|_imagenet)?", name):
        depth, family = int(match[1]), match[2]
        if family == "_cifar":
            return partial(resnet, depth, stem="cifar"), small
        if family == "_imagenet" or depth in IMAGENET_DEPTHS:
            return partial(resnet, depth), large
        return partial(thin_resnet, depth), small
    if match := re.fullmatch(r"preact(\d+)", name):
        return partial(preact_resnet, int(match[1])), small
    if match := re.fullmatch(r"wrn(\d+)_(\d+)", name):
        return partial(wide_resnet, int(match[1]), int(match[2])), small
    if match := re.fullmatch(r"vgg(\d+)", name):
        return partial(vgg, int(match[1])), small
    raise BadInput(f"there is no network {name!r}; take one like {', '.join(EXAMPLES)}")


def _require_known(name: str, maker: Maker, arguments: dict[str, Any]) -> None:
    parameters = inspect.signature(maker).parameters.values()
    known = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    for given, value in arguments.items():
        if given not in known:
            raise BadInput(f"{name} has no parameter {given!r}; it has {', '.join(known)}")
        if given in ("classes", "channels", "width") and (not isinstance(value, int) or value < 1):
            raise BadInput(f"{given} must be a whole number from 1 on, found {value!r}")
