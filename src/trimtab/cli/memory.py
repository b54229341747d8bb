"""Keep freed memory for the next pass, where the process is our own."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""glibc's names for them are M_TRIM_THRESHOLD and M_MMAP_THRESHOLD."""


def keep_freed(large: bool = False) -> bool:
    """Ask glibc not to give freed memory back to the system after every pass, only to fetch it again.

    A network's features are freed and needed again in each step, and fetching them page by page takes a tenth
    of a training step. Pieces above 32 MiB are given back all the same unless `large` ones are kept, too:
    that saves as much again where they come in the same sizes in every step, as in training, and costs
    memory where they do not. Tells whether it was done: only Linux with glibc can be asked to, and of large
    pieces only a recent one.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    # Never; any other number must be below 2 GiB, which a step of a large network exceeds.
    mallopt(_TRIM_THRESHOLD, -1)
    kept = bool(mallopt(_MMAP_THRESHOLD, 1 << 25))
    return bool(mallopt(_MMAP_THRESHOLD, 1 << 30)) if large else kept
