"""Networks of the tests: those of torchvision and timm, small ones made by hand, and a trained one."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from trimtab.data.embedded import sample
from trimtab.types import InputSpec


def _torchvision(name: str) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import torchvision

        return torchvision.models.get_model(name, weights=None, num_classes=10)

    return build


def _timm(name: str) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import timm

        return timm.create_model(name, pretrained=False, num_classes=10)

    return build


PUBLIC: dict[str, Callable[[], nn.Module]] = {
    "torchvision resnet18": _torchvision("resnet18"),
    "torchvision densenet121": _torchvision("densenet121"),
    "torchvision mobilenet_v3_small": _torchvision("mobilenet_v3_small"),
    "torchvision efficientnet_b0": _torchvision("efficientnet_b0"),
    "timm resnet50": _timm("resnet50"),
    "timm efficientnet_b0": _timm("efficientnet_b0"),
    "timm regnety_002": _timm("regnety_002"),
}


def public(name: str) -> nn.Module:
    """One of `PUBLIC`, its norm layers with statistics, gains and biases that differ from their start."""
    torch.manual_seed(0)
    return season(PUBLIC[name]())


def season(model: nn.Module, seed: int = 1) -> nn.Module:
    """Give every batch-norm layer trained-looking values, so that no mistake can hide behind 0 and 1."""
    draw = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            for value, low, high in (
                (module.weight, 0.5, 1.5),
                (module.bias, -0.5, 0.5),
                (module.running_mean, -0.3, 0.3),
                (module.running_var, 0.5, 2.0),
            ):
                if value is not None:
                    value.data.copy_(low + (high - low) * torch.rand(value.shape, generator=draw))
    return model


class Small(nn.Module):
    """Two convolutions with batch norm, a residual, and a head."""

    def __init__(self, channels: int = 4, classes: int = 3) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(2, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(channels)
        self.head = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.bn1(self.conv1(x)))
        h = F.relu(self.bn2(self.conv2(h)) + h)
        return self.head(h.mean((2, 3)))


def small(dtype: torch.dtype = torch.float64, seed: int = 0) -> Small:
    torch.manual_seed(seed)
    return season(Small().to(dtype), seed)


def images(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 2) -> Tensor:
    """Gaussian, each channel with a mean and deviation of its own."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=draw, dtype=torch.float64)
    channel = [1, shape[1]] + [1] * (len(shape) - 2)
    scale = 0.5 + torch.rand(channel, generator=draw, dtype=torch.float64)
    return (x * scale + torch.randn(channel, generator=draw, dtype=torch.float64)).to(dtype)


def state(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter, gradient and buffer, as copies, by name."""
    kept = {name: value.detach().clone() for name, value in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            kept[f"{name}.grad"] = parameter.grad.clone()
    return kept


def differing(one: dict[str, Tensor], other: dict[str, Tensor]) -> list[str]:
    """The names under which two states are not bit-identical."""
    if one.keys() != other.keys():
        return sorted(one.keys() ^ other.keys())
    return [name for name in one if not _identical(one[name], other[name])]


def _identical(one: Any, other: Any) -> bool:
    return bool(one.dtype == other.dtype and torch.equal(one, other))


class Net(nn.Module):
    """Pixels in, logits out; mean and std inside."""

    def __init__(self, spec: InputSpec) -> None:
        super().__init__()
        self.spec = spec
        self.net = nn.Sequential(
            nn.Conv2d(1, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
            nn.Conv2d(8, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Flatten(), nn.Linear(16 * 49, 10),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.net((x - self.spec.mean[0]) / self.spec.std[0])


@cache
def trained(eps: float = 0.0) -> Net:
    """The network after one epoch on the embedded images, as they are or moved by up to 8/255 against it.

    SGD, rate 0.05, momentum 0.9, batches of 64; the weights are a file, so they are the same on every CPU.
    """
    name = {0.0: "standard.", 8 / 255: "adversarial."}[eps]
    weights = load_file(Path(__file__).with_name("nets.safetensors"))
    model = Net(sample("train").spec)
    model.load_state_dict({k.removeprefix(name): v for k, v in weights.items() if k.startswith(name)})
    return model.eval()


def stack(
    classes: int,
    widths: tuple[int, int] = (6, 8),
    *,
    seed: int = 0,
    padding: tuple[int, int] = (0, 0),
    stride: int = 1,
    bias: bool = True,
) -> nn.Sequential:
    """Twice convolution, batch norm and ReLU, then the mean over pixels and a head; always the same."""
    torch.manual_seed(seed)
    first, second = widths
    return nn.Sequential(
        nn.Conv2d(3, first, 3, padding=padding[0], bias=bias), nn.BatchNorm2d(first), nn.ReLU(),
        nn.Conv2d(first, second, 3, stride, padding[1], bias=bias), nn.BatchNorm2d(second), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(second, classes),
    )  # fmt: skip
