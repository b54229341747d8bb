"""Turning the knobs: `use` for as long as a block lasts, `layers` to name what is steered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.norm.layer import Steered
from trimtab.norm.moments import pool
from trimtab.norm.setting import MAIN, Moments, Route, Shift
from trimtab.types import BadInput, number, whole

_INHERIT: Any = type("Inherit", (), {"__repr__": lambda self: "inherit"})()


def layers(model: nn.Module) -> dict[str, Steered]:
    """The steered layers of `model` by name, relative to the innermost module: wrappers do not show."""
    return {
        name.replace("_orig_mod.", ""): module  # parts of a model may be compiled on their own
        for name, module in innermost(model).named_modules()
        if isinstance(module, Steered)
    }


def steered_layers(model: nn.Module) -> dict[str, Steered]:
    """As `layers`, of a model that must have some."""
    found = layers(model)
    if not found:
        raise BadInput("this module has no steered layer; call trimtab.steer(model) first")
    return found


def learners(model: nn.Module) -> nn.ModuleList:
    """The steered layers whose running statistics learn from the next pass: a module that `use` takes."""
    return nn.ModuleList(layer for layer in layers(model).values() if layer.update_now() is not False)


def at_rest(model: nn.Module) -> dict[str, Steered]:
    """As `layers`, of a model that no `use` is steering at the moment."""
    found = layers(model)
    if any(layer.setting is not layer.rest for layer in found.values()):
        raise BadInput("this cannot be done inside a use() block, which would undo it; do it before or after")
    return found


def innermost(model: nn.Module) -> nn.Module:
    """What DDP, Fabric and torch.compile wrap."""
    while True:
        own = model._modules  # not getattr: a module may answer for one inside it
        ddp = isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel)
        held = [name for name in ("module" if ddp else "_orig_mod", "_forward_module") if name in own]
        if not held:
            return model
        model = own[held[0]]  # type: ignore[assignment]


@contextmanager
def use(
    module: nn.Module,
    *,
    branch: str | Route | list[tuple[str, int]] | None = _INHERIT,
    source: str | None = _INHERIT,
    rho: float | str | None = _INHERIT,
    blend_of: str | None = _INHERIT,
    update: bool | float | str | None = _INHERIT,
    groups: int | None = _INHERIT,
    shift: Mapping[str, Shift] | None = _INHERIT,
    estimator: Callable[[Tensor], Moments] | None = _INHERIT,
) -> Iterator[None]:
    """Turn knobs on every steered layer inside `module` until the block ends, however it ends.

    An omitted knob keeps what an outer `use` gave it; `None` puts it back to stock behaviour. `branch`
    is a name or a route, (name, count) pairs that split the batch in order; a layer without that branch
    stays on "main". `shift` maps names from `layers(module)` to `Shift`s; layers not named are unshifted.
    The backward pass of what ran inside belongs inside, too. Activation checkpointing runs a layer twice:
    with statistics that learn and normalise at once ("running" or "blend" with an update) it reads others
    in the second run.
    """
    steered = steered_layers(module)
    rho = number(rho) if isinstance(rho, str) else rho
    knobs: dict[str, Any] = {
        "source": source,
        "rho": rho,
        "blend_of": blend_of,
        "update": update,
        "groups": groups,
        "estimator": estimator,
    }
    knobs = {name: value for name, value in knobs.items() if value is not _INHERIT}
    sources = {layer.setting.source for layer in steered.values()} if source is _INHERIT else {source}
    alike = (sources == {"batch"} and rho == 1) or (sources == {"running"} and rho == 0)
    if rho not in (_INHERIT, None) and "blend" not in sources and not alike:
        raise BadInput(f'rho={rho} blends batch and running statistics; it goes with source="blend"')
    if source is not _INHERIT and source != "blend":
        knobs |= {"rho": None}
    if branch is not _INHERIT:
        knobs["branch"] = _checked_branch(branch, steered)
    shifts = _checked_shifts(shift, steered)

    settings = {
        name: replace(layer.setting, **knobs, **({} if shifts is _INHERIT else {"shift": shifts.get(name)}))
        for name, layer in steered.items()
    }
    with _set(steered, settings):
        yield


class Seen(dict[str, Moments]):
    """The moments of what each layer normalised, and in how many calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def note(self, name: str, found: Moments) -> None:
        self[name] = pool([self[name], found]) if name in self else found
        self.calls[name] += 1


