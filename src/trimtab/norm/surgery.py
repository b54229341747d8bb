"""Make a model steerable, and stock again; add and extract branches.

`steer` replaces the class of each batch-norm module by a subclass, in place, as
`torch.nn.utils.parametrize` does: nothing observable changes. `release` is its exact inverse. Branches are
holder modules under `<layer>.branches.<name>`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from trimtab._clone import deep_clone
from trimtab.norm.layer import Branch, Holder, Steered, start, steered_class, understood
from trimtab.norm.setting import MAIN
from trimtab.norm.steering import at_rest, layers, require_branch, steered_layers
from trimtab.types import BadInput

AFFINE = ("weight", "bias")
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def steer(model: nn.Module) -> nn.Module:
    """Make every batch-norm layer in `model` steerable, in place, and return the model.

    Outputs, gradients, running statistics and state-dict keys stay bit-identical until a knob is turned.
    A layer of the batch-norm family whose forward pass is not known is refused by name.
    """
    stock = {name: m for name, m in model.named_modules() if is_batch_norm(m) and not isinstance(m, Steered)}
    for name, module in stock.items():
        if isinstance(module, nn.modules.lazy.LazyModuleMixin):
            raise BadInput(f"cannot steer {name} yet: it is lazy; run one batch through the model first")
        if not understood(type(module)):
            raise BadInput(
                f"cannot steer {name or 'the model itself'}: {type(module).__name__} has a forward pass of "
                "its own; swap it for a torch.nn.BatchNorm layer first"
            )
    for module in stock.values():
        module.__class__ = steered_class(type(module))
        start(module)
    return model


def steerable(model: nn.Module) -> bool:
    """Return whether `model` has batch-norm layers and `steer` accepts all of them."""
    modules = [module for module in model.modules() if is_batch_norm(module)]
    lazy = any(isinstance(module, nn.modules.lazy.LazyModuleMixin) for module in modules)
    known = all(isinstance(module, Steered) or understood(type(module)) for module in modules)
    return bool(modules) and known and not lazy


def release(model: nn.Module, branch: str = MAIN) -> nn.Module:
    """Make `model` stock again, in place: stock classes, stock keys, with the values of `branch`.

    Other branches are dropped here, and only here.
    """
    steered = at_rest(model)
    if steered:
        require_branch(steered, branch)
    for layer in steered.values():
        with torch.no_grad():
            for holder, names in (
                (layer.affine_holder(branch), AFFINE),
                (layer.statistics_holder(branch), STATISTICS),
            ):
                for name in names if holder is not layer else ():
                    if getattr(layer, name) is not None:
                        getattr(layer, name).copy_(getattr(holder, name))
        layer._modules.pop("branches", None)
        for attribute in ("setting", "rest", "synchronized"):
            del layer.__dict__[attribute]
        layer.__class__ = layer.stock_class  # type: ignore[assignment]
    return model


def active_branch(model: nn.Module) -> str:
    """Return the name of the branch that normalizes now."""
    names = {layer.branch_now() for layer in layers(model).values()} - {MAIN}
    if len(names) > 1:
        raise BadInput(f"layers are on several branches ({', '.join(sorted(names))}); choose one with use()")
    return next(iter(names), MAIN)


def extract_branch(model: nn.Module) -> nn.Module:
    """Return a steered copy whose "main" branch is the active one.

    If that is not "main", the copy has no other branch.
    """
    copy, branch = steer(deep_clone(model)), active_branch(model)
    return copy if branch == MAIN else steer(release(copy, branch))


def add_branch(
    model: nn.Module, name: str, copy_of: str = MAIN, affine: bool = True, statistics: bool = True
) -> nn.Module:
    """Give every steered layer in `model` a branch that starts as a copy of another.

    Add branches before you create the optimizer, wrap the model in DDP or compile it.

    Args:
        model: A steered model or a part of one; it is changed in place and returned.
        name: Name of the new branch.
        copy_of: The branch that it starts as a copy of.
        affine: Whether it gets its own gamma and beta; if not, it shares those of `copy_of`.
        statistics: Whether it gets its own running statistics; if not, it shares those of `copy_of`.
    """
    steered = steered_layers(model)
    if not name.isidentifier() or name == MAIN or hasattr(nn.ModuleDict(), name):
        raise BadInput(f"{name!r} cannot name a branch; take a plain word such as 'adv'")
    if not (affine or statistics):
        raise BadInput(f"branch {name!r} would share everything with {copy_of!r}; give it a half of its own")
    taken = [at for at, layer in steered.items() if name in layer.branch_names]
    if taken:
        raise BadInput(f"there is a branch {name!r} already, at {taken[0]}")
    require_branch(steered, copy_of)
    for layer in steered.values():
        _add_branch(layer, name, copy_of, affine, statistics)
    return model


def _add_branch(layer: Steered, name: str, copy_of: str, affine: bool, statistics: bool) -> None:
    affine_owner, statistics_owner = layer.affine_holder(copy_of), layer.statistics_holder(copy_of)
    branch = Branch(
        affine_of=None if affine else _name_of(layer, affine_owner),
        statistics_of=None if statistics else _name_of(layer, statistics_owner),
    )
    if affine:
        for half in AFFINE:
            value = getattr(affine_owner, half)
            copy = None if value is None else nn.Parameter(value.detach().clone(), value.requires_grad)
            branch.register_parameter(half, copy)
    if statistics:
        for half in STATISTICS:
            value = getattr(statistics_owner, half)
            branch.register_buffer(half, None if value is None else value.clone())
    if not layer.branch_modules:
        layer.add_module("branches", nn.ModuleDict())
    branches = layer.get_submodule("branches")
    branches.add_module(name, branch)
    branches.train(layer.training)


def branch_spec(model: nn.Module) -> list[dict[str, Any]]:
    """Describe the branches of `model` in plain values, from which `rebuild` adds them again."""
    return [
        {"layer": at, "name": name, "affine_of": holder.affine_of, "statistics_of": holder.statistics_of}
        for at, layer in layers(model).items()
        for name in layer.branch_names[1:]
        if isinstance(holder := layer.holder(name), Branch)
    ]


def rebuild(model: nn.Module, spec: list[dict[str, Any]]) -> nn.Module:
    """Steer `model` and add the branches that `branch_spec` returned; a state dict brings their values."""
    steered = layers(steer(model))
    for row in spec:
        if row["layer"] not in steered:
            raise BadInput(
                f"the spec has a branch at {row['layer']!r}, where this model has no batch-norm layer"
            )
        if row["name"] in steered[row["layer"]].branch_names:
            raise BadInput(f"there is a branch {row['name']!r} already, at {row['layer']}")
        sharing = row["affine_of"] or row["statistics_of"] or MAIN
        _add_branch(
            steered[row["layer"]],
            row["name"],
            sharing,
            row["affine_of"] is None,
            row["statistics_of"] is None,
        )
    return model


def is_batch_norm(module: nn.Module) -> bool:
    """Return whether a module belongs to the batch-norm family, supported or not."""
    named_like_one = "BatchNorm" in type(module).__name__ and hasattr(module, "running_mean")
    return isinstance(module, nn.modules.batchnorm._BatchNorm) or named_like_one


def _name_of(layer: Steered, holder: Holder) -> str:
    return next(name for name in layer.branch_names if layer.holder(name) is holder)
