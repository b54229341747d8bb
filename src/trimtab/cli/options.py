"""Options that commands share, defined once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import tyro
from tyro.constructors import PrimitiveConstructorSpec

from trimtab.types import BadInput, number

Model = Annotated[
    tyro.conf.Positional[str],
    tyro.conf.arg(
        metavar="MODEL",
        help="zoo:NAME, file:PATH, timm:NAME, torchvision:NAME, net:NAME or py:module:function.",
    ),
]
Json = Annotated[tyro.conf.FlagCreatePairsOff[bool], tyro.conf.arg(help="Print JSON for scripts.")]
Strict = Annotated[tyro.conf.FlagCreatePairsOff[bool], tyro.conf.arg(help="Exit with 1 if there is trouble.")]
Split = Annotated[str, tyro.conf.arg(help="Which part of the images: train or test.")]
Seed = Annotated[int, tyro.conf.arg(help="Decides every random draw.")]

Device = Annotated[
    str, tyro.conf.arg(help="Where the model runs: auto (a GPU if there is one), cpu, cuda, cuda:1, mps.")
]

Count = Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="(optional)")]
Text = Annotated[str | None, tyro.conf.arg(metavar="STR", help_behavior_hint="(optional)")]
Place = Annotated[Path | None, tyro.conf.arg(metavar="PATH", help_behavior_hint="(optional)")]
Number = Annotated[
    float,
    PrimitiveConstructorSpec(
        nargs=1,
        metavar="FLOAT",
        instance_from_str=lambda words: number(words[0]),
        is_instance=lambda value: isinstance(value, float),
        str_from_instance=lambda value: [f"{value:g}"],
    ),
]
"""May be written 1/1000."""


def speaks() -> bool:
    """Whether this process is the first of those that torchrun or Fabric started, or alone."""
    return int(os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or 0) == 0


def loaded(model: str, device: str) -> Any:
    """The model that a command names, where it is to run."""
    import torch

    import trimtab

    found = trimtab.load(model)
    try:
        return found.to(
            "cuda" if device == "auto" and torch.cuda.is_available() else device.replace("auto", "cpu")
        )
    except (RuntimeError, AssertionError) as problem:  # torch without CUDA asserts that it has it
        reason = str(problem).partition("\n")[0].partition(". ")[0]
        raise BadInput(f"--device {device} cannot be used here: {reason}") from None


def whole(text: str, option: str) -> int:
    """A whole number that is part of an option's word."""
    value = number(text)
    if value != int(value):
        raise BadInput(f"{option} takes a whole number, found {text!r}")
    return int(value)


def origin(known: Any, evaluated: Any, split: str = "train") -> str:
    """What the images that statistics come from are called; where there are no splits, they are evaluated."""
    if known.digest == evaluated.digest:
        return "evaluated images"
    return f"{'training' if split == 'train' else split} images"


def first(images: Any, limit: int | None) -> Any:
    """The first `limit` images of a set, or all of them."""
    if limit is not None and limit < 1:
        raise BadInput(f"--limit must be 1 or more, found {limit}")
    return images if limit is None else images.subset(slice(0, min(limit, len(images))))
