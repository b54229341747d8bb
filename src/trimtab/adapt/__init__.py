"""Test-time adaptation: re-estimate the normalization statistics on the images at hand.

    per_batch   each batch normalized by its own statistics
    frozen      estimated once on given images, then fixed
    Monitor     detects drift of the statistics during ordinary inference
    stream      a running estimate over batches, safe at batch size 1

The given model is never modified: each function returns a new module.
"""

from trimtab.adapt.frozen import frozen, frozen_under_noise
from trimtab.adapt.monitor import Monitor, Status
from trimtab.adapt.per_batch import PerBatch, per_batch
from trimtab.adapt.stream import Stream, stream

__all__ = ["Monitor", "PerBatch", "Status", "Stream", "frozen", "frozen_under_noise", "per_batch", "stream"]
