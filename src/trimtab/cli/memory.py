"""Keep freed memory for the next pass, where the process is our own."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4
"""glibc's names for them begin with M."""


def keep_freed() -> None:
    """Ask glibc not to give freed memory back to the system after every pass, only to fetch it again.

    A network's features are freed and needed again in each step. Fetching them page by page takes a tenth of
    a training step; of a large tensor it takes longer than what a norm layer does with it. Elsewhere than on
    Linux with glibc nothing happens.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        if not mallopt(_MMAP_THRESHOLD, 1 << 30):
            mallopt(_MMAP_MAX, 0)  # an older one, which takes no such size
        mallopt(_TRIM_THRESHOLD, (1 << 31) - 1)
