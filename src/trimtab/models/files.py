"""Networks on disk: ours as `model.safetensors` + `model.json`, and other people's state dicts.

A saved folder holds the network's plain state dict (stock PyTorch loads it) and a description: how to
build the network, its InputSpec, class names, branches, provenance, and where its statistics come from if
`adapt.frozen` estimated them. The description is written twice, as `model.json` for people and scripts and
into the header of `model.safetensors`, which is what counts: that file is complete by itself, and it is
renamed into place last, so a folder never holds the weights of one network with the description of another.

Nothing is unpickled: foreign `.pt` and `.pth` files are read with `weights_only=True`.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import safe_open
from torch import Tensor, nn

import trimtab
from trimtab import norm
from trimtab.io import atomic_write, kind_of, reading
from trimtab.models.pixels import Pixels, wrap
from trimtab.norm.steering import innermost
from trimtab.types import BadInput

WEIGHTS, DESCRIPTION = "model.safetensors", "model.json"
FORMAT = 1
_KEY = "trimtab"
"""Under which the header of our safetensors files holds the description."""

State = dict[str, Tensor]


# ---- writing ------------------------------------------------------------------------------------------


def save(model: nn.Module, path: str | Path, provenance: Mapping[str, Any] | None = None) -> Path:
    """Write `model` into the folder `path`, all of it or nothing; `load("file:PATH")` gives it back.

    `provenance` is added to what the model already records about its weights.
    """
    inner = innermost(model)
    if not isinstance(inner, Pixels) and any(isinstance(module, Pixels) for module in inner.modules()):
        raise BadInput(
            f"a {type(inner).__name__} around a model that knows its pixels cannot be saved; save that model "
            "(adapted statistics: adapt.frozen)"
        )
    pixels = wrap(inner)
    state = {
        key.replace("_orig_mod.", ""): value.detach().cpu().contiguous().clone()  # parts may be compiled, too
        for key, value in innermost(pixels.net).state_dict().items()
    }
    folder = Path(path)
    if folder.is_file():
        raise BadInput(f"cannot save to {folder}: it is a file, give a folder")
    description = {**describe(pixels, provenance or {}), "digest": norm.state_digest(state)}
    described = json.dumps(description, indent=2, default=str)
    weights = safetensors.torch.save(state, metadata={_KEY: described})
    _place(folder, described, weights)
    return folder


def describe(model: Pixels, provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description of a network that is saved with its weights, but for their digest."""
    origin = model.origin
    made_with = {"trimtab": trimtab.__version__, "torch": torch.__version__}
    return {
        "format": FORMAT,
        "source": origin and origin.source,
        "arguments": dict(origin.arguments) if origin else {},
        "input": model.spec.to_json(),
        "classes": model.classes,
        "branches": norm.branch_spec(model.net),
        "provenance": {**(origin.provenance if origin else {}), **provenance, **made_with},
        **_frozen_on(model),
    }


def _frozen_on(model: Pixels) -> dict[str, str]:
    """What `adapt.frozen` noted about the statistics, on the model or the network in it."""
    holders = (model, innermost(model.net))
    provenance = next(
        (vars(holder)["provenance"] for holder in holders if "provenance" in vars(holder)), None
    )
    return {"statistics": provenance} if isinstance(provenance, str) else {}


def _place(folder: Path, described: str, weights: bytes) -> None:
    """Write both files, the weights renamed last: each is the old one or the new one."""
    new = not folder.exists()
    try:
        with atomic_write(folder / WEIGHTS) as last:
            last.write_bytes(weights)
            with atomic_write(folder / DESCRIPTION) as first:
                first.write_text(described + "\n", encoding="utf-8")
    finally:
        if new:
            with suppress(OSError):
                folder.rmdir()  # which only an empty folder lets happen


# ---- reading ------------------------------------------------------------------------------------------


def read(path: str | Path) -> tuple[State, dict[str, Any] | None]:
    """A state dict, and its description if the file (or folder) is one of ours."""
    file = Path(path)
    if file.is_dir():
        if not (file / WEIGHTS).is_file():
            raise BadInput(f"{file} is a folder without {WEIGHTS}; give a saved model or a checkpoint file")
        file = file / WEIGHTS
    head = _head(file)
    if _is_safetensors(file, head):
        return _read_safetensors(file)
    return _state_in(_read_torch(file, head), file), None


def _head(file: Path) -> bytes:
    try:
        with open(file, "rb") as opened:
            return opened.read(512)
    except OSError as error:
        raise BadInput(f"cannot read {file}: {error.strerror}") from None


def _is_safetensors(file: Path, head: bytes) -> bool:
    return file.suffix == ".safetensors" or (len(head) > 8 and head[8:9] == b"{" and head[:2] != b"PK")


def _read_safetensors(file: Path) -> tuple[State, dict[str, Any] | None]:
    with reading(file, "a whole safetensors file"), safe_open(file, "pt") as opened:
        described = (opened.metadata() or {}).get(_KEY)
        state = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118 (not a mapping)
    if described is None:
        return state, None
    description = _description(file, described)
    if description.get("digest", kept := norm.state_digest(state)) != kept:
        raise BadInput(
            f"{file} is damaged: its weights are not those that were saved; fetch or save it again"
        )
    return state, description


_FORM: dict[str, tuple[type, ...]] = {
    "source": (str, type(None)), "arguments": (dict,), "input": (dict,), "classes": (list, type(None)),
    "branches": (list,), "provenance": (dict,),
}  # fmt: skip
"""What a description holds."""
FETCHING = ("pretrained", "weights", "checkpoint", "cache", "url", "file", "hf_hub")
"""How arguments begin that make a library fetch or open another file."""


