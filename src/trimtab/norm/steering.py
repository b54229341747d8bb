"""Turn the knobs of steered layers with `use`, list the layers, and observe their moments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.norm._kernels.moments import pool
from trimtab.norm.layer import Steered
from trimtab.norm.setting import MAIN, Moments, Route, Setting, Shift
from trimtab.types import BadInput, number, whole

_INHERIT: Any = type("Inherit", (), {"__repr__": lambda self: "inherit"})()


def layers(model: nn.Module) -> dict[str, Steered]:
    """Return the steered layers by name, relative to the innermost module (no prefixes of wrappers)."""
    return {
        name.replace("_orig_mod.", ""): module  # parts of a model may be compiled on their own
        for name, module in innermost(model).named_modules()
        if isinstance(module, Steered)
    }


def steered_layers(model: nn.Module) -> dict[str, Steered]:
    """Return the steered layers of a model that must have some."""
    steered = layers(model)
    if not steered:
        raise BadInput("this module has no steered layer; call trimtab.steer(model) first")
    return steered


def updating_layers(model: nn.Module) -> nn.ModuleList:
    """Return the steered layers whose running statistics the next pass updates, as a module for `use`."""
    return nn.ModuleList(layer for layer in layers(model).values() if layer.update_now() is not False)


def at_rest(model: nn.Module) -> dict[str, Steered]:
    """Return the steered layers of a model that is not inside `use`."""
    steered = layers(model)
    if any(layer.setting is not layer.rest for layer in steered.values()):
        raise BadInput("this cannot be done inside a use() block, which would undo it; do it before or after")
    return steered


def innermost(model: nn.Module) -> nn.Module:
    """Return the module that DDP, Fabric and torch.compile wrap."""
    while True:
        children = model._modules  # not getattr: a module may forward attributes to one inside it
        ddp = isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel)
        names = [name for name in ("module" if ddp else "_orig_mod", "_forward_module") if name in children]
        if not names:
            return model
        model = children[names[0]]  # type: ignore[assignment]


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
    """Turn knobs on every steered layer inside `module`; restore them after the block, also after an error.

    `with use(model.layer4, update=False)` leaves the running statistics of `layer4` unchanged in training;
    with `source="running"` as well, its layers also normalize with them, as in eval mode.

    An omitted knob inherits from an outer `use`; `None` means stock behavior. Run the backward pass inside
    the block, too. Activation checkpointing runs a layer twice: if statistics that normalize ("running" or
    "blend") are also updated, the second run reads different ones.

    Args:
        module: A steered model or a part of one.
        branch: A name, or a route: (name, count) pairs that split the batch in order. A layer without that
            branch uses "main".
        source: Which mean and std normalize: `"batch"`, `"running"` or `"blend"`.
        rho: Weight of the batch's mean and std in a blend, in [0, 1]: 0 is "running", 1 is "batch".
        blend_of: What is blended in addition to the mean: `"std"` (default), `"var"` or `"pooled"`.
        update: Whether the running statistics are updated: a bool, a momentum, or `"average"` (cumulative).
        groups: Number of equal groups of the batch whose statistics are taken separately.
        shift: Perturbations by layer name (see `layers`); other layers are not shifted.
        estimator: Estimates the batch's moments; mean and variance if None.
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
    _check_knobs(Setting(**knobs))
    sources = {layer.setting.source for layer in steered.values()} if source is _INHERIT else {source}
    alike = (sources == {"batch"} and rho == 1) or (sources == {"running"} and rho == 0)
    if rho not in (_INHERIT, None) and "blend" not in sources and not alike:
        raise BadInput(f'rho={rho} blends batch and running statistics; it goes with source="blend"')
    if source is not _INHERIT and source != "blend":
        knobs |= {"rho": None}
    if branch is not _INHERIT:
        knobs["branch"] = _checked_branch(branch, steered)
    shifts = _checked_shifts(shift, steered)

    settings: dict[str, Setting] = {
        name: layer.setting._replace(**knobs, **({} if shifts is _INHERIT else {"shift": shifts.get(name)}))
        for name, layer in steered.items()
    }
    if ("blend", None) in [(setting.source, setting.rho) for setting in settings.values()]:
        raise BadInput('source="blend" needs rho, the weight of the batch between 0 and 1')
    with _set(steered, settings):
        yield


