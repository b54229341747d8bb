"""Out of memory: recognize it whichever allocator raised it, and retry with half the batch.

Halving is for work on images that do not influence each other. Where they do (adapted statistics, attacks
through the batch), the batch is part of the result and the error belongs to the caller.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")

_MESSAGES = (
    "out of memory",
    "not enough memory",
    "can't allocate memory",
    "cannot allocate memory",
    "bad_alloc",
    "could not create a primitive",
)
"""Messages of a RuntimeError when memory ran out: the CPU allocator's, the C++ library's, oneDNN's."""
_NOT_MEMORY = ("could not create a primitive descriptor",)
"""oneDNN's message for an operation that it does not support, however much memory there is."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether this error means that memory ran out.

    >>> is_out_of_memory(RuntimeError("could not create a primitive")), is_out_of_memory(ValueError("bad"))
    (True, False)
    """
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    message = str(error).lower()
    named = any(words in message for words in _MESSAGES) and not any(
        words in message for words in _NOT_MEMORY
    )
    return isinstance(error, RuntimeError) and named


def retry_halved(work: Callable[[int], T], size: int) -> T:
    """Return `work(size)`; where memory runs out, start it again with half the size, down to 1.

    Args:
        work: Processes all of its images in batches of the size that it is given.
        size: The first batch size to try.
    """
    while True:
        try:
            return work(size)
        except (RuntimeError, MemoryError, OSError) as error:
            if size <= 1 or not is_out_of_memory(error):
                raise
        # Outside of the handler: its traceback would keep the tensors alive that did not fit.
        size = -(-size // 2)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def call_in_parts(call: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return `call(x)`, in one batch if that fits into memory, else in as few equal batches as do.

    Args:
        call: Maps a batch (N, ...) to N rows, each of which depends on its own image alone.
        x: The batch, (N, ...).
    """
    return retry_halved(lambda size: torch.cat([call(part) for part in x.split(size)]), max(1, len(x)))
