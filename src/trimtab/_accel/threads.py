"""Threads that share torch's cores, under the caller's autocast setting."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch


@contextmanager
def thread_pool(workers: int) -> Iterator[ThreadPoolExecutor]:
    """Yield a pool of `workers` threads, each with its fraction of torch's cores."""
    cores = torch.get_num_threads()
    autocast = [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda")]

    def initialize() -> None:
        torch.set_num_threads(max(1, cores // workers))
        for device, enabled, dtype in autocast:
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)

    try:
        with ThreadPoolExecutor(workers, initializer=initialize) as pool:
            yield pool
    finally:
        torch.set_num_threads(cores)  # new threads inherit what was set last, by whichever thread
