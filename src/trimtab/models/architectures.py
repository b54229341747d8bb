"""Building a network that is named by text: ours, timm's, torchvision's, or a user's function's."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from trimtab import norm
from trimtab.models.cut import drop_norm
from trimtab.models.networks import build
from trimtab.models.pixels import Origin, Pixels, wrap
from trimtab.types import BadInput, InputSpec, nearest

_DECIDED_BY_WEIGHTS = ("transform_input", "aux_logits")


def architecture(
    scheme: str, name: str, classes: int | None, weights: str | None, arguments: dict[str, Any]
) -> Pixels:
    """The network `scheme:name` with an origin that remembers how it was made; `weights` are fetched."""
    arguments = dict(arguments)
    kind = arguments.pop("norm", None) if scheme != "net" else None
    dropped = arguments.pop("drop_norm", None)
    if classes is not None and (not isinstance(classes, int) or classes < 1):
        raise BadInput(f"classes must be a whole number from 1 on, found {classes!r}")
    model = MAKERS[scheme](name, classes, weights, arguments)
    given = {**arguments, **({} if classes is None else {"classes": classes})}
    if kind is not None:
        norm.swap(model.net, kind)
        given["norm"] = kind
    provenance = {"weights": f"{scheme}:{name}+{weights}"} if weights else {}
    made = model.described(origin=Origin(f"{scheme}:{name}", given, provenance))
    if dropped is not None:
        drop_norm(made, str(dropped).split(";"))
    return made


def _net(name: str, classes: int | None, weights: str | None, arguments: dict[str, Any]) -> Pixels:
    if weights:
        raise BadInput(f"net:{name} is untrained, there are no weights {weights!r}")
    return build(name, classes, **arguments)


def _timm(name: str, classes: int | None, weights: str | None, arguments: dict[str, Any]) -> Pixels:
    timm = extra("timm")
    if odd := next((name for name in arguments if name.startswith(("pretrained", "checkpoint"))), None):
        raise BadInput(f"timm:{name} takes no {odd}; write timm:{name}+pretrained to fetch its weights")
    if not timm.is_model(name):
        raise BadInput(_unknown("timm", name, timm.list_models()))
    if weights not in (None, "pretrained"):
        raise BadInput(f"timm names weights as in timm:resnet50.a1_in1k+pretrained, found +{weights}")
    if weights:
        _require_classes(f"timm:{name}", timm.models.get_pretrained_cfg(name).num_classes, classes)
    if classes is not None:
        arguments = {**arguments, "num_classes": classes}
    make = partial(timm.create_model, name, pretrained=bool(weights), **arguments)
    return wrap(_made(f"timm:{name}", weights, make))


def _torchvision(name: str, classes: int | None, weights: str | None, arguments: dict[str, Any]) -> Pixels:
    models = extra("torchvision").models
    known = models.list_models(module=models)
    if name not in known:
        raise BadInput(_unknown("torchvision", name, known))
    if "weights" in arguments:
        raise BadInput(
            f"the weights of torchvision:{name} follow a plus, as in torchvision:{name}+pretrained"
        )
    published = models.get_model_weights(name)
    if weights not in (None, "pretrained", *published.__members__):
        names = ", ".join(published.__members__)
        raise BadInput(f"torchvision:{name} has no weights {weights!r}; it has {names}")
    chosen = published.DEFAULT if weights in (None, "pretrained") else published[weights]
    labels = chosen.meta["categories"]
    if weights:
        _require_classes(f"torchvision:{name}", len(labels), classes)
    options = arguments if classes is None else {**arguments, "num_classes": classes}
    make = partial(models.get_model, name, weights=chosen if weights else None, **options)
    net = _made(f"torchvision:{name}", weights, make)
    if weights:  # a file must say so
        arguments |= {key: getattr(net, key) for key in _DECIDED_BY_WEIGHTS if hasattr(net, key)}
    recorded = chosen.transforms()
    (size,), (resize,) = recorded.crop_size, recorded.resize_size
    spec = InputSpec(
        (size, size),
        3,
        tuple(recorded.mean),
        tuple(recorded.std),
        interpolation=recorded.interpolation.value,
        resize=resize,
    )
    return Pixels(net, spec, labels if weights else None)


def _py(name: str, classes: int | None, weights: str | None, arguments: dict[str, Any]) -> Pixels:
    if weights:
        raise BadInput(f"py:{name} brings its own weights; leave +{weights} away")
    function = _function(name)
    try:
        model = function(**arguments)
    except Exception as error:  # it is the user's code, which may raise anything at all
        raise BadInput(f"py:{name} failed with {type(error).__name__}: {error}") from error
    if not isinstance(model, nn.Module):
        raise BadInput(f"py:{name} must return a torch.nn.Module, found {type(model).__name__}")
    return wrap(model)


MAKERS: dict[str, Callable[[str, int | None, str | None, dict[str, Any]], Pixels]] = {
    "net": _net,
    "timm": _timm,
    "torchvision": _torchvision,
    "py": _py,
}


def _made(what: str, weights: str | None, make: Callable[[], nn.Module]) -> nn.Module:
    try:
        return make()
    except Exception as error:  # constructors and download clients raise anything at all
        doing = "its weights could not be fetched" if weights else "it cannot be built so"
        raise BadInput(f"{what}: {doing} ({type(error).__name__}: {first_line(error)})") from error


def _function(name: str) -> Callable[..., Any]:
    """The function in `module:function` or `path/to/file.py:function`; modules here are found, too."""
    where, colon, function_name = name.rpartition(":")
    if not colon or not function_name.isidentifier():
        raise BadInput(f"py:{name} names no function; write py:module:function or py:file.py:function")
    file = Path(where) if where.endswith(".py") else None
    if file is not None and not file.is_file():
        raise BadInput(f"there is no file {file}")
    folder = str(Path.cwd() if file is None else file.resolve().parent)
    sys.path.insert(0, folder)
    try:
        module = importlib.import_module(where) if file is None else _run(file)
    except Exception as error:  # importing runs the user's code, which may raise anything at all
        raise BadInput(f"importing {where} failed with {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(folder)
    if folder not in sys.path:  # last, for what it imports later, and for other processes
        sys.path.append(folder)
    function = getattr(module, function_name, None)
    if not callable(function):
        functions = [name for name, value in vars(module).items() if callable(value)]
        raise BadInput(f"{where} has no function {function_name!r}{nearest(function_name, functions)}")
    return function


def _run(file: Path) -> ModuleType:
    """The module in a file, by its own name if an import would find it so: other processes do.

    A module of that name that was imported already stays as it is, and is taken if it is this one.
    """
    known = sys.modules.get(file.stem)
    if known is not None and Path(getattr(known, "__file__", None) or "").resolve() == file.resolve():
        return known
    free = file.stem.isidentifier() and known is None
    importable = importlib.util.find_spec(file.stem) if free else None
    is_this_file = (
        importable is not None
        and importable.origin is not None
        and Path(importable.origin).resolve() == file.resolve()
    )
    name = file.stem if is_this_file else f"trimtab_user_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[spec.name]  # which is only half there
        raise
    return module


def extra(package: str) -> Any:
    """Import an optional package, or say how to install it.

    Args:
        package: its name, as in `trimtab[package]`.
    """
    try:
        return _imported(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise BadInput(_unfit(package, error)) from None
        advice = f"install it with: pip install 'trimtab[{package}]'"
        raise BadInput(f"{package} is not installed; {advice}") from None
    except Exception as error:  # an extra built for another torch fails in ways of its own
        raise BadInput(_unfit(package, error)) from None


def _imported(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
        _declare_operators()
        return importlib.import_module(package)


@cache
def _declare_operators() -> torch.library.Library:
    """Declare the operators of torchvision, whose build for another torch then imports.

    Classifiers never call them. The declarations last as long as the library, which the cache keeps.
    """
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


def _unfit(package: str, error: Exception) -> str:
    try:
        installed = f"{package} {version(package)}"
    except PackageNotFoundError:  # it was put on the path by hand
        installed = package
    there = f"{installed} does not fit the installed torch {torch.__version__}"
    return f"{there} ({first_line(error)}); install versions that belong together"


def _require_classes(what: str, published: int, requested: int | None) -> None:
    if requested is not None and published != requested:
        raise BadInput(
            f"the weights of {what} are for {published} classes, not for {requested}; leave them away"
        )


def _unknown(package: str, name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, 3) or list(known)[:3]
    return f"{package} has no model {name!r}; did you mean {', '.join(near)}?"


def first_line(error: Exception) -> str:
    """Return the first line of an error's message."""
    return next(iter(str(error).splitlines()), "")