class Observations(dict[str, Moments]):
    """The moments of each layer's input, and the number of calls they come from."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def note(self, name: str, batch: Moments) -> None:
        """Add the moments of one call of a layer."""
        self[name] = pool([self[name], batch]) if name in self else batch
        self.calls[name] += 1


@contextmanager
def observe(module: nn.Module) -> Iterator[Observations]:
    """Collect the moments of each layer's input inside the block, by layer name.

    >>> from trimtab.norm import steer
    >>> model = steer(nn.Sequential(nn.BatchNorm1d(2)))
    >>> with observe(model) as seen:
    ...     _ = model(torch.tensor([[0.0, 1.0], [2.0, 5.0]]))
    >>> seen["0"].mean.tolist()
    [1.0, 3.0]
    """
    steered = steered_layers(module)
    seen = Observations()
    settings = {
        name: layer.setting._replace(observe=partial(seen.note, name)) for name, layer in steered.items()
    }
    with _set(steered, settings):
        yield seen


def unobserved(module: nn.Module) -> AbstractContextManager[None]:
    """Hide the passes inside the block from an `observe` around it."""
    steered = layers(module)
    return _set(steered, {name: layer.setting._replace(observe=None) for name, layer in steered.items()})


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
    """Return a zero shift for every steered layer, to differentiate with respect to or to fill."""

    def zeros(layer: Steered) -> torch.Tensor:
        candidates = (layer.weight, layer.running_mean, *module.parameters())
        like = next((t for t in candidates if t is not None), torch.zeros(()))
        return torch.zeros(
            layer.num_features, dtype=like.dtype, device=like.device, requires_grad=requires_grad
        )

    return {name: Shift(zeros(layer), zeros(layer)) for name, layer in layers(module).items()}


def shift_gradients(
    model: nn.Module, seen: Observations, gradients: dict[nn.Parameter, Tensor], tolerance: float = 0.0
) -> dict[str, Shift]:
    """Return the gradient with respect to a zero shift, from the affine gradients of the same pass.

    With xhat = (x - mu) / sigma, y = gamma (1 + d_sigma)(xhat - d_mu mu / sigma) + beta gives at d = 0
        dL/d(d_sigma) = gamma dL/d(gamma),    dL/d(d_mu) = -(gamma mu / sigma) dL/d(beta),
    so that a pass of the stock fused kernel is enough.

    Where a gradient is zero in exact arithmetic (the mean of a layer whose output another layer normalizes),
    only rounding errors remain; `tolerance` sets them to zero.

    Args:
        model: A steered model.
        seen: What `observe` collected in that pass, in which every layer ran once: the gradients of two calls
            cannot be separated.
        gradients: Gradients of that pass by parameter; gamma and beta of every layer must be among them.
        tolerance: Values below `tolerance` times the layer's largest affine gradient are set to zero.

    Returns:
        A `Shift` per layer that holds the two gradients.
    """
    shifts = {}
    for name, layer in layers(model).items():
        affine = layer.affine_holder(layer.branch_now())
        if (
            affine.weight is None
            or affine.bias is None
            or not {affine.weight, affine.bias} <= gradients.keys()
        ):
            raise BadInput(
                f"{name} has no affine gradient to compute the shift's from: let gamma and beta train, or "
                "differentiate zero_shifts(model)"
            )
        if seen.calls[name] != 1 or not isinstance(layer.setting.branch or MAIN, str):
            raise BadInput(
                f"{name} normalized {seen.calls[name]} times, or for several branches, in one pass: its "
                "shift's gradient cannot be separated; differentiate zero_shifts(model)"
            )
        gamma, batch = affine.weight.detach(), seen[name]
        ratio = batch.mean / (batch.var + layer.eps).sqrt()
        by_mean, by_std = gamma * gradients[affine.bias], gamma * gradients[affine.weight]
        pair = torch.stack([-ratio * by_mean, by_std])
        if tolerance:
            least = tolerance * torch.maximum(by_mean.abs().max(), by_std.abs().max())
            pair = pair.where(pair.abs() >= least, 0.0)
        shifts[name] = Shift(*pair)
    return shifts


def _check_knobs(knobs: Setting) -> None:
    if knobs.source not in (None, "batch", "running", "blend"):
        raise BadInput(f'source must be "batch", "running", "blend" or None, found {knobs.source!r}')
    if knobs.rho is not None and not 0 <= knobs.rho <= 1:
        raise BadInput(f"rho must lie in [0, 1], found {knobs.rho!r}")
    if knobs.blend_of not in (None, "std", "var", "pooled"):
        raise BadInput(f'blend_of must be "std", "var" or "pooled", found {knobs.blend_of!r}')
    if isinstance(knobs.update, str) and knobs.update != "average":
        raise BadInput(f'update must be True, False, a momentum, "average" or None, found {knobs.update!r}')
    if (
        isinstance(knobs.update, int | float)
        and not isinstance(knobs.update, bool)
        and not 0 < knobs.update <= 1
    ):
        raise BadInput(f"a momentum must lie in (0, 1], found {knobs.update!r}; False updates nothing")
    if knobs.groups is not None and (not isinstance(knobs.groups, int) or knobs.groups < 1):
        raise BadInput(f"groups must be a whole number from 1 up, found {knobs.groups!r}")


def _checked_branch(branch: Any, steered: dict[str, Steered]) -> str | Route | None:
    if branch is None or isinstance(branch, str):
        names = [MAIN if branch is None else branch]
    else:
        branch = tuple(branch)
        if not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in branch):
            raise BadInput(f"a route is made of (branch, number of images) pairs, found {branch!r}")
        branch = tuple((str(name), whole(count, "the number of images")) for name, count in branch if count)
        if any(count < 0 for _, count in branch):
            raise BadInput(f"a route counts images, found {branch}")
        names = [name for name, _ in branch]
        if len(set(names)) < len(names) or not names:
            raise BadInput(f"a route names each branch once, found {', '.join(names) or 'none'}")
    for name in names:
        require_branch(steered, name)
    return branch


def require_branch(steered: dict[str, Steered], branch: str) -> None:
    """Raise BadInput unless some layer has this branch."""
    known = dict.fromkeys(name for layer in steered.values() for name in layer.branch_names)
    if branch not in known:
        raise BadInput(f"there is no branch {branch!r}; this model has {', '.join(known)}")


def _checked_shifts(shift: Any, steered: dict[str, Steered]) -> Any:
    if shift is _INHERIT:
        return _INHERIT
    if shift is not None and not isinstance(shift, Mapping):
        raise BadInput(f"shift maps names of layers to norm.Shift, found a {type(shift).__name__}")
    for name, given in (shift or {}).items():
        if name not in steered:
            raise BadInput(f"there is no steered layer {name!r} to shift; layers(model) lists them")
        if not isinstance(given, Shift):
            raise BadInput(
                f"the shift of {name!r} is a norm.Shift(mu, sigma), found a {type(given).__name__}"
            )
        for delta in (given.mu, given.sigma):
            channels = steered[name].num_features
            if delta is not None and delta.shape != (channels,):
                raise BadInput(
                    f"the shift of {name!r} needs {channels} values, found shape {tuple(delta.shape)}"
                )
    return shift or {}
