"""A trained autoencoder, with its decoder cached in a file.

Training is not bit-identical with other thread counts or on another machine, so a decoder is identified by
how it was trained, not by its weights: a set can be resumed on any machine.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch import nn

from trimtab import norm
from trimtab.construct.autoencoder import Autoencoder, train_decoder
from trimtab.construct.build import load_tensors, save_tensors
from trimtab.data import Images
from trimtab.runtime.fingerprint import digest, of_model

VERSION = 1


def painter(
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
        progress: Called with the number of epochs done, and of all epochs.
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
