"""Normalisation statistics, looked at: branch against branch, batch against running, and what shifts do.

Tables are plain rows (dictionaries), for the plots and for anyone's data frame.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trimtab import norm
from trimtab.attacks import RandomSign, RandomUniform, Scaled, SignStep
from trimtab.attacks.base import check_pairs, wrong
from trimtab.attacks.guard import guard
from trimtab.norm.state import images_for
from trimtab.types import BadInput

Row = dict[str, Any]
StatisticsAttack = Callable[..., dict[str, norm.Shift]]

ATTACKS: dict[str, Callable[[float], StatisticsAttack]] = {
    "sign step (APART)": SignStep,
    "random signs": RandomSign,
    "random uniform": RandomUniform,
    "scaled mean": lambda eps: Scaled(eps, "mean"),
    "scaled sigma": lambda eps: Scaled(eps, "sigma"),
}


def branch_statistics(model: nn.Module) -> list[Row]:
    """Running mean and deviation of every channel, a row for each branch that has its own."""
    shared = {(row["layer"], row["name"]) for row in norm.plan(model) if row["statistics_of"]}
    return [
        {"layer": layer, "channel": c, "branch": branch, "mean": float(mean), "deviation": float(var) ** 0.5}
        for branch in norm.branches(model)
        for layer, held in norm.running(model, branch).items()
        if (layer, branch) not in shared
        for c, (mean, var) in enumerate(zip(held.mean, held.var, strict=True))
    ]


def batch_against_running(model: nn.Module, x: Tensor) -> list[Row]:
    """What one batch gives, in training's own way, beside the running statistics of the branch in force."""
    held = _running(model)
    steering = norm.use(model, source="batch", update=False)
    with torch.no_grad(), guard(model, running=False), steering, norm.observe(model) as seen:
        model(images_for(model, x))
    return [
        {
            "layer": layer,
            "channel": c,
            "batch mean": float(seen[layer].mean[c]),
            "running mean": float(held[layer].mean[c]),
            "batch variance": float(seen[layer].var[c]),
            "running variance": float(held[layer].var[c]),
        }
        for layer in held
        if layer in seen  # a layer may not run in this mode
        for c in range(len(held[layer].mean))
    ]


def _running(model: nn.Module) -> dict[str, norm.Moments]:
    """Of each layer's own branch in force; a layer that never got it is on "main"."""
    now = {name: layer.branch_now() for name, layer in norm.layers(model).items()}
    of = {branch: norm.running(model, branch) for branch in set(now.values())}
    return {name: of[now[name]].get(name, held) for name, held in norm.running(model).items()}


def tolerance(
    model: nn.Module,
    batches: Iterable[Any],
    eps: Sequence[float] = (0.0, 0.05, 0.1, 0.2, 0.4),
    attacks: Sequence[str] = tuple(ATTACKS),
    source: str = "running",
    groups: int = 1,
    seed: int = 0,
) -> list[Row]:
    """Accuracy over all batches with shifted statistics, for each attack and radius.

    A shift is found on the first batch and then holds for all (APART's figure 1); random ones take the
    same signs for every model with these layers (figure 2). With `source="batch"` statistics are those of
    each batch, in `groups`; eps = 0 is the control.
    """
    unknown = [name for name in attacks if name not in ATTACKS]
    if unknown:
        raise BadInput(f"there is no statistics attack {unknown[0]!r}; take one of {', '.join(ATTACKS)}")
    images = [(x, y.to(x.device)) for x, y in ((images_for(model, batch), batch[1]) for batch in batches)]
    if not images:
        raise BadInput("tolerance needs at least one batch of images, found none")
    for x, y in images:
        check_pairs(x, y)
    first_x, first_y = images[0]
    rows = []
    for name in attacks:
        for radius in eps:
            shifts = _shifts(ATTACKS[name], radius, model, first_x, first_y, source, groups, seed)
            right = n = 0
            steering = norm.use(model, source=source, update=False, groups=groups, shift=shifts)
            with torch.no_grad(), guard(model, running=False), steering:
                for x, y in images:
                    right += int((~wrong(model(x), y)).sum())
                    n += len(y)
            rows.append(
                {"attack": name, "eps": radius, "groups": groups, "source": source, "accuracy": right / n}
            )
    return rows


def _shifts(
    kind: Callable[..., StatisticsAttack],
    eps: float,
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    source: str,
    groups: int,
    seed: int,
) -> dict[str, norm.Shift] | None:
    if eps == 0:
        return None
    attack = kind(eps, source=source, groups=groups) if kind is SignStep else kind(eps)
    return attack(model, x, y, seed=seed)
