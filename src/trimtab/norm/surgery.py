"""Making a model steerable, and stock again.

`steer` gives each batch-norm module a subclass of its own class, in place, as
`torch.nn.utils.parametrize` does: nothing that can be seen from outside changes. `release` is its exact
inverse. Branches are holder modules under `<layer>.branches.<name>`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from trimtab.copies import duplicate
from trimtab.norm.layer import Branch, Holder, Steered, start, steered_class, understood
from trimtab.norm.setting import MAIN
from trimtab.norm.steering import at_rest, layers, steered_layers
from trimtab.types import BadInput

AFFINE = ("weight", "bias")
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def steer(model: nn.Module) -> nn.Module:
    """Make every batch-norm layer in `model` steerable, in place, and return the model.

    Outputs, gradients, running statistics and state-dict keys stay bit-identical until a knob is turned.
    A layer of the batch-norm family whose forward pass is not known is refused by name.
    """
    found = {name: m for name, m in model.named_modules() if is_batch_norm(m) and not isinstance(m, Steered)}
    for name, module in found.items():
        if isinstance(module, nn.modules.lazy.LazyModuleMixin):
            raise BadInput(f"cannot steer {name} yet: it is lazy; run one batch through the model first")
        if not understood(type(module)):
            raise BadInput(
                f"cannot steer {name or 'the model itself'}: {type(module).__name__} has a forward pass of "
                "its own; swap it for a torch.nn.BatchNorm layer first"
            )
    for module in found.values():
        module.__class__ = steered_class(type(module))
        start(module)
    return model


def steerable(model: nn.Module) -> bool:
    """Whether `model` has batch-norm layers, and all of them are such as `steer` takes (or has taken)."""
    found = [module for module in model.modules() if is_batch_norm(module)]
    lazy = any(isinstance(module, nn.modules.lazy.LazyModuleMixin) for module in found)
    known = all(isinstance(module, Steered) or understood(type(module)) for module in found)
    return bool(found) and known and not lazy


def release(model: nn.Module, branch: str = MAIN) -> nn.Module:
    """Make `model` stock again, in place: stock classes, stock keys, with the values of `branch`.

    Other branches are dropped here, and only here.
    """
    steered = at_rest(model)
    _require_branch(steered, branch)
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
        for attribute in ("setting", "rest", "synchronised"):
            del layer.__dict__[attribute]
        layer.__class__ = layer.stock_class  # type: ignore[assignment]
    return model


def in_force(model: nn.Module) -> str:
    """The name of the branch that normalises at the moment."""
    names = {layer.branch_now() for layer in layers(model).values()} - {MAIN}
    if len(names) > 1:
        raise BadInput(f"layers are on several branches ({', '.join(sorted(names))}); choose one with use()")
    return next(iter(names), MAIN)


def settled(model: nn.Module) -> nn.Module:
    """A steered copy whose "main" is the branch in force; if that is another one, it is the only one left."""
    made, branch = steer(duplicate(model)), in_force(model)
    return made if branch == MAIN else steer(release(made, branch))


def add_branch(
    model: nn.Module, name: str, copy_of: str = MAIN, affine: bool = True, statistics: bool = True
) -> nn.Module:
    """Give every steered layer in `model` a branch that starts as a copy of another.

    `affine=False` shares gamma and beta with `copy_of`, `statistics=False` shares its running statistics:
    the shared half then belongs to both. Add branches before the optimiser, DDP and compile see the model.
    """
    steered = steered_layers(model)
    if not name.isidentifier() or name == MAIN or hasattr(nn.ModuleDict(), name):
        raise BadInput(f"{name!r} cannot name a branch; take a plain word such as 'adv'")
    if not (affine or statistics):
        raise BadInput(f"branch {name!r} would share everything with {copy_of!r}; give it a half of its own")
    taken = [at for at, layer in steered.items() if name in layer.branch_names]
    if taken:
        raise BadInput(f"there is a branch {name!r} already, at {taken[0]}")
    _require_branch(steered, copy_of)
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
            copied = None if value is None else nn.Parameter(value.detach().clone(), value.requires_grad)
            branch.register_parameter(half, copied)
    if statistics:
        for half in STATISTICS:
            value = getattr(statistics_owner, half)
            branch.register_buffer(half, None if value is None else value.clone())
    if not layer.branch_modules:
        layer.add_module("branches", nn.ModuleDict())
    layer.get_submodule("branches").add_module(name, branch)
    branch.train(layer.training)


def plan(model: nn.Module) -> list[dict[str, Any]]:
    """The branches of `model` as plain values: enough for `rebuild` to make a state dict fit again."""
    return [
        {"layer": at, "name": name, "affine_of": own.affine_of, "statistics_of": own.statistics_of}
        for at, layer in layers(model).items()
        for name in layer.branch_names[1:]
        if isinstance(own := layer.holder(name), Branch)
    ]


def rebuild(model: nn.Module, planned: list[dict[str, Any]]) -> nn.Module:
    """Steer `model` and give it the branches that `plan` described; their values come with a state dict."""
    steered = layers(steer(model))
    for row in planned:
        if row["layer"] not in steered:
            raise BadInput(
                f"the plan has a branch at {row['layer']!r}, where this model has no batch-norm layer"
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
    """Whether a module belongs to the batch-norm family, understood or not."""
    named_so = "BatchNorm" in type(module).__name__ and hasattr(module, "running_mean")
    return isinstance(module, nn.modules.batchnorm._BatchNorm) or named_so


def _name_of(layer: Steered, holder: Holder) -> str:
    return next(name for name in layer.branch_names if layer.holder(name) is holder)


def _require_branch(steered: dict[str, Steered], branch: str) -> None:
    known = dict.fromkeys(name for layer in steered.values() for name in layer.branch_names)
    if steered and branch not in known:
        raise BadInput(f"there is no branch {branch!r}; this model has {', '.join(known)}")
