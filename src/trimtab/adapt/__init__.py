"""Test-time adaptation: re-estimate the normalization statistics on the images at hand.

    per_batch   each batch normalized by its own statistics
    frozen      estimated once on given images, then fixed
    Monitor     detects drift of the statistics during ordinary inference
    route       chooses between branches, or packs, without labels
    stream      a running estimate over batches, safe at batch size 1
    tent        gamma and beta adapted to each batch by the entropy of its predictions

The given model is never modified: each function returns a new module.
"""

from trimtab.adapt.frozen import frozen, frozen_under_noise
from trimtab.adapt.monitor import Monitor, Status
from trimtab.adapt.per_batch import PerBatch, per_batch
from trimtab.adapt.router import Router, route
from trimtab.adapt.stream import Stream, stream
from trimtab.adapt.tent import Tent, tent

__all__ = [
    "Monitor", "PerBatch", "Router", "Status", "Stream", "Tent", "frozen", "frozen_under_noise", "per_batch",
    "route", "stream", "tent",
]  # fmt: skip
