"""Where models come from: one line of text names any classifier.

    net:NAME                   an untrained network of ours (see `networks`)
    timm:NAME                  an architecture of timm; timm:NAME+pretrained fetches its weights
    torchvision:NAME           of torchvision; +pretrained, or +IMAGENET1K_V2 for weights by name
    py:MODULE:FUNCTION         what your function returns; py:path/to/file.py:FUNCTION as well
    file:PATH                  a model that `save` wrote
    file:PATH@ARCHITECTURE     a state dict (.pt, .pth, .safetensors) for one of the architectures above
    zoo:NAME                   a trained network that comes with trimtab

Arguments follow a comma: `net:resnet20,norm=gn,width=32`, `file:mine.pt@torchvision:resnet18,classes=10`.
`classes` and, for any architecture, `norm` (every batch norm swapped for that kind) are understood
everywhere; the rest is the constructor's.

Nothing is downloaded unless the source says so with a plus, or `pretrained=True` does. No file can make
code run: one that was saved from a `py:` function asks to be told that function again. Mean, deviation
and size come from the saved model, or from what timm and torchvision record about their own weights; a
network without a record takes pixels as they are, unless `input` says otherwise.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trimtab import norm
from trimtab._mode import evaluation_mode
from trimtab.models import files
from trimtab.models.architectures import MAKERS, architecture
from trimtab.models.layouts import renamed
from trimtab.models.networks import EXAMPLES
from trimtab.models.pixels import Pixels, channels_of, wrap
from trimtab.runtime import require_usable
from trimtab.types import BadInput, InputSpec, nearest

SCHEMES = ("zoo", "file", *MAKERS)
_CHANNELS = {"net": "channels", "timm": "in_chans"}
"""What the constructors call the number of an image's channels."""
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
    if Path(text).exists():
        return f"file:{text}"
    named = {name: f"zoo:{name}" for name in _zoo()} | {name: f"net:{name}" for name in EXAMPLES}
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


def load(
    source: str | Path,
    classes: int | Sequence[str] | None = None,
    pretrained: bool = False,
    input: InputSpec | None = None,
    **arguments: Any,
) -> Pixels:
    """The classifier that `source` names (see the module's table), or that lies at a Path, in pixel space.

    `classes` is their number or their names: the shape of a network without weights, what is expected of
    one with weights. `input` replaces the recorded InputSpec. Further arguments are the constructor's. A
    network that comes with weights is in eval mode.
    """
    source = f"file:{source}" if isinstance(source, Path) else source
    if not isinstance(source, str):
        own = "it is a model already: use it as it is, or models.wrap(it, InputSpec(...))"
        what = own if isinstance(source, nn.Module) else "write it like zoo:NAME, file:PATH or timm:NAME"
        raise BadInput(f"trimtab.load takes the name of a model, found a {type(source).__name__}; {what}")
    parsed = parse(source)
    arguments = {**parsed.arguments, **arguments}
    stated = arguments.pop("classes", None)
    count = classes if classes is None or isinstance(classes, int) else len(classes)
    _require_classes(source, stated, count)
    weights = parsed.weights or ("pretrained" if pretrained else None)
    if input is not None and input.channels != 3 and parsed.scheme in _CHANNELS:
        arguments.setdefault(_CHANNELS[parsed.scheme], input.channels)
    if parsed.scheme in MAKERS:
        model = architecture(parsed.scheme, parsed.name, count or stated, weights, arguments)
    elif weights or arguments:
        raise BadInput(f"{source!r} has its weights; an architecture and its arguments follow an @")
    else:
        path = Path(parsed.name).expanduser() if parsed.scheme == "file" else _in_zoo(parsed.name)
        model = _stored(path, parsed.architecture)
    expected = count or stated
    if expected and parsed.scheme in ("zoo", "file", "py"):  # others have as many as they were told
        _require_classes(source, _outputs(wrap(model, input)), expected)
    if input is not None and (takes := channels_of(model.net)) not in (None, input.channels):
        raise BadInput(f"{source} takes images with {takes} channels, not {input.channels}")
    if classes is not None and not isinstance(classes, int):
        model.classes = tuple(classes)
    model = wrap(model, input)
    return model.eval() if weights or parsed.scheme in ("zoo", "file") else model


