"""Transferability of features: what one network put into an image, can another read it?

Features are extracted from each source by any construction: by matching its penultimate feature, as D_R and
D_NR are made (LIGS paper, table 3 and appendix B.3), unless another is given. Each target is then asked for
the label that they carry. Rows are sources, columns targets.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from trimtab.attacks.guard import guard
from trimtab.construct.build import Construction
from trimtab.construct.features import FeatureMatch
from trimtab.data import Images


def transfer(
    sources: Mapping[str, nn.Module],
    targets: Mapping[str, nn.Module],
    images: Images,
    method: Construction | None = None,
    batch_size: int = 250,
    seed: int = 0,
) -> list[dict[str, float | str]]:
    """The share of a source's images that each target reads as they are meant."""
    method = method or FeatureMatch()
    counts = {(s, t): 0 for s in sources for t in targets}
    for batch in images.batches(batch_size):
        for source, model in sources.items():
            x, label = method(model, batch.beside(model), images, seed)
            for target, reader in targets.items():
                with guard(reader), torch.no_grad():
                    counts[source, target] += int((reader(x).argmax(1) == label).sum())
    n = len(images)
    return [{"source": s, "target": t, "accuracy": count / n} for (s, t), count in counts.items()]
