"""Transferability of features: what one network put into an image, can another read it?

Features are extracted from each source as in D_rand (a small targeted step), and each target is asked for the
new label. Rows are sources, columns targets (LIGS paper, table 3).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from trimtab.attacks.guard import guard
from trimtab.construct.labels import Relabelled
from trimtab.data import Images


def transfer(
    sources: Mapping[str, nn.Module],
    targets: Mapping[str, nn.Module],
    images: Images,
    method: Relabelled | None = None,
    batch_size: int = 250,
    seed: int = 0,
) -> list[dict[str, float | str]]:
    """The share of a source's images that each target takes for their new label."""
    method = method or Relabelled()
    counts = {(s, t): 0 for s in sources for t in targets}
    for batch in images.batches(batch_size):
        for source, model in sources.items():
            x, label = method(model, batch.beside(model), images, seed)
            for target, reader in targets.items():
                with guard(reader), torch.no_grad():
                    counts[source, target] += int((reader(x).argmax(1) == label).sum())
    n = len(images)
    return [{"source": s, "target": t, "accuracy": count / n} for (s, t), count in counts.items()]
