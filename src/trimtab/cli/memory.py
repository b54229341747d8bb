"""Keep freed memory for the next pass, where the process is our own."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""glibc's names for them are M_TRIM_THRESHOLD and M_MMAP_THRESHOLD."""


def keep_freed() -> None:
    """Ask glibc not to give freed memory back to the system after every pass, only to fetch it again.

    A network's features are freed and needed again in each step; fetching them page by page takes a tenth of
    a training step. Elsewhere than on Linux with glibc nothing happens.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, 1 << 25)  # the most that it takes
        mallopt(_TRIM_THRESHOLD, (1 << 31) - 1)
