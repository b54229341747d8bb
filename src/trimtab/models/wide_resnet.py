"""Wide residual networks (Zagoruyko and Komodakis 2016): few pre-activated blocks, many channels.

WRN-d-k has d = 6n+4 layers in three stages of 16k, 32k and 64k channels; an optional drop-out sits
between the two convolutions of a block.
"""

from __future__ import annotations

from torch import nn

from trimtab.models.preact import assemble
from trimtab.models.style import Style
from trimtab.types import BadInput


def wide_resnet(
    depth: int,
    factor: int,
    classes: int = 10,
    channels: int = 3,
    width: int = 16,
    norm: str = "bn",
    activation: str = "relu",
    shortcut: bool = True,
    dropout: float = 0.0,
    init: str | None = None,
) -> nn.Sequential:
    """WRN-40-2, 28-10, ...; `width` is what `factor` multiplies."""
    n, rest = divmod(depth - 4, 6)
    if n < 1 or rest or factor < 1:
        raise BadInput(f"a wide ResNet has 6n+4 layers (16, 28, 40, ...), found {depth} with factor {factor}")
    widths = [width * factor * 2**stage for stage in range(3)]
    style = Style(norm, activation, shortcut, init=init)
    return assemble((n, n, n), width, widths, classes, channels, style, dropout)
