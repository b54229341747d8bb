"""What the blocks of one network have in common: normalization, activation, shortcuts.

The papers vary exactly these, all else equal, so they are one value that every block is built from.

Fixup (Zhang, Dauphin, Ma 2019) trains residual networks without normalization. In a network with L
residual branches of m convolutions each,
  - the last convolution of every branch, and the classifier, start at zero;
  - the other convolutions of a branch start at He's std times L^(-1/(2m-2));
  - a scalar bias precedes every convolution, activation and the classifier, and one scalar
    multiplier ends every branch.
Ours gives a convolution on a shortcut a bias of its own, by the paper's rule; the authors' code shares
that of the branch's first convolution.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trimtab import norm
from trimtab.types import BadInput

ACTIVATIONS = {"relu": nn.ReLU, "leaky": nn.LeakyReLU, "selu": nn.SELU}


@dataclass(frozen=True)
class Style:
    """The choices that all blocks of a network share."""

    norm: str = "bn"
    """bn, gn, in, ln, none; fixup where the network is a ResNet."""
    activation: str = "relu"
    """relu, leaky (LeakyReLU with 0.01) or selu."""
    shortcut: bool = True
    """Whether residual blocks add what came in."""
    fixup_allowed: bool = False
    init: str | None = None
    """he (normal, by fan-out), torch (its own default) or zero-last: he, and the last norm of each residual
    branch starts at a scale of 0 (Goyal et al. 2017). If None, torch where there is no norm, else he:
    without a norm the sum of residual branches that start from he grows until training diverges."""

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise BadInput(f"{self.activation!r} is no activation; choose one of {', '.join(ACTIVATIONS)}")
        if self.fixup and not self.fixup_allowed:
            raise BadInput("fixup is defined for ResNets; take one, or another norm for this network")
        if self.init not in (None, "he", "torch", "zero-last"):
            raise BadInput(f"there is no initialization {self.init!r}; choose he, torch or zero-last")
        if self.init == "zero-last" and not (self.fixup_allowed and self.shortcut and self.norm != "none"):
            raise BadInput("zero-last is for ResNets with a norm and shortcuts; leave init out")
        if self.fixup and self.init in ("torch", "zero-last"):
            raise BadInput("fixup starts from he; leave init out, or take another norm")
        if not self.fixup:
            norm.make(self.norm, 1)  # refuses unknown kinds

    @property
    def fixup(self) -> bool:
        return self.norm == "fixup"

    def initialize(self, net: nn.Module) -> None:
        """Draw the weights of a whole network; torch's own are there since its layers were made."""
        if (self.init or ("torch" if self.norm == "none" else "he")) != "torch":
            he_init(net)

    def conv(self, incoming: int, outgoing: int, kernel: int, stride: int = 1) -> nn.Module:
        """A convolution that keeps the size (up to its stride). Norms carry the biases."""
        conv = nn.Conv2d(incoming, outgoing, kernel, stride, padding=kernel // 2, bias=False)
        return nn.Sequential(Bias(), conv) if self.fixup else conv

    def normalize(self, channels: int, ends_branch: bool = False) -> nn.Module:
        if self.fixup:
            return nn.Sequential(Multiplier(), Bias()) if ends_branch else Bias()
        made = norm.make(self.norm, channels)
        if ends_branch and self.init == "zero-last":
            nn.init.zeros_(made.get_parameter("weight"))
        return made

    def activate(self) -> nn.Module:
        # Not in place: what goes into an activation is also what a shortcut, a cut or a probe reads.
        return ACTIVATIONS[self.activation]()

    def classify(self, features: int, classes: int) -> nn.Module:
        linear = nn.Linear(features, classes)
        return nn.Sequential(Bias(), linear) if self.fixup else linear


class Bias(nn.Module):
    """Add one learned number."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.bias


class Multiplier(nn.Module):
    """Multiply by one learned number."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


def stack(
    blocks: Sequence[int], incoming: int, widths: Sequence[int], make: Callable[[int, int, int], nn.Module]
) -> dict[str, nn.Module]:
    """Residual stages by name. `make(incoming, outgoing, stride)` gives a block; all stages but the first
    begin by halving the size."""
    stages: dict[str, nn.Module] = {}
    for number, (depth, outgoing) in enumerate(zip(blocks, widths, strict=True), start=1):
        made = []
        for index in range(depth):
            made.append(make(incoming, outgoing, 2 if number > 1 and index == 0 else 1))
            incoming = outgoing
        stages[f"layer{number}"] = nn.Sequential(*made)
    return stages


def chain(**steps: nn.Module) -> nn.Sequential:
    """Named steps, one after the other."""
    return nn.Sequential(OrderedDict(steps))


@torch.no_grad()
def he_init(net: nn.Module) -> None:
    """Apply He's normal initialization to all convolutions, by fan-out; linear layers keep torch's own."""
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                module.bias.zero_()


@torch.no_grad()
def fixup_init(net: nn.Module, block: type[nn.Module]) -> None:
    """Scale what `he_init` drew in a network whose residual branches live in modules of class `block`."""
    branches = [
        [m for name, m in module.named_modules() if isinstance(m, nn.Conv2d) and "downsample" not in name]
        for module in net.modules()
        if isinstance(module, block)
    ]
    for *early, last in branches:
        for conv in early:
            conv.weight.mul_(len(branches) ** (-1 / (2 * len(early))))  # len(early) = m - 1
        last.weight.zero_()
    for linear in net.modules():
        if isinstance(linear, nn.Linear):
            linear.weight.zero_()
            linear.bias.zero_()
