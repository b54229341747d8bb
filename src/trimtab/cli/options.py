"""Options that commands share, defined once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import tyro
from tyro.constructors import PrimitiveConstructorSpec

import trimtab
from trimtab.cli.lazy import console, data
from trimtab.types import BadInput, at_least, number

Model = Annotated[
    tyro.conf.Positional[str],
    tyro.conf.arg(
        metavar="MODEL",
        help="zoo:NAME, file:PATH, timm:NAME, torchvision:NAME, net:NAME or py:module:function.",
    ),
]
Json = Annotated[tyro.conf.FlagCreatePairsOff[bool], tyro.conf.arg(help="Print JSON for scripts.")]
Strict = Annotated[
    tyro.conf.FlagCreatePairsOff[bool], tyro.conf.arg(help="Exit with 1 if there are warnings.")
]
Split = Annotated[str, tyro.conf.arg(help="Which part of the images: train or test.")]
Seed = Annotated[int, tyro.conf.arg(help="Seed of all randomness.")]

Device = Annotated[
    str, tyro.conf.arg(help="Where the model runs: auto (a GPU if there is one), cpu, cuda, cuda:1, mps.")
]

OptionalInt = Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="(optional)")]
OptionalStr = Annotated[str | None, tyro.conf.arg(metavar="STR", help_behavior_hint="(optional)")]
OptionalPath = Annotated[Path | None, tyro.conf.arg(metavar="PATH", help_behavior_hint="(optional)")]
FloatOrRatio = Annotated[
    float,
    PrimitiveConstructorSpec(
        nargs=1,
        metavar="FLOAT",
        instance_from_str=lambda words: number(words[0]),
        is_instance=lambda value: isinstance(value, float),
        str_from_instance=lambda value: [f"{value:g}"],
    ),
]
"""A float, which may be written as a ratio such as 1/1000."""


Memory = Annotated[
    FloatOrRatio,
    tyro.conf.arg(
        metavar="GB", help="Gigabytes to stay within, where --batch-size and --chunk are not given."
    ),
]

ENOUGH = 64
"""Images whose statistics are worth adapting to; --memory takes fewer only for attacks through a batch."""


def is_main_process() -> bool:
    """Return whether this process prints: it runs alone, or has rank 0 under torchrun or Fabric."""
    return int(os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or 0) == 0


@dataclass(frozen=True)
class Preprocessing:
    """Options that replace the preprocessing that the model records."""

    input_size: OptionalInt = None
    """Height and width of the model's input in pixels."""
    crop_fraction: Annotated[str | None, tyro.conf.arg(metavar="FLOAT", help_behavior_hint="(optional)")] = (
        None
    )
    """Side of the central crop divided by the resized image's shorter side (timm's crop_pct)."""
    resize: OptionalInt = None
    """The resized image's shorter side in pixels, instead of --crop-fraction."""
    interpolation: OptionalStr = None
    """How images are resized: nearest, bilinear, bicubic, lanczos, box or hamming."""
    crop_mode: OptionalStr = None
    """center, squash or border."""
    mean: Annotated[tuple[str, ...], tyro.conf.arg(metavar="FLOAT ...")] = ()
    """Mean that the model subtracts, one per channel, such as 0.485 0.456 0.406."""
    std: Annotated[tuple[str, ...], tyro.conf.arg(metavar="FLOAT ...")] = ()
    """Std that the model divides by, one per channel."""

    def apply_to(self, model: Any) -> Any:
        """Return the model with these options in place of what it records."""
        from trimtab.models import wrap

        spec = model.spec
        changes = {name: value for name, value in self._options() if value is not None}
        resizes = bool(changes.keys() - {"mean", "std"})
        if resizes and self.input_size is None and not model.recorded:
            raise BadInput("the model records no input size; add it, e.g. --input-size 224")
        if self.crop_fraction is not None and self.resize is not None:
            raise BadInput("--crop-fraction and --resize set the same size; give one of them")
        at_least(1, **{"--input-size": self.input_size})
        if self.input_size is not None:
            spec = spec.at_size(self.input_size)
        if (resizes or self.input_size) and spec.crop_fraction is None:
            changes.setdefault("crop_fraction", None if self.resize else 1.0)
        if self.crop_fraction is not None or self.resize is not None:  # one replaces the other
            changes = {"crop_fraction": None, "resize": None, **changes}
        return wrap(model, replace(spec, **changes))

    def _options(self) -> Iterator[tuple[str, Any]]:
        """Yield the options as fields of an `InputSpec`, None where an option is not given."""
        yield "crop_fraction", None if self.crop_fraction is None else number(self.crop_fraction)
        for name in ("resize", "interpolation", "crop_mode"):
            yield name, getattr(self, name)
        for name in ("mean", "std"):
            values = [part for text in getattr(self, name) for part in text.split(",") if part]
            yield name, tuple(map(number, values)) or None


