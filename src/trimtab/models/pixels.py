"""Mean and std live inside the model: a classifier that takes pixels in [0, 1].

    Pixels(net, spec)(x) = net((x - mean) / std)

So eps, sigma and every other size is in pixels, whoever trained the network. The wrapper carries the
`InputSpec`, the class names and where the network came from; its state dict is the network's own under
`net.`, and attributes it does not have are the network's (`model.layer4`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.types import BadInput, InputSpec


@dataclass(frozen=True)
class Origin:
    """How to make a network's architecture again, and what its weights are."""

    source: str
    """`net:`, `timm:`, `torchvision:` or `py:` and a name."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """What the constructor was given."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """Where the weights come from; free for whoever trained them."""


class Normalize(nn.Module):
    """Subtract a mean and divide by a std, per channel."""

    def __init__(self, mean: Sequence[float], std: Sequence[float]):
        super().__init__()
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std

    def extra_repr(self) -> str:
        return f"mean={self.mean[:, 0, 0].tolist()}, std={self.std[:, 0, 0].tolist()}"


class Pixels(nn.Module):
    """A network that takes pixels in [0, 1] and normalizes them itself."""

    net: nn.Module

    def __init__(
        self,
        net: nn.Module,
        spec: InputSpec,
        classes: Sequence[str] | None = None,
        origin: Origin | None = None,
    ):
        super().__init__()
        like = next(net.parameters(), torch.zeros(()))
        self.normalize = Normalize(spec.mean, spec.std).to(like.device, like.dtype)
        self.net = net
        self.spec = spec
        self.classes = None if classes is None else tuple(classes)
        self.origin = origin
        self.training = net.training

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(x, Tensor):  # a tracer's stand-in has no shape to check
            _require_pixels(x, self.spec)
        return self.net(self.normalize(x))

    @property
    def recorded(self) -> bool:
        """Whether somebody said what it expects; without a record its size is a guess."""
        return self.origin is not None and (any(self.spec.mean) or "trimtab" in self.origin.provenance)

    def described(self, **changes: Any) -> Pixels:
        """The same network under another `spec`, `classes` or `origin`."""
        fields = {"spec": self.spec, "classes": self.classes, "origin": self.origin, **changes}
        again = Pixels(self.net, **fields)
        if "provenance" in vars(self):  # of its statistics
            again.provenance = self.provenance
        return again

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            # copy, pickle and torch read private names; these would describe the network without its wrapper.
            if name == "net" or name.startswith("_"):
                raise
            return getattr(self.net, name)


def _require_pixels(x: Tensor, spec: InputSpec) -> None:
    if not x.is_floating_point():
        raise BadInput(f"the model takes pixels as floats in [0, 1], found {x.dtype}; divide by 255")
    if x.dim() < 3 or x.shape[-3] != spec.channels:  # a wrong count would broadcast against the mean
        raise BadInput(
            f"the model takes images with {spec.channels} channels, found shape {tuple(x.shape)}; give it "
            "such images, or say that it takes others: models.wrap(net, InputSpec(channels=...))"
        )


def wrap(model: nn.Module, spec: InputSpec | None = None) -> Pixels:
    """The model in pixel space. One that already is stays as it is, or gets `spec` in place of its own.

    Without a `spec`, what timm recorded about the network is taken; a network that carries no record is
    taken to want pixels as they are.
    """
    if isinstance(model, Pixels):
        return model if spec is None or spec == model.spec else model.described(spec=spec)
    if spec is None and (spec := recorded_spec(model)) is None:
        spec = plain_spec(channels_of(model) or 3)
    return Pixels(model, spec)


def spec_of(model: nn.Module) -> InputSpec | None:
    """Return the InputSpec that a model carries; None for a network that is not in pixel space.

    Args:
        model: any classifier.
    """
    spec = getattr(model, "spec", None)
    return spec if isinstance(spec, InputSpec) else None


def plain_spec(channels: int) -> InputSpec:
    """Pixels as they are."""
    return InputSpec(channels=channels)


def recorded_spec(net: nn.Module) -> InputSpec | None:
    """Read the InputSpec from timm's record of a network (`pretrained_cfg`), if it has one that fits.

    Image files are resized and cropped as `timm.data.resolve_data_config` says.
    """
    record = getattr(net, "pretrained_cfg", None)
    if not isinstance(record, Mapping) or not {"mean", "std", "input_size"} <= record.keys():
        return None
    channels, height, width = record["input_size"]
    if channels_of(net) not in (None, channels):
        return None
    return InputSpec(
        (height, width),
        channels,
        tuple(record["mean"]),
        tuple(record["std"]),
        crop_fraction=record.get("crop_pct") or 0.875,
        interpolation=record.get("interpolation") or "bicubic",
        crop_mode=record.get("crop_mode") or "center",
    )


def channels_of(net: nn.Module) -> int | None:
    """How many channels a network's images have, if its first convolution tells."""
    channels = next((m.in_channels for m in net.modules() if isinstance(m, nn.Conv2d)), None)
    # Some networks fold positions into channels first.
    return None if channels is None or channels > 4 else channels
