"""A network from a file: built as its own description, its folder's config or the user says, and filled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from trimtab import norm
from trimtab.models import files, guess, hub, layouts
from trimtab.models.architectures import MAKERS, architecture
from trimtab.models.files import State
from trimtab.models.grammar import Source, parse
from trimtab.models.pixels import Pixels
from trimtab.types import BadInput, InputSpec


def stored(path: Path, stated: Source | None) -> Pixels:
    """Return the network in a file or folder, with its weights.

    Args:
        path: what `save` wrote, a folder in the layout of the Hugging Face hub, or anyone's state dict.
        stated: how to build the network, where the file does not say, or in place of what it says.
    """
    if stated is None and hub.is_hub_folder(path):
        model, path = hub.described(path)
        state, _ = files.read(path)
        files.fill(model.net, layouts.without_wrappers(state, model.net.state_dict()), str(path))
        return _from(path, model)
    state, described = files.read(path)
    if described is not None:
        return _ours(path, state, described, stated)
    state, normalizer = layouts.split_normalizer(state)
    if stated is None:
        close = guess.architecture_of(state)
        seems = f"its tensors are those of {close}: " if close else "say for which network, as in "
        raise BadInput(f"{path} holds weights only; {seems}file:{path}@{close or 'net:resnet20'}")
    model = _from(path, _filled(path, state, stated))
    if normalizer is None:
        return model
    mean, std = normalizer
    return model.described(spec=replace(model.spec, mean=mean, std=std))


def _from(path: Path, model: Pixels) -> Pixels:
    """The network with a note of where its weights come from."""
    assert model.origin is not None
    return model.described(origin=replace(model.origin, provenance={"weights": f"file:{path}"}))


def _ours(path: Path, state: State, described: dict[str, Any], stated: Source | None) -> Pixels:
    """A network that `save` wrote."""
    source = described["source"]
    if stated is None and (source is None or source.startswith("py:")):
        was = source or "a network of your own"
        raise BadInput(f"{path} was saved from {was}; say how to build it: file:{path}@py:module:function")
    plan = stated or replace(parse(source), arguments=described["arguments"])
    model = _filled(path, state, plan, described)
    assert model.origin is not None
    origin = replace(model.origin, provenance=described["provenance"])
    model = Pixels(model.net, InputSpec.from_json(described["input"]), described["classes"], origin)
    if "statistics" in described:
        model.provenance = described["statistics"]
    return model


def _filled(path: Path, state: State, plan: Source, described: dict[str, Any] | None = None) -> Pixels:
    """The network that `plan` names, with the branches that its description lists, filled with `state`."""
    if plan.weights or plan.scheme not in MAKERS:
        raise BadInput(f"after the @ comes an architecture without weights, found {plan}")
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
    expected = model.net.state_dict()
    state = layouts.renamed(layouts.without_wrappers(state, expected), expected, plan.name)
    number = files.classes_in(state, expected)
    files.require_classes(str(path), number, classes)
    if misfit := files.misfit(state, expected, but_classes=number is not None):
        close = None if described else guess.architecture_of(state)
        raise BadInput(f"{path} {misfit}{f'; its tensors are those of {close}' if close else ''}")
    if plan.scheme == "net" or (number is not None and plan.scheme != "py"):
        model = built(classes if number is None else number)
    files.fill(model.net, state, str(path), exact=described is not None)
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