def _description(file: Path, text: str) -> dict[str, Any]:
    """The description in a header, as far as that can be judged: it may come from anyone."""
    damaged = BadInput(f"the description in {file} is damaged; save the model again")
    try:
        described = json.loads(text)
    except (ValueError, RecursionError):
        raise damaged from None
    if not isinstance(described, dict):
        raise damaged
    if described.get("format") != FORMAT:
        raise BadInput(f"{file} was saved in format {described.get('format')}, this trimtab reads {FORMAT}")
    if any(not isinstance(described.get(key, 0), kinds) for key, kinds in _FORM.items()):
        raise damaged
    if not isinstance(described.get("statistics", ""), str):
        raise damaged
    if any(not isinstance(name, str) for name in described["classes"] or ()):
        raise damaged
    for name in described["arguments"]:
        if name.startswith(FETCHING):
            raise BadInput(
                f"the description in {file} asks for another file ({name}), which none of ours does"
            )
    return described


_OLD_FORMAT = b"\x80\x02\x8a\n" + 0x1950A86A20F9469CFC6C.to_bytes(10, "little") + b"."
"""How files of torch before 1.6 begin: a pickled magic number."""


def _read_torch(file: Path, head: bytes) -> Any:
    objects = BadInput(
        f"{file} holds Python objects (a pickle, a whole model, a script), and loading those could run code: "
        "save the model's state_dict() instead"
    )
    if not head.startswith((b"PK", _OLD_FORMAT)):
        unknown = (
            f"{file} is no checkpoint but {kind_of(file)}; give a .safetensors, .pt or .pth file, or a folder"
        )
        raise objects if head.startswith(b"\x80") else BadInput(unknown)
    with reading(file):
        try:
            return torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:
            if isinstance(error, pickle.UnpicklingError) or "TorchScript" in str(error):
                raise objects from None
            raise


_HOMES = ("state_dict", "model_state_dict", "model", "net", "weights", "model_ema", "state_dict_ema")
"""Where training scripts put the state dict inside their checkpoints."""


def _state_in(loaded: Any, file: Path) -> State:
    homes = [*(loaded[key] for key in _HOMES if key in loaded), loaded] if isinstance(loaded, dict) else []
    for home in homes:
        if isinstance(home, Mapping):
            state = {k: v for k, v in home.items() if isinstance(k, str) and isinstance(v, Tensor)}
            if state:
                return state
    content = ", ".join(map(str, list(loaded)[:5])) if isinstance(loaded, dict) else type(loaded).__name__
    raise BadInput(f"{file} holds no state dict (found: {content}); save the model's state_dict()")


# ---- fitting ------------------------------------------------------------------------------------------


def classes_in(state: State, expected: Mapping[str, Tensor]) -> int | None:
    """How many classes `state` has, if their number is all that keeps it from fitting; else None."""
    differ = _differing(state, expected)
    counts = {state[key].shape[0] if state[key].dim() else 0 for key in differ}
    only_count = all(state[key].shape[1:] == expected[key].shape[1:] for key in differ)
    return counts.pop() if only_count and len(counts) == 1 and state.keys() == expected.keys() else None


def require_classes(what: str, actual: int | None, expected: int | None) -> None:
    """Refuse a network for another number of classes; None is any."""
    if None not in (actual, expected) and actual != expected:
        raise BadInput(f"{what} is a network for {actual} classes, not for {expected}")


def fill(net: nn.Module, state: State, where: str, exact: bool = False) -> None:
    """Load `state` into `net`, or say in one sentence why it does not fit.

    Weights take the width of the network, as in torch; if `exact`, it is the other way round.
    """
    if reason := misfit(state, net.state_dict()):
        raise BadInput(f"{where} {reason}")
    if exact:
        _widen(net, state)
    try:
        net.load_state_dict(state)
    except (RuntimeError, NotImplementedError):  # a kind of tensor that cannot be copied into a network
        raise BadInput(f"{where} holds tensors of a kind that no network has") from None


def _widen(net: nn.Module, state: State) -> None:
    """Make each tensor as wide as in `state`, and those that a state dict leaves out as the first of them."""
    widths = {key: state[key].dtype for key in net.state_dict() if state[key].is_floating_point()}
    for first in [*widths.values()][:1]:
        net.to(first)
    tensors = net.state_dict(keep_vars=True)
    for key, width in widths.items():
        if tensors[key].is_floating_point():
            tensors[key].data = tensors[key].data.to(width)


def misfit(state: State, expected: Mapping[str, Tensor], but_classes: bool = False) -> str | None:
    """Return why a state dict does not fit a network, as the end of a sentence; None if it does.

    Args:
        state: the state dict.
        expected: the network's own.
        but_classes: leave shapes aside.
    """
    missing = [key for key in expected if key not in state]
    unknown = [key for key in state if key not in expected]
    shapes = [] if but_classes else _differing(state, expected)
    faults = []
    if missing:
        faults.append(f"{len(missing)} of its {len(expected)} tensors are missing ({_few(missing)})")
    if unknown:
        faults.append(f"{len(unknown)} are not its own ({_few(unknown)})")
    if shapes:
        texts = [f"{key}: {tuple(state[key].shape)}, not {tuple(expected[key].shape)}" for key in shapes]
        faults.append(f"{len(shapes)} have another shape ({_few(texts)})")
    return f"does not fit the architecture: {', '.join(faults)}" if faults else None


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def _differing(state: State, expected: Mapping[str, Tensor]) -> list[str]:
    return [key for key in expected if key in state and state[key].shape != expected[key].shape]
