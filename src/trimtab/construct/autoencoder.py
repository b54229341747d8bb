"""An encoder cut from any classifier, and a decoder that reconstructs images from its features.

The encoder is the front of a network up to a named module, with fixed weights. The decoder mirrors it like
AdaIN's (Huang and Belongie 2017): reflection padding, 3x3 convolutions, nearest upsampling, no
normalization. It is trained with the pixel error and a small total variation, as in AdvBN's public code.
Its weights depend on the thread count and the machine, so a decoder is identified by how it was trained, not
by its weights: the construction of a set can then be resumed on any machine.

    VGG-19 of torchvision     Autoencoder.of(trimtab.load("torchvision:vgg19+pretrained"), "net.features.20")
    ResNet, the paper's second variant        cut after its first stage, "net.layer1"
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trimtab import models, norm, rng
from trimtab.construct.build import load_tensors, save_tensors
from trimtab.data import Images, Loader
from trimtab.runtime import require_usable
from trimtab.runtime.fingerprint import digest, of_model
from trimtab.types import BadInput, at_least

VERSION = 1
"""Version of the decoder training, a part of `Autoencoder.recipe`."""


class Decoder(nn.Sequential):
    """Maps features (N, C, H / 2^k, W / 2^k) to images (N, channels, H, W) in [0, 1].

    Args:
        features: Channels C of the features.
        channels: Channels of the images.
        doublings: Number k of times that height and width are doubled.
    """

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


def _conv(in_channels: int, out_channels: int) -> list[nn.Module]:
    return [nn.ReflectionPad2d(1), nn.Conv2d(in_channels, out_channels, 3), nn.ReLU()]


class Autoencoder(nn.Module):
    """A fixed encoder and its decoder.

    Args:
        encoder: The front of a network, which is not trained.
        decoder: Maps its features back to images.
        rectified: Whether the features are non-negative (a ReLU's output), as they must stay when perturbed.
    """

    recipe = ""
    """Identifies how the decoder was trained; if empty, its weights identify it."""

    def __init__(self, encoder: nn.Module, decoder: Decoder, rectified: bool) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder
        self.rectified = rectified

    @classmethod
    def of(cls, model: nn.Module, name: str, seed: int = 0) -> Autoencoder:
        """Cut `model` after the module `name`; the decoder is untrained."""
        require_usable(model)
        front, _ = models.cut(model, name)
        if not isinstance(model, models.Pixels):
            raise BadInput(
                "the encoder's model must declare its input size; wrap it with trimtab.models.wrap"
            )
        spec = model.spec
        front = norm.clone(front).eval().requires_grad_(False)  # the given model is not modified
        like = next(front.parameters())
        with torch.no_grad():
            z = front(rng.uniform(like.new_empty(2, spec.channels, *spec.size), seed, [0, 1]))
        if not isinstance(z, Tensor) or z.dim() != 4:
            raise BadInput(
                f"after {name!r} there is more than one feature map; models.cuts(model) lists where to cut"
            )
        doublings = round(math.log2(spec.size[0] / z.shape[2]))
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            decoder = Decoder(z.shape[1], spec.channels, doublings).to(like.device, like.dtype)
        return cls(front, decoder, rectified=bool((z >= 0).all()))

    def encode(self, x: Tensor) -> Tensor:
        """Return the features of images.

        Args:
            x: Images (N, C, H, W).
        """
        with torch.no_grad():
            z: Tensor = self.encoder(x)
        return z

    def decode(self, z: Tensor, size: tuple[int, ...]) -> Tensor:
        """Return the images (N, channels, *size) decoded from features.

        Args:
            z: Features, as `encode` returns them.
            size: Height and width of the images.
        """
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
    """Train the decoder to reconstruct images; return the mean pixel error of the last epoch.

    Args:
        auto: The autoencoder, whose decoder is trained.
        images: The training images.
        epochs: Number of epochs.
        batch_size: Images per step.
        lr: Learning rate of Adam.
        variation: Weight of the total variation.
        seed: Seed of the order of the images.
        progress: Called as `progress(epochs_done, epochs)`.
    """
    at_least(1, epochs=epochs)
    batch_size = min(batch_size, len(images))
    optimizer = torch.optim.Adam(auto.decoder.parameters(), lr)
    loader = Loader(images, batch_size, seed=seed, drop_last=True)
    auto.decoder.train()
    like = next(auto.decoder.parameters())
    error = 0.0
    for epoch in range(epochs):
        total = 0.0
        for batch in loader.at(epoch):
            x = batch.x.to(like.device, like.dtype)
            decoded = auto.decode(auto.encode(x), x.shape[2:])
            loss = F.mse_loss(decoded, x)
            total_variation = decoded.diff(dim=2).abs().sum() + decoded.diff(dim=3).abs().sum()
            optimizer.zero_grad()
            (loss + variation * total_variation).backward()
            optimizer.step()
            total += float(loss.detach())
        error = total / len(loader)
        if progress is not None:
            progress(epoch + 1, epochs)
    auto.decoder.eval()
    return error


def trained_autoencoder(
    model: nn.Module,
    cut: str,
    images: Images,
    folder: str | Path,
    epochs: int = 2,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Autoencoder:
    """Return an autoencoder of `model` cut after a module; its decoder is trained once and then cached.

    Args:
        model: The model that the encoder is cut from.
        cut: Name of the last module of the encoder.
        images: Training images of the decoder.
        folder: Folder of the cached decoder.
        epochs: Training epochs of the decoder.
        seed: Seed of its weights and of the order of the images.
        progress: Called as `progress(epochs_done, epochs)`.
    """
    auto = Autoencoder.of(model, cut, seed)
    about = {"model": of_model(model), "branch": norm.active_branch(model), "cut": cut, "version": VERSION}
    auto.recipe = digest({**about, "data": images.digest, "epochs": epochs, "seed": seed})
    path = Path(folder) / f".decoder-{auto.recipe[:16]}.safetensors"
    cached = load_tensors(path)
    if cached is None:
        train_decoder(auto, images, epochs, seed=seed, progress=progress)
        save_tensors(path, auto.decoder.state_dict())
    else:
        auto.decoder.load_state_dict(cached)
    return auto.eval()
