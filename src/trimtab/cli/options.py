"""Options that commands share, defined once."""

from __future__ import annotations

from typing import Annotated

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
