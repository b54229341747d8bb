"""An autoencoder whose decoder is trained once and kept beside what is painted with it.

Training is not the same to the bit with other threads or on another machine, so a decoder is known by what it
was trained on, and not by its weights: a set that was begun with it can be finished anywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch import nn

from trimtab import norm
from trimtab.construct.autoencoder import Autoencoder, train_decoder
from trimtab.construct.build import held, keep
from trimtab.data import Images
from trimtab.keys import digest, weights

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
    """`model` cut behind the module `cut`, with a decoder trained on `images`, or read from `folder`."""
    auto = Autoencoder.of(model, cut, seed)
    about = {"model": weights(model), "branch": norm.in_force(model), "cut": cut, "version": VERSION}
    auto.recipe = digest({**about, "data": images.digest, "epochs": epochs, "seed": seed})
    path = Path(folder) / f".decoder-{auto.recipe[:16]}.safetensors"
    known = held(path)
    if known is None:
        train_decoder(auto, images, epochs, seed=seed, progress=progress)
        keep(path, auto.decoder.state_dict())
    else:
        auto.decoder.load_state_dict(known)
    return auto.eval()
