"""Merge the statistics of parts of a data set into those of the whole.

For parts i with n_i elements, means m_i and unbiased variances v_i, and N = sum n_i:

    mean = sum n_i m_i / N
    var  = [ sum (n_i - 1) v_i  +  sum n_i (m_i - mean)^2 ] / (N - 1)

The second sum is the variance between the parts. An average of the variances drops it, which is what
federated averaging of BatchNorm buffers does: on clients whose data differ the merged network is then
normalized by too small a variance.

The result is exact when all layers received the same inputs as in one pass over all the data: when the parts
were gathered by one network on whole batches (`norm.gather`), or with `source="running"` on any parts. Of
clients with data of their own each batch is normalized by its client's statistics; there only the second way
is exact, and is repeated until the statistics no longer change (see `norm/packs.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.norm._kernels.moments import pool
from trimtab.norm.pack_files import LayerStatistics, Pack, read_pack
from trimtab.norm.packs import pack
from trimtab.norm.setting import Moments
from trimtab.types import BadInput


def merge(parts: Sequence[Pack | nn.Module | str | Path], counts: Sequence[int] | None = None) -> Pack:
    """Pool the statistics of several parts exactly; gamma and beta are averaged by count where they differ.

    Args:
        parts: Packs, their files, or steered models (shards, federated clients, checkpoints).
        counts: Number of images of each part, if the packs carry no element counts.

    Returns:
        A pack for `norm.load_pack`. If the parts come from networks with different weights (federated
        clients, checkpoints), it belongs to none of them, and loading it takes `force=True`.
    """
    packs = [_as_pack(part) for part in parts]
    if not packs:
        raise BadInput("there is nothing to merge; give at least one pack")
    if len({each.architecture for each in packs}) > 1:
        raise BadInput("packs of different architectures cannot be merged")
    if counts is not None and (len(counts) != len(packs) or min(counts) < 1):
        raise BadInput(f"counts needs a positive number of images for each of the {len(packs)} parts")
    layers = {}
    for name in packs[0].layers:
        shards = [each.layers[name] for each in packs]
        weights = list(counts) if counts is not None else [layer.elements for layer in shards]
        if min(weights) < 1:
            raise BadInput(
                f"{name} carries no element count; gather the packs on images (norm.gather, `trimtab pack "
                "save --data`), or give counts= (--counts)"
            )
        layers[name] = _pooled(shards, weights, known=counts is None)
    digests = {each.weights for each in packs}
    provenance: dict[str, Any] = {"merged": [dict(each.provenance) for each in packs]}
    sources = {each.provenance.get("source") for each in packs}
    if len(sources) == 1 and None not in sources:
        provenance["source"] = sources.pop()
    return Pack(layers, digests.pop() if len(digests) == 1 else "", provenance)


def averaging_error(
    packs: Sequence[Pack], merged: Pack, counts: Sequence[int] | None = None
) -> dict[str, float]:
    """Return, by layer, the largest relative error of averaging the variances of `packs` by count.

    Args:
        packs: The parts.
        merged: What `merge` made of them.
        counts: As given to `merge`.
    """
    errors = {}
    for name, layer in merged.layers.items():
        shards = [each.layers[name] for each in packs]
        n = torch.tensor(counts or [shard.elements for shard in shards], dtype=torch.float64)
        average = torch.stack([shard.var.double() for shard in shards]).T @ n / n.sum()  # (C,)
        exact = layer.var.double().clamp(min=1e-12)
        errors[name] = float(((average - exact) / exact).abs().max())
    return errors


def _pooled(parts: Sequence[LayerStatistics], counts: Sequence[int], known: bool) -> LayerStatistics:
    biased = [layer.var.double() * ((n - 1) / n) for layer, n in zip(parts, counts, strict=True)]
    union = pool([Moments(p.mean.double(), var, n) for p, var, n in zip(parts, biased, counts, strict=True)])
    return LayerStatistics(
        _average([layer.weight for layer in parts], counts),
        _average([layer.bias for layer in parts], counts),
        union.mean.to(parts[0].mean.dtype),
        union.unbiased.to(parts[0].mean.dtype),
        union.n if known else 0,
    )


def _average(values: Sequence[Tensor | None], counts: Sequence[int]) -> Tensor | None:
    given = [value for value in values if value is not None]
    if not given or all(torch.equal(value, given[0]) for value in given):
        return given[0] if given else None
    n = torch.tensor(counts, dtype=torch.float64)
    mean = torch.stack([value.double() for value in given]).T @ n / n.sum()
    return mean.to(given[0].dtype)


def _as_pack(part: Pack | nn.Module | str | Path) -> Pack:
    if isinstance(part, nn.Module):
        return pack(part)
    return part if isinstance(part, Pack) else read_pack(part)
