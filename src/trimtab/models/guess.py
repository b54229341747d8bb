"""Which network are these tensors of? Named in the error where weights come without one, or with another."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from trimtab.models import networks
from trimtab.models.architectures import extra
from trimtab.models.files import State, classes_in
from trimtab.models.layouts import renamed, without_wrappers
from trimtab.models.pixels import Pixels

SECONDS = 15.0
"""The search gives up after this time."""
COMMON = ("resnet", "efficientnet", "mobilenet", "convnext", "regnet", "densenet", "mnasnet", "vit")
"""Families of timm that are tried before others."""
MOST = 40
"""Candidates of timm."""
NEAR = 0.03
"""The relative difference in size up to which a network of torchvision may be it (buffers count here)."""
OURS = (*networks.EXAMPLES, *(f"resnet{depth}" for depth in (32, 44, 110, 34)), "preact34", "wrn28_10")

Candidate = tuple[str, Callable[[], nn.Module]]


def architecture_of(state: State) -> str | None:
    """Return the source, such as "net:resnet20", whose network has exactly these tensors, or None.

    Args:
        state: a state dict; wrappers' prefixes, known layouts and the number of classes do not matter.
    """
    end = time.monotonic() + SECONDS
    for source, make in _candidates(state):
        if time.monotonic() > end:
            break
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                with torch.device("meta"):
                    net = make()
                expected = (net.net if isinstance(net, Pixels) else net).state_dict()
            except Exception:  # a constructor that needs memory, or other arguments
                continue
            candidate = renamed(without_wrappers(state, expected), expected, source.partition(":")[2])
        if candidate.keys() == expected.keys() and _same_shapes(candidate, expected):
            return source
    return None


def _same_shapes(state: State, expected: State) -> bool:
    same = all(state[key].shape == expected[key].shape for key in expected)
    return same or classes_in(state, expected) is not None


def _candidates(state: State) -> Iterator[Candidate]:
    """Our networks as wide as the tensors; of torchvision and timm those that may fit by their records."""
    first = next((value for value in state.values() if value.dim() == 4), None)
    if first is None:
        return
    width, channels = first.shape[:2]
    for name in OURS:
        option = "" if width == networks.usual_width(name) else f",width={width}"
        yield f"net:{name}{option}", partial(networks.build, name, channels=channels, width=width)
    if find_spec("torchvision"):
        yield from _of_torchvision(state)
    if find_spec("timm"):
        yield from _of_timm(state)


def _of_torchvision(state: State) -> Iterator[Candidate]:
    """Those with as many parameters, had their classifier (the last matrix) 1000 classes."""
    models = extra("torchvision").models
    size = sum(value.numel() for value in state.values())
    classes, features = next((v.shape for v in reversed(state.values()) if v.dim() == 2), (1000, 0))
    count = size + (1000 - classes) * (features + 1)
    for name in models.list_models(module=models):
        if abs(models.get_model_weights(name).DEFAULT.meta["num_params"] / count - 1) < NEAR:
            yield f"torchvision:{name}", partial(models.get_model, name, weights=None)


def _of_timm(state: State) -> Iterator[Candidate]:
    """Those whose first convolution and classifier are called so, common families and short names first.

    Of EfficientNet-PyTorch's layout, those with TensorFlow's padding; lite ones do not squeeze and excite.
    """
    timm = extra("timm")
    keys = {key.rpartition(".")[0].removeprefix("module.") for key in state}
    if "_conv_stem" in keys:
        lite = not any("_se_reduce" in key for key in keys)
        likely = timm.list_models(f"tf_efficientnet_{'lite' if lite else 'b'}*")
    else:
        records = {name: timm.models.get_pretrained_cfg(name) for name in timm.list_models()}
        likely = [name for name, record in records.items() if record and keys.issuperset(_ends(record))]
    for name in sorted(likely, key=lambda name: (not name.startswith(COMMON), len(name)))[:MOST]:
        yield f"timm:{name}", partial(timm.create_model, name)


def _ends(record: Any) -> Iterator[str]:
    """The names of the first convolutions and the classifiers in a record of timm."""
    for names in (record.first_conv, record.classifier):
        yield from [names] if isinstance(names, str) else names or ["no such layer"]
