"""Test-time statistics: re-estimate what normalises, from the images that come.

    per_batch   each batch by its own statistics
    frozen      estimated once on given images, then fixed
    stream      a running estimate over batches, safe at batch size 1

The model given is never touched: each returns a module of its own.
"""

from trimtab.adapt.frozen import frozen, frozen_under_noise
from trimtab.adapt.per_batch import PerBatch, per_batch
from trimtab.adapt.stream import Stream, stream

__all__ = ["PerBatch", "Stream", "frozen", "frozen_under_noise", "per_batch", "stream"]
