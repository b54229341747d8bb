"""Measurements on any classifier: values per image or per set; the model is left unchanged.

accuracy           counts with exact intervals            corruption_error  mCE against a named baseline
ligs               local input-gradient similarity         landscape         loss range and smoothness
statistics         branches, batches, tolerance to shifts  gradients         loss gradients as images
spectra            Fourier spectra
"""

import warnings
from typing import Any

from trimtab.measure.accuracy import Accuracy, accuracy, clopper_pearson, top_k
from trimtab.measure.gradients import as_picture, loss_gradients
from trimtab.measure.landscape import Landscape, landscape
from trimtab.measure.ligs import PROBES, Average, ligs, usefulness
from trimtab.measure.spectra import high_frequency_fraction, spectrum
from trimtab.measure.statistics import batch_against_running, branch_statistics, tolerance

__all__ = [
    "PROBES", "Accuracy", "Average", "Landscape", "accuracy", "as_picture", "batch_against_running",
    "branch_statistics", "clopper_pearson", "high_frequency_fraction", "landscape", "ligs", "loss_gradients",
    "spectrum", "tolerance", "top_k", "usefulness",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "high_share":
        message = "measure.high_share is now measure.high_frequency_fraction"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return high_frequency_fraction
    raise AttributeError(f"module 'trimtab.measure' has no attribute {name!r}")
