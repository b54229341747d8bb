"""Options that commands share, defined once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import tyro

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

Count = Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="(optional)")]
Text = Annotated[str | None, tyro.conf.arg(metavar="STR", help_behavior_hint="(optional)")]
Place = Annotated[Path | None, tyro.conf.arg(metavar="PATH", help_behavior_hint="(optional)")]


def speaks() -> bool:
    """Whether this process is the first of those that torchrun or Fabric started, or alone."""
    return int(os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or 0) == 0


def first(images: Any, limit: int | None) -> Any:
    """The first `limit` images of a set, or all of them."""
    from trimtab.types import BadInput

    if limit is not None and limit < 1:
        raise BadInput(f"--limit must be 1 or more, found {limit}")
    return images if limit is None else images.subset(slice(0, min(limit, len(images))))
