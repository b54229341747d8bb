"""Normalization statistics: branch against branch, batch against running, and accuracy under shifts.

Tables are lists of dictionaries, for plots or a data frame.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trimtab import norm
from trimtab.attacks import RandomSign, RandomUniform, Scaled, SignStep
from trimtab.norm.state import images_for
from trimtab.runtime import check_pairs, guard, is_misclassified
from trimtab.types import BadInput, one_of

Values = dict[str, Any]
StatisticsAttack = Callable[..., dict[str, norm.Shift]]

ATTACKS: dict[str, Callable[[float], StatisticsAttack]] = {
    "sign step (APART)": SignStep,
    "random signs": RandomSign,
    "random uniform": RandomUniform,
    "scaled mean": lambda eps: Scaled(eps, "mean"),
    "scaled sigma": lambda eps: Scaled(eps, "sigma"),
}


def branch_statistics(model: nn.Module) -> list[Values]:
    """List the running mean and std of every channel and branch; shared statistics appear once."""
    shared = {(row["layer"], row["name"]) for row in norm.branch_spec(model) if row["statistics_of"]}
    return [
        {"layer": layer, "channel": c, "branch": branch, "mean": float(mean), "std": float(var) ** 0.5}
        for branch in norm.branches(model)
        for layer, moments in norm.running(model, branch).items()
        if (layer, branch) not in shared
        for c, (mean, var) in enumerate(zip(moments.mean, moments.var, strict=True))
    ]


def batch_against_running(model: nn.Module, x: Tensor) -> list[Values]:
    """List the statistics of one batch, as in training, with the running ones of the active branch."""
    running = _running(model)
    steering = norm.use(model, source="batch", update=False)
    with torch.no_grad(), guard(model, running=False), steering, norm.observe(model) as seen:
        model(images_for(model, x))
    return [
        {
            "layer": layer,
            "channel": c,
            "batch mean": float(seen[layer].mean[c]),
            "running mean": float(running[layer].mean[c]),
            "batch variance": float(seen[layer].var[c]),
            "running variance": float(running[layer].var[c]),
        }
        for layer in running
        if layer in seen  # a layer may not run in this mode
        for c in range(len(running[layer].mean))
    ]


def _running(model: nn.Module) -> dict[str, norm.Moments]:
    """Return the running statistics of each layer's active branch; layers without it use "main"."""
    now = {name: layer.branch_now() for name, layer in norm.layers(model).items()}
    of = {branch: norm.running(model, branch) for branch in set(now.values())}
    return {name: of[now[name]].get(name, main) for name, main in norm.running(model).items()}


def tolerance(
    model: nn.Module,
    batches: Iterable[Any],
    eps: Sequence[float] = (0.0, 0.05, 0.1, 0.2, 0.4),
    attacks: Sequence[str] = tuple(ATTACKS),
    source: str = "running",
    groups: int = 1,
    seed: int = 0,
) -> list[Values]:
    """Measure the accuracy over all batches with shifted statistics, for each attack and radius.

    A shift is computed on the first batch and then fixed (APART's figure 1), by the gradient of the whole
    batch as in Algorithm 1; groups apply to the evaluation only. Random shifts have the same signs for every
    model with these layers (figure 2). eps = 0 is the control.

    Args:
        model: A steered classifier.
        batches: Pairs (images, labels).
        eps: Relative radii of the shifts, 0 for no shift.
        attacks: Names of `ATTACKS`.
        source: Normalize with "running" statistics, or with those of each "batch".
        groups: With "batch": the number of equal groups that are normalized separately.
        seed: Seed of the random attacks.
    """
    for name in attacks:
        one_of(ATTACKS, attack=name)
    images = [(x, y.to(x.device)) for x, y in ((images_for(model, batch), batch[1]) for batch in batches)]
    if not images:
        raise BadInput("tolerance needs at least one batch of images, found none")
    for x, y in images:
        check_pairs(x, y)
    rows = []
    for name in attacks:
        for radius in eps:
            attack = _attack(ATTACKS[name], radius, source)
            shifts = attack(model, *images[0], seed=seed) if attack else None
            correct = n = 0
            steering = norm.use(model, source=source, update=False, groups=groups, shift=shifts)
            with torch.no_grad(), guard(model, running=False), steering:
                for x, y in images:
                    correct += int((~is_misclassified(model(x), y)).sum())
                    n += len(y)
            rows.append(
                {"attack": name, "eps": radius, "groups": groups, "source": source, "accuracy": correct / n}
            )
    return rows


def _attack(kind: Callable[..., StatisticsAttack], eps: float, source: str) -> StatisticsAttack | None:
    if eps == 0:
        return None
    return kind(eps, source=source) if kind is SignStep else kind(eps)
