"""Transferability of features: how well target networks classify images made with a source network.

Images are constructed with each source: by default with the same penultimate features as a reference image,
as in D_R and D_NR (LIGS paper, table 3 and appendix B.3). A target is scored against the source's own
prediction on the constructed image, since the true label would limit the score of a weak source.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from trimtab.construct.build import Construction
from trimtab.construct.features import FeatureMatch
from trimtab.data import Images
from trimtab.runtime import guard


def transfer(
    sources: Mapping[str, nn.Module],
    targets: Mapping[str, nn.Module],
    images: Images,
    method: Construction | None = None,
    batch_size: int = 250,
    seed: int = 0,
) -> list[dict[str, float | str]]:
    """Return, per source and target, the accuracy of the target on the images of the source.

    Args:
        sources: Networks that the images are constructed with, by name.
        targets: Networks that classify them.
        images: The set whose features are extracted.
        method: The construction, which also labels its images; by default `FeatureMatch(label="network")`.
        batch_size: Images per batch.
        seed: Seed of the construction.
    """
    method = method or FeatureMatch(label="network")
    counts = {(s, t): 0 for s in sources for t in targets}
    for batch in images.batches(batch_size):
        for source, model in sources.items():
            x, label = method(model, batch.to_model(model), images, seed)
            for target, classifier in targets.items():
                with guard(classifier), torch.no_grad():
                    counts[source, target] += int((classifier(x).argmax(1) == label).sum())
    n = len(images)
    return [{"source": s, "target": t, "accuracy": count / n} for (s, t), count in counts.items()]