def has_record(source: str) -> bool:
    """Whether what `source` names comes with weights, or is the user's own, and so with its own InputSpec."""
    parsed = parse(source)
    return parsed.weights is not None or parsed.scheme in ("zoo", "file", "py")


def _stored(path: Path, stated: Source | None) -> Pixels:
    """A network from a file: built as `stated`, or else as its own description says, and filled."""
    state, described = files.read(path)
    plan = stated or _described_architecture(path, described)
    if plan.weights or plan.scheme not in MAKERS:
        raise BadInput(f"behind the @ stands an architecture without weights, found {plan}")
    arguments = dict(plan.arguments)
    classes = arguments.pop("classes", None)

    def built(classes: int | None) -> Pixels:
        model = architecture(plan.scheme, plan.name, classes, None, arguments)
        if described and described["branches"]:
            norm.rebuild(model.net, described["branches"])
        return model

    # A sketch without memory first: a description can ask for any size, the weights say what is really there.
    with torch.device("meta") if plan.scheme == "net" else nullcontext(), _describable(path, described):
        model = built(classes)
    state = renamed(files.without_prefix(state, model.net.state_dict()), model.net.state_dict(), plan.name)
    found = files.classes_in(state, model.net.state_dict())
    _require_classes(str(path), found, classes)
    files.require_fit(model.net, state, str(path), but_classes=found is not None)
    if plan.scheme == "net" or (found is not None and plan.scheme != "py"):
        model = built(classes if found is None else found)
    files.fill(model.net, state, str(path), exact=described is not None)

    assert model.origin is not None
    if described is None:
        origin = replace(model.origin, provenance={"weights": f"file:{path}"})
        return model.described(origin=origin)
    origin = replace(model.origin, provenance=described["provenance"])
    model = Pixels(model.net, InputSpec.from_json(described["input"]), described["classes"], origin)
    if "statistics" in described:
        model.provenance = described["statistics"]
    return model


@contextmanager
def _describable(path: Path, described: dict[str, Any] | None) -> Iterator[None]:
    """Whatever a network's constructor makes of a description that nobody checked, it is one sentence."""
    try:
        yield
    except BadInput:
        raise
    except Exception as error:
        if described is None:
            raise
        raise BadInput(
            f"{path} describes a network that cannot be built ({type(error).__name__}: {error})"
        ) from None


def _described_architecture(path: Path, described: dict[str, Any] | None) -> Source:
    if described is None:
        raise BadInput(f"{path} holds weights only; say for which network, as in file:{path}@net:resnet20")
    source = described["source"]
    if source is None or source.startswith("py:"):
        was = source or "a network of your own"
        raise BadInput(f"{path} was saved from {was}; say how to build it: file:{path}@py:module:function")
    return replace(parse(source), arguments=described["arguments"])


def _zoo() -> list[str]:
    return sorted(file.parent.name for file in ZOO.glob(f"*/{files.WEIGHTS}"))


def _in_zoo(name: str) -> Path:
    there = _zoo()
    if name not in there:
        raise BadInput(
            f"the zoo has no {name!r}{nearest(name, there)}; it has {', '.join(there) or 'no networks yet'}"
        )
    return ZOO / name


def _outputs(model: Pixels) -> int | None:
    """How many classes a model tells apart, if it takes images of its recorded size."""
    if any(isinstance(p, nn.UninitializedParameter) for p in model.parameters()):
        return None  # its first batch decides its size for good
    weight = next(model.parameters(), torch.zeros(0))
    image = torch.full((1, model.spec.channels, *model.spec.size), 0.5).to(weight)
    require_usable(model, image)
    with evaluation_mode(model), torch.no_grad():
        try:
            return int(model(image).shape[1])
        except Exception:  # a network of the user's own may want another size, and says so in its own way
            return None


def _require_classes(what: str, found: int | None, expected: int | None) -> None:
    if None not in (found, expected) and found != expected:
        raise BadInput(f"{what} is a network for {found} classes, not for {expected}")