@contextmanager
def observe(module: nn.Module) -> Iterator[Seen]:
    """Collect, per layer, the moments of all that it normalises inside.

    >>> with observe(model) as seen: model(x)  # doctest: +SKIP
    >>> seen["layer1.0.bn1"].mean  # doctest: +SKIP
    """
    steered = steered_layers(module)
    seen = Seen()
    settings = {
        name: replace(layer.setting, observe=partial(seen.note, name)) for name, layer in steered.items()
    }
    with _set(steered, settings):
        yield seen


def unobserved(module: nn.Module) -> AbstractContextManager[None]:
    """Whoever observes outside of the block sees nothing of what runs inside."""
    found = layers(module)
    return _set(found, {name: replace(layer.setting, observe=None) for name, layer in found.items()})


@contextmanager
def _set(steered: dict[str, Steered], settings: dict[str, Any]) -> Iterator[None]:
    before = [(layer, layer.setting) for layer in steered.values()]
    for name, layer in steered.items():
        layer.setting = settings[name]
    try:
        yield
    finally:
        for layer, setting in before:
            layer.setting = setting


def zero_shifts(module: nn.Module, requires_grad: bool = False) -> dict[str, Shift]:
    """A shift of nothing for every steered layer, to differentiate with respect to or to fill."""

    def zeros(layer: Steered) -> torch.Tensor:
        own = (layer.weight, layer.running_mean, *module.parameters())
        like = next((t for t in own if t is not None), torch.zeros(()))
        return torch.zeros(
            layer.num_features, dtype=like.dtype, device=like.device, requires_grad=requires_grad
        )

    return {name: Shift(zeros(layer), zeros(layer)) for name, layer in layers(module).items()}


def _checked_branch(branch: Any, steered: dict[str, Steered]) -> str | Route | None:
    if branch is None or isinstance(branch, str):
        names = [MAIN if branch is None else branch]
    else:
        branch = tuple(branch)
        if not all(isinstance(one, list | tuple) and len(one) == 2 for one in branch):
            raise BadInput(f"a route is made of (branch, number of images) pairs, found {branch!r}")
        branch = tuple((str(name), whole(count, "the number of images")) for name, count in branch if count)
        if any(count < 0 for _, count in branch):
            raise BadInput(f"a route counts images, found {branch}")
        names = [name for name, _ in branch]
        if len(set(names)) < len(names) or not names:
            raise BadInput(f"a route names each branch once, found {', '.join(names) or 'none'}")
    known = dict.fromkeys(name for layer in steered.values() for name in layer.branch_names)
    for name in names:
        if name not in known:
            raise BadInput(f"there is no branch {name!r}; this model has {', '.join(known)}")
    return branch


def _checked_shifts(shift: Any, steered: dict[str, Steered]) -> Any:
    if shift is _INHERIT:
        return _INHERIT
    if shift is not None and not isinstance(shift, Mapping):
        raise BadInput(f"shift maps names of layers to norm.Shift, found a {type(shift).__name__}")
    for name, one in (shift or {}).items():
        if name not in steered:
            raise BadInput(f"there is no steered layer {name!r} to shift; layers(model) lists them")
        if not isinstance(one, Shift):
            raise BadInput(f"the shift of {name!r} is a norm.Shift(mu, sigma), found a {type(one).__name__}")
        for delta in (one.mu, one.sigma):
            channels = steered[name].num_features
            if delta is not None and delta.shape != (channels,):
                raise BadInput(
                    f"the shift of {name!r} needs {channels} values, found shape {tuple(delta.shape)}"
                )
    return shift or {}
