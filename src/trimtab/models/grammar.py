"""The text that names a model (see `sources`), taken apart: scheme, name, weights, arguments."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trimtab.models.architectures import MAKERS
from trimtab.models.files import WEIGHTS
from trimtab.models.networks import EXAMPLES
from trimtab.types import BadInput, nearest

SCHEMES = ("zoo", "file", *MAKERS)
LOCAL, HUB = "local-dir:", "hf-hub:"
"""How timm names folders in the layout of the Hugging Face hub."""
ZOO = Path(__file__).parents[1] / "zoo"


@dataclass(frozen=True)
class Source:
    """A line of the grammar, taken apart."""

    scheme: str
    name: str
    weights: str | None = None
    """What follows the plus."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    architecture: Source | None = None
    """What follows the at sign of a file."""

    def __str__(self) -> str:
        return f"{self.scheme}:{self.name}"


def parse(text: str) -> Source:
    """Take a source apart.

    >>> parse("net:resnet20,norm=gn,width=32").arguments
    {'norm': 'gn', 'width': 32}
    >>> str(parse("file:a@b.pt@timm:resnet18").architecture)
    'timm:resnet18'
    """
    scheme, _, rest = text.partition(":")
    if "\0" in text:
        raise BadInput(f"{text!r} names no model: it holds a null byte")
    if scheme not in SCHEMES or not rest:
        known = " ".join(f"{name}:" for name in SCHEMES)
        raise BadInput(f"{text!r} names no model; write one of {known} and a name, such as {_nearest(text)}")
    if rest.startswith(LOCAL) and scheme == "timm":
        scheme, rest = "file", rest.removeprefix(LOCAL).removesuffix("+pretrained")  # they always are
    if scheme == "file":
        path, *architectures = re.split(rf"@(?=(?:{'|'.join(SCHEMES)}):)", rest, maxsplit=1)
        return Source(scheme, path, architecture=parse(architectures[0]) if architectures else None)
    name, *options = rest.split(",")
    name, _, weights = name.partition("+")
    arguments = {}
    for option in options:
        key, equals, value = option.partition("=")
        if not equals or not key.isidentifier():
            raise BadInput(f"{option!r} in {text!r} is no argument; write key=value")
        arguments[key] = _value(value)
    return Source(scheme, name, weights or None, arguments)


def _nearest(text: str) -> str:
    """The source that somebody who wrote only a name, or misspelt it, may have meant."""
    file, _, function = text.partition(":")
    if file.endswith(".py"):
        return f"py:{file}:{function or 'function'}"
    if Path(text).exists():
        return f"file:{text}"
    named = {name: f"zoo:{name}" for name in zoo()} | {name: f"net:{name}" for name in EXAMPLES}
    named |= {source: source for source in named.values()}
    close = difflib.get_close_matches(text, named, 1)
    return named[close[0]] if close else "net:resnet20"


def _value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def zoo() -> list[str]:
    """Return the names of the networks in the zoo."""
    return sorted(file.parent.name for file in ZOO.glob(f"*/{WEIGHTS}"))


def in_zoo(name: str) -> Path:
    """Return the folder of a network in the zoo."""
    there = zoo()
    if name not in there:
        raise BadInput(
            f"the zoo has no {name!r}{nearest(name, there)}; it has {', '.join(there) or 'no networks yet'}"
        )
    return ZOO / name