AS_RECORDED = Preprocessing()


@dataclass(frozen=True)
class OnImages:
    """Options of commands that run a model on images."""

    model: Model
    data: str = "sample"
    """Images with labels: sample, cifar10, folder:PATH, npz:PATH and more (`trimtab data list`)."""
    split: Split = "test"
    preprocessing: Preprocessing = AS_RECORDED
    limit: OptionalInt = None
    """Only the first N images."""
    seed: Seed = 0
    device: Device = "auto"
    json: Json = False

    def fitting(self, model: Any, images: Any, memory: float, gradients: bool) -> int:
        """Return how many images go through the model within some gigabytes, at most 256.

        Args:
            model: The model.
            images: Its images.
            memory: Gigabytes.
            gradients: Whether attacks are made.
        """
        from trimtab.attacks import guard
        from trimtab.runtime import images_within

        if memory <= 0:
            raise BadInput(f"--memory is a number of gigabytes above 0, found {memory:g}")
        with suppress(Exception), guard(model):  # the command itself says what is wrong with them
            return images_within(int(memory * 2**30), model, some_of(images, 1, model), gradients)
        return 256

    def adapting(self, model: Any, images: Any, memory: float, gradients: bool) -> int:
        """Return how many images adapt together: as many as fit, but at least 64 if no attack is made.

        A batch is part of the method, and small ones cost accuracy; only what an attack through the batch
        keeps of each image is a reason for less, which is noted.

        Args:
            model: The model.
            images: Its images.
            memory: Gigabytes.
            gradients: Whether attacks are made.
        """
        enough = min(ENOUGH, len(first(images, self.limit)))
        fit = self.fitting(model, images, memory, gradients)
        if fit >= enough:
            return fit
        if gradients:
            console.note(
                f"Warning: only {fit} images adapt together, since attacks through {enough} take more than "
                f"--memory {memory:g}. Statistics of few images are noisy; raise --memory, or give --chunk."
            )
            return fit
        console.note(f"Batches of {enough} adapt and take more than --memory {memory:g}; {fit} would fit.")
        return enough

    def load_model_and_images(self) -> tuple[Any, Any]:
        """Return the model on its device, and the images with the preprocessing that it records."""
        model = load_model(self.model, self.device, self.preprocessing)
        return model, data.load(self.data, self.split, input=model.spec)


def some_of(images: Any, count: int, model: Any) -> Any:
    """Return the pixels of the first images, on the model's device."""
    import torch

    return images.take(torch.arange(min(count, len(images)))).to_model(model).x


def load_model(model: str, device: str, preprocessing: Preprocessing | None = None) -> Any:
    """Load a model, apply the preprocessing options and move it to the device."""
    import torch

    network: Any = trimtab.load(model)
    if preprocessing is not None:
        network = preprocessing.apply_to(network)
    auto = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return network.to(auto if device == "auto" else device)
    except (RuntimeError, AssertionError) as problem:  # AssertionError: torch was compiled without CUDA
        reason = str(problem).partition("\n")[0].partition(". ")[0]
        raise BadInput(f"--device {device} cannot be used here: {reason}") from None


def parse_int(text: str, option: str) -> int:
    """Return the integer in an option's value, such as 3 in fog:3."""
    value = number(text)
    if value != int(value):
        raise BadInput(f"{option} takes a whole number, found {text!r}")
    return int(value)


def parse_corruption(text: str) -> tuple[str, int]:
    """Return the name and severity of a corruption written as NAME or NAME:SEVERITY."""
    name, _, severity = text.partition(":")
    return name, parse_int(severity or "3", "the severity of --corruption")


def describe_source(images: Any, evaluated: Any, split: str = "train") -> str:
    """Describe the images that statistics come from; a set without splits is the evaluated one."""
    if images.digest == evaluated.digest:
        return "evaluated images"
    return f"{'training' if split == 'train' else split} images"


def first(images: Any, limit: int | None) -> Any:
    """Return the first `limit` images of a set, or all of them."""
    at_least(1, **{"--limit": limit})
    return images if limit is None else images.subset(slice(0, min(limit, len(images))))


def describe_images(images: Any, n: int) -> str:
    """Describe the first n images of a set, and how their files were resized and cropped."""
    prepared = f", {images.spec.preparation}" if images.spec.preparation else ""
    return f"first {n:,} images of {images.name}{prepared}"
