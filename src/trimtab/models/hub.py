"""Folders as on the Hugging Face hub: weights, and a `config.json` that says of which network of timm.

    file:FOLDER, timm:local-dir:FOLDER   one that `to_timm`, timm or a download left here
    timm:hf-hub:OWNER/NAME+pretrained    one that is fetched into the cache of huggingface_hub

timm builds the network from the config (architecture, classes, arguments, mean, std, crop); the weights are
read as all others are, so nothing is unpickled.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from trimtab import norm
from trimtab._clone import deep_clone
from trimtab._mode import evaluation_mode
from trimtab.io import atomic_write, reading
from trimtab.models.architectures import extra, first_line
from trimtab.models.files import FETCHING, classes_in, fill
from trimtab.models.pixels import Origin, Pixels, wrap
from trimtab.norm.steering import innermost
from trimtab.types import BadInput

CONFIG = "config.json"
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
"""What the file with the weights may be called; the first that is there is read."""


def fetched(name: str) -> Path:
    """Fetch a network from the hub, unless its cache has it, and return the folder.

    Args:
        name: OWNER/NAME, or OWNER/NAME@REVISION.
    """
    hub = extra("huggingface_hub")
    repo, _, revision = name.partition("@")
    get = partial(hub.hf_hub_download, repo, revision=revision or None)
    try:
        folder = Path(get(CONFIG)).parent
        for file in WEIGHTS:
            with suppress(hub.errors.EntryNotFoundError):
                get(file)
                break
    except Exception as error:  # download clients raise anything at all
        why = f"{type(error).__name__}: {first_line(error)}"
        raise BadInput(f"timm:hf-hub:{name} could not be fetched ({why})") from None
    return folder


def is_hub_folder(path: Path) -> bool:
    """Return whether a path is a folder with a config, and not one that `save` wrote."""
    return (path / CONFIG).is_file() and not (path / "model.json").exists()


def described(folder: Path) -> tuple[Pixels, Path]:
    """Build the network that a folder describes, without its weights, and return it with their file."""
    timm = extra("timm")
    weights = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    if weights is None:
        raise BadInput(f"{folder} has a {CONFIG} but no weights; they are called {' or '.join(WEIGHTS)}")
    with reading(folder / CONFIG, "the config of a network"):
        config = dict(json.loads((folder / CONFIG).read_text(encoding="utf-8")))
        arguments = dict(config.get("model_args") or {})
    name = config.get("architecture")
    if not isinstance(name, str) or not timm.is_model(name):
        other = f" but a {config['model_type']} of transformers" if "model_type" in config else ""
        raise BadInput(
            f"{folder / CONFIG} names no architecture of timm{other}; a network that your own code builds is "
            "loaded as py:file.py:function"
        )
    if odd := next((name for name in arguments if name.startswith(FETCHING)), None):
        raise BadInput(f"{folder / CONFIG} asks for another file ({odd}), which is not read")
    try:
        net = timm.create_model(f"local-dir:{folder}", pretrained=False)
    except Exception as error:  # constructors raise anything at all
        why = f"{type(error).__name__}: {first_line(error)}"
        raise BadInput(f"{folder / CONFIG} describes a network that cannot be built ({why})") from None
    labels = net.pretrained_cfg.get("label_names")
    labels = tuple(map(str, labels)) if isinstance(labels, list | tuple) else None
    if labels is not None and len(labels) != net.num_classes:
        labels = None
    origin = Origin(f"timm:{name}", {**arguments, "classes": net.num_classes})
    return wrap(net).described(origin=origin, classes=labels), weights


def to_timm(
    model: nn.Module, folder: str | Path, branch: str = "main", architecture: str | None = None
) -> Path:
    """Write a folder that `timm.create_model("local-dir:FOLDER", pretrained=True)` loads, and return it.

    timm loads it once before it is placed: its logits must be the model's own. Mean, std, size, crop and
    class names are recorded; whoever loads it with timm normalizes the pixels again.

    Args:
        model: a network that timm has, or one with the same tensors there; it is not changed.
        folder: where to write; files of the same names are replaced.
        branch: the branch to write; others are dropped.
        architecture: its name in timm; what the model was loaded as if not given.
    """
    timm = extra("timm")
    pixels = wrap(norm.release(norm.steer(deep_clone(innermost(model))), branch))
    source, arguments = _made_as(pixels, architecture)
    if not timm.is_model(source):
        raise BadInput(f"{source} is no architecture of timm, so timm could not load it; name one that it is")
    state = {
        key: value.detach().cpu().contiguous() for key, value in innermost(pixels.net).state_dict().items()
    }
    net = timm.create_model(source, **arguments)
    if classes := classes_in(state, net.state_dict()):
        net = timm.create_model(source, **{**arguments, "num_classes": classes})
    fill(net, state, "the model", exact=True)
    net.pretrained_cfg = {**net.pretrained_cfg, **_recorded(pixels)}
    Path(folder).parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as made:
        labels = {"label_names": list(pixels.classes)} if pixels.classes else {}
        timm.models.save_for_hf(net, made, model_config=labels, model_args=arguments, safe_serialization=True)
        _require_same_logits(pixels, timm.create_model(f"local-dir:{made}", pretrained=True))
        for name in (CONFIG, WEIGHTS[0]):  # the weights last: then the folder is whole
            with atomic_write(Path(folder) / name) as part:
                shutil.copyfile(Path(made) / name, part)
    return Path(folder)


def _made_as(pixels: Pixels, architecture: str | None) -> tuple[str, dict[str, Any]]:
    """The architecture's name in timm, and the arguments of its constructor."""
    origin = pixels.origin
    scheme, _, name = origin.source.partition(":") if origin else ("", "", "")
    arguments = dict(origin.arguments) if origin and scheme == "timm" else {}
    arguments.pop("classes", None)
    if changed := [key for key in ("norm", "drop_norm") if key in arguments]:
        raise BadInput(f"timm cannot build a network with another {changed[0]}; export it in another format")
    if not (architecture or name):
        raise BadInput("a network of your own has no name in timm; give its architecture there")
    return architecture or name, arguments if architecture in (None, name) else {}


def _recorded(pixels: Pixels) -> Mapping[str, Any]:
    """The InputSpec under timm's names."""
    spec = pixels.spec
    return {
        "input_size": (spec.channels, *spec.size),
        "mean": spec.mean,
        "std": spec.std,
        "crop_pct": spec.crop_fraction or 1.0,
        "interpolation": spec.interpolation,
        "crop_mode": spec.crop_mode,
    }


def _require_same_logits(pixels: Pixels, net: nn.Module) -> None:
    """Refuse an architecture of the same tensors that computes something else."""
    like = next(pixels.net.parameters())
    x = torch.rand(2, pixels.spec.channels, *pixels.spec.size, generator=torch.Generator().manual_seed(0)).to(
        like
    )
    with evaluation_mode(pixels), torch.no_grad():
        ours, theirs = pixels.net(x), net.eval().to(like)(x)
    if not torch.allclose(ours, theirs, rtol=1e-3, atol=1e-3 * float(ours.abs().max())):
        raise BadInput("timm's network of the same tensors computes other logits; nothing was written")
