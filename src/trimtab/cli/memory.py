"""Keep freed memory for the next pass, in the processes of commands."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc."""


def tune_allocator(large: bool = False) -> bool:
    """Let glibc keep freed memory for the next pass; return whether it does.

    A network's features are freed and allocated again in each step; returned to the system in between, their
    page faults take a tenth of a training step. Only Linux with glibc can keep them, and large allocations
    only with a recent version.

    Args:
        large: keep allocations above 32 MiB as well. That saves as much again where they have the same sizes
            in every step, as in training, and costs memory where they do not.
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
