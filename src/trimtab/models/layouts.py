"""Published weights under other names: the layouts of other people's code for networks that we can build.

    EfficientNet-PyTorch    `_conv_stem`, `_blocks.3._bn0`, ...: EfficientNet and EfficientNet-Lite for timm's
                            architectures (those with tf_: its padding is TensorFlow's)
    the classifier's name   `linear`, `fc`, `classifier`, `head` or `last_linear`: the CIFAR ResNets of
                            pytorch_resnet_cifar10 call ours `linear`

    wrappers                `module.` (DataParallel), `_orig_mod.` (compile), `model.`, `1.module.`
                            (locuslab/smoothing), `attacker.` (MadryLab/robustness holds the network twice)
    normalizers             the mean and std that a wrapper applied: `normalizer.new_mean` (robustness),
                            `normalize.mean` and `mu` (RobustBench)

A layout only renames tensors; whether they fit is checked as always.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from trimtab.norm.state import batch_counters

State = dict[str, Tensor]
Values = tuple[float, ...]
CLASSIFIERS = ("fc", "linear", "classifier", "head", "last_linear")


_NORMALIZER: Callable[[str], re.Match[str] | None] = re.compile(
    r"(?:module\.)?(?:(?:\w*normali\w*|0)\.)?(?:new_)?(mean|std|mu|sigma)"
).fullmatch


def split_normalizer(state: State) -> tuple[State, tuple[Values, Values] | None]:
    """Return a state dict without what its wrapper normalized by, and that: mean and std, if they are there.

    Args:
        state: as it was saved. A copy of the network below `attacker.` is left out.
    """
    state = {key: v for key, v in state.items() if not key.removeprefix("module.").startswith("attacker.")}
    kind_of_key = {
        key: match[1] for key in state if (match := _NORMALIZER(key)) and state[key].numel() in (1, 3)
    }
    kinds = {"mean": "mean", "mu": "mean", "std": "std", "sigma": "std"}
    constants = {
        kinds[kind]: tuple(state[key].double().flatten().tolist()) for key, kind in kind_of_key.items()
    }
    if constants.keys() != {"mean", "std"}:
        return state, None
    rest = {key: value for key, value in state.items() if key not in kind_of_key}
    return rest, (constants["mean"], constants["std"])


def without_wrappers(state: State, expected: Mapping[str, Tensor]) -> State:
    """Drop what wrappers put in front of every key, until one is known.

    Args:
        state: a state dict.
        expected: the network's own.
    """
    while state and not state.keys() & expected.keys():
        prefix = next(iter(state)).partition(".")[0] + "."
        if not all(key.startswith(prefix) and key != prefix for key in state):
            break
        state = {key.removeprefix(prefix): value for key, value in state.items()}
    return state


def renamed(state: State, expected: Mapping[str, Tensor], architecture: str) -> State:
    """Give the tensors of a known layout the network's own names; others stay as they are.

    Warns where the names fit and the architecture is not the one that was trained.

    Batch counters, which torch before 0.4.1 did not have, are zero, as torch itself fills them in.
    """
    counters = batch_counters(expected)
    old = not batch_counters(state)
    known = {key: value for key, value in expected.items() if not (old and key in counters)}
    for layout in (_efficientnet, _classifier):
        names = layout(state, known)
        if names and known.keys() == {names.get(key, key) for key in state}:
            if layout is _efficientnet and not architecture.startswith("tf_"):
                warnings.warn(
                    "weights of EfficientNet-PyTorch were trained with TensorFlow's padding, which "
                    f"{architecture} does not have; load them as @timm:tf_{architecture}",
                    stacklevel=4,
                )
            state = {names.get(key, key): value for key, value in state.items()}
            break
    if old and state.keys() == known.keys():
        state = state | {key: torch.tensor(0) for key in counters}
    return state


def _classifier(state: Iterable[str], expected: Iterable[str]) -> dict[str, str]:
    """The last layer, where all else has the same names."""
    surplus, missing = set(state) - set(expected), set(expected) - set(state)
    ours = {key.rpartition(".")[0] for key in missing}
    theirs = {key.rpartition(".")[0] for key in surplus}
    if len(ours) != 1 or len(theirs) != 1 or not ours | theirs <= set(CLASSIFIERS):
        return {}
    (new,), (old,) = ours, theirs
    return {key: f"{new}{key.removeprefix(old)}" for key in surplus}


_ENDS = {
    "_conv_stem": "conv_stem",
    "_bn0": "bn1",
    "_conv_head": "conv_head",
    "_bn1": "bn2",
    "_fc": "classifier",
}
_SEPARABLE = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}
_INVERTED = {
    "_expand_conv": "conv_pw", "_bn0": "bn1", "_depthwise_conv": "conv_dw", "_bn1": "bn2",
    "_project_conv": "conv_pwl", "_bn2": "bn3",
}  # fmt: skip
_SQUEEZE = {"_se_reduce": "se.conv_reduce", "_se_expand": "se.conv_expand"}


def _efficientnet(state: Iterable[str], expected: Iterable[str]) -> dict[str, str]:
    """EfficientNet-PyTorch counts blocks through, timm within stages; a first block expands nothing."""
    keys = set(state)
    if not any(map(_BLOCK, keys)):
        return {}
    stages = {tuple(map(int, match.groups())) for key in expected if (match := _TIMM_BLOCK(key))}
    places = dict(enumerate(sorted(stages)))
    names = {}
    for key in keys:
        if match := _BLOCK(key):
            number, layer, rest = int(match[1]), match[2], match[3]
            expands = f"_blocks.{number}._expand_conv.weight" in keys
            new = {**_SQUEEZE, **(_INVERTED if expands else _SEPARABLE)}.get(layer)
            if new and number in places:
                stage, index = places[number]
                names[key] = f"blocks.{stage}.{index}.{new}.{rest}"
        else:
            layer, _, rest = key.partition(".")
            names[key] = f"{_ENDS.get(layer, layer)}.{rest}"
    return names


_BLOCK: Callable[[str], re.Match[str] | None] = re.compile(r"_blocks\.(\d+)\.(\w+)\.(.+)").fullmatch
_TIMM_BLOCK: Callable[[str], re.Match[str] | None] = re.compile(r"blocks\.(\d+)\.(\d+)\..+").fullmatch
