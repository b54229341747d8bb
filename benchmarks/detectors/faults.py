"""Faults of a model's normalization, each as a change of what its network receives."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.detectors.networks import HALF, HALF_GRAY, IMAGENET, Case, Constants

MNIST: Constants = ((0.1307,), (0.3081,))
SOUND = "right"
Receives = Callable[[Tensor], Tensor]


class Faulty(nn.Module):
    """A network after a normalization that may be wrong; it reveals neither its constants nor the fault."""

    def __init__(self, net: nn.Module, receives: Receives) -> None:
        super().__init__()
        self.net, self.receives = net, receives
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(self.receives(x))


def faults(case: Case) -> dict[str, Receives]:
    """What the network of a case receives for pixels, rightly and with each fault."""
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in case.constants)
    channels = len(mean)
    others = {"of [-1, 1]": HALF if channels == 3 else HALF_GRAY}
    others |= {"of ImageNet": IMAGENET} if channels == 3 else {"of MNIST": MNIST}

    def right(x: Tensor) -> Tensor:
        return (x - mean) / std

    def normalized_by(constants: Constants) -> Receives:
        other_mean, other_std = (torch.tensor(values).view(-1, 1, 1) for values in constants)
        return lambda x: (x - other_mean) / other_std

    planted: dict[str, Receives] = {
        SOUND: right,
        "normalized twice": lambda x: right(right(x)),
        "not normalized": lambda x: x,
        "wrong mean: none": lambda x: x / std,
        "wrong std: none": lambda x: x - mean,
        "pixels 0..255": lambda x: right(x * 255),
        "pixels divided by 255 twice": lambda x: right(x / 255),
    }
    if channels == 3:
        planted["BGR order"] = lambda x: right(x.flip(1))
    for name, constants in others.items():
        if constants != case.constants:
            planted[f"wrong mean and std: {name}"] = normalized_by(constants)
    return planted
