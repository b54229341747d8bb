"""An encoder out of any classifier, and a decoder that paints its features back.

The encoder is the front of a network, cut behind a named module and fixed. The decoder mirrors it in the
manner of AdaIN's (Huang and Belongie 2017): reflection padding, 3x3 convolutions, nearest upsampling, no
normalisation; trained here with pixel error and a little total variation, as AdvBN's public code does.

    VGG-19 of torchvision     Autoencoder.of(trimtab.load("torchvision:vgg19+pretrained"), "net.features.20")
    ResNet, the paper's second variant        cut behind its first stage, "net.layer1"
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trimtab import draws, models, norm
from trimtab.data import Images, Loader
from trimtab.types import BadInput


class Decoder(nn.Sequential):
    """From features (N, C, H / 2^k, W / 2^k) to images (N, channels, H, W) in [0, 1]."""

    def __init__(self, features: int, channels: int, doublings: int) -> None:
        layers: list[nn.Module] = []
        width = features
        for _ in range(doublings):
            narrower = max(width // 2, 16)
            layers += [
                *_conv(width, width),
                *_conv(width, narrower),
                nn.Upsample(scale_factor=2, mode="nearest"),
            ]
            width = narrower
        super().__init__(
            *layers, *_conv(width, width), nn.ReflectionPad2d(1), nn.Conv2d(width, channels, 3), nn.Sigmoid()
        )


def _conv(incoming: int, outgoing: int) -> list[nn.Module]:
    return [nn.ReflectionPad2d(1), nn.Conv2d(incoming, outgoing, 3), nn.ReLU()]


class Autoencoder(nn.Module):
    """A fixed encoder and its decoder."""

    recipe = ""
    """What its decoder was trained by, if that tells it from others; else its weights do."""

    def __init__(self, encoder: nn.Module, decoder: Decoder, rectified: bool) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder
        self.rectified = rectified
        """Whether the feature is one that a ReLU gave: what AdvBN makes of it is then rectified, too."""

    @classmethod
    def of(cls, model: nn.Module, name: str, seed: int = 0) -> Autoencoder:
        """Cut `model` behind the module `name`; the decoder starts untrained."""
        front, _ = models.cut(model, name)
        spec = model.spec if isinstance(model, models.Pixels) else None
        if spec is None:
            raise BadInput("the encoder's model must know its input; wrap it with trimtab.models.wrap")
        front = norm.copied(front).eval().requires_grad_(False)  # the model given keeps its own layers
        like = next(front.parameters())
        with torch.no_grad():
            z = front(draws.uniform(like.new_empty(2, spec.channels, *spec.size), seed, [0, 1]))
        if not isinstance(z, Tensor) or z.dim() != 4:
            raise BadInput(
                f"behind {name!r} more than one feature map crosses; models.cuts(model) lists good places"
            )
        doublings = round(math.log2(spec.size[0] / z.shape[2]))
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            decoder = Decoder(z.shape[1], spec.channels, doublings).to(like.device, like.dtype)
        return cls(front, decoder, rectified=bool((z >= 0).all()))

    def encode(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            z: Tensor = self.encoder(x)
        return z

    def decode(self, z: Tensor, size: tuple[int, ...]) -> Tensor:
        x: Tensor = self.decoder(z)
        return x if x.shape[2:] == size else F.interpolate(x, size=size, mode="bilinear", align_corners=False)


def train_decoder(
    auto: Autoencoder,
    images: Images,
    epochs: int = 2,
    batch_size: int = 64,
    lr: float = 1e-3,
    variation: float = 1e-8,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> float:
    """Teach the decoder to paint the encoder's features back; the last epoch's mean pixel error."""
    if epochs < 1:
        raise BadInput(f"a decoder is trained for 1 epoch or more, found {epochs}")
    batch_size = min(batch_size, len(images))
    optimiser = torch.optim.Adam(auto.decoder.parameters(), lr)
    loader = Loader(images, batch_size, seed=seed, drop_last=True)
    auto.decoder.train()
    like = next(auto.decoder.parameters())
    error = 0.0
    for epoch in range(epochs):
        total = 0.0
        for batch in loader.at(epoch):
            x = batch.x.to(like.device, like.dtype)
            painted = auto.decode(auto.encode(x), x.shape[2:])
            loss = F.mse_loss(painted, x)
            rough = painted.diff(dim=2).abs().sum() + painted.diff(dim=3).abs().sum()
            optimiser.zero_grad()
            (loss + variation * rough).backward()
            optimiser.step()
            total += float(loss.detach())
        error = total / len(loader)
        if progress is not None:
            progress(epoch + 1, epochs)
    auto.decoder.eval()
    return error
