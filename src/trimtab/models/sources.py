"""Where models come from: one line of text names any classifier.

    net:NAME                   an untrained network of ours (see `networks`)
    timm:NAME                  an architecture of timm; timm:NAME+pretrained fetches its weights
    timm:hf-hub:OWNER/NAME+pretrained   of the Hugging Face hub; timm:local-dir:FOLDER reads such a folder
    torchvision:NAME           of torchvision; +pretrained, or +IMAGENET1K_V2 for weights by name
    py:MODULE:FUNCTION         what your function returns; py:path/to/file.py:FUNCTION as well
    file:PATH                  a model that `save` wrote, or a folder in the layout of the Hugging Face hub
    file:PATH@ARCHITECTURE     a state dict (.pt, .pth, .safetensors) for one of the architectures above
    zoo:NAME                   a trained network that comes with trimtab

Arguments follow a comma: `net:resnet20,norm=gn,width=32`, `file:mine.pt@torchvision:resnet18,classes=10`.
`classes` and, for any architecture, `norm` (every batch norm swapped for that kind) are understood
everywhere; the rest is the constructor's.

Nothing is downloaded unless the source says so with a plus, or `pretrained=True` does. No file can make
code run: for one that was saved from a `py:` function, name that function again after an @. Mean, std
and size come from the saved model, or from what timm and torchvision record about their own weights; a
network without a record takes pixels as they are, unless `input` says otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trimtab._mode import evaluation_mode
from trimtab.models import hub
from trimtab.models.architectures import architecture
from trimtab.models.files import require_classes
from trimtab.models.grammar import HUB, Source, in_zoo, parse
from trimtab.models.pixels import Pixels, channels_of, wrap
from trimtab.models.stored import stored
from trimtab.runtime import require_usable
from trimtab.types import BadInput, InputSpec

_CHANNELS = {"net": "channels", "timm": "in_chans"}
"""What the constructors call the number of an image's channels."""


def load(
    source: str | Path,
    classes: int | Sequence[str] | None = None,
    pretrained: bool = False,
    input: InputSpec | None = None,
    **arguments: Any,
) -> Pixels:
    """Return the classifier that `source` names, for pixels in [0, 1].

    The names are `zoo:NAME`, `file:PATH`, `timm:NAME`, `torchvision:NAME`, `py:MODULE:FUNCTION` and
    `net:NAME`; `help(trimtab.models.sources)` explains each. The network of that library or function is
    `.net` of the result. A network that comes with weights is in eval mode.

    Args:
        source: The name of a model, or the path of a file or folder.
        classes: Number or names of the classes: the shape of a network without weights, what is expected of
            one with weights.
        pretrained: Fetch the weights, as `+pretrained` does.
        input: Replaces the recorded InputSpec.
        arguments: Further arguments of the network's constructor.
    """
    source = _named(source)
    parsed = parse(source)
    arguments = {**parsed.arguments, **arguments}
    stated = arguments.pop("classes", None)
    names = None if classes is None or isinstance(classes, int) else tuple(classes)
    count = len(names) if names else classes if isinstance(classes, int) else None
    require_classes(source, stated, count)
    weights = parsed.weights or ("pretrained" if pretrained else None)
    if input is not None and input.channels != 3 and parsed.scheme in _CHANNELS:
        arguments.setdefault(_CHANNELS[parsed.scheme], input.channels)
    place = _place(parsed, weights)
    if place is None:
        model = architecture(parsed.scheme, parsed.name, count or stated, weights, arguments)
    elif arguments or (weights and parsed.scheme != "timm"):
        raise BadInput(f"{source!r} has its weights; an architecture and its arguments follow an @")
    else:
        model = stored(place, parsed.architecture)
    model = _checked(source, model, count or stated, input, built=place is None and parsed.scheme != "py")
    model.classes = names or model.classes
    return model.eval() if weights or place is not None else model


def _checked(source: str, model: Pixels, classes: int | None, input: InputSpec | None, built: bool) -> Pixels:
    """Return the model under `input`; refuse one for other classes or channels than were asked for."""
    if classes and not built:  # a network that was built has as many as its constructor was given
        require_classes(source, _outputs(wrap(model, input)), classes)
    if input is not None and (takes := channels_of(model.net)) not in (None, input.channels):
        raise BadInput(f"{source} takes images with {takes} channels, not {input.channels}")
    return wrap(model, input)


def _named(source: Any) -> str:
    """The text that names a source; a Path is that of a file."""
    if isinstance(source, Path):
        return f"file:{source}"
    if isinstance(source, str):
        return source
    remedy = "it is a model already: use it as it is, or models.wrap(it, InputSpec(...))"
    what = remedy if isinstance(source, nn.Module) else "write it like zoo:NAME, file:PATH or timm:NAME"
    raise BadInput(f"trimtab.load takes the name of a model, found a {type(source).__name__}; {what}")


def _place(parsed: Source, weights: str | None) -> Path | None:
    """The file or folder with the network's weights; None if its library has them, or nobody."""
    if parsed.scheme == "file":
        return Path(parsed.name).expanduser()
    if parsed.scheme == "zoo":
        return in_zoo(parsed.name)
    if parsed.scheme != "timm" or not parsed.name.startswith(HUB):
        return None
    if weights is None:
        raise BadInput(f"{parsed} is fetched only if you say so: write {parsed}+pretrained")
    return hub.fetched(parsed.name.removeprefix(HUB))


def has_record(source: str) -> bool:
    """Whether what `source` names comes with weights, or is the user's own, and so with its own InputSpec."""
    parsed = parse(source)
    return parsed.weights is not None or parsed.scheme in ("zoo", "file", "py")


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
