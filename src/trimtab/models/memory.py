"""When memory runs out: how that is told from other trouble, and how to go on with fewer images at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")

_WORDS = ("not enough memory", "can't allocate memory", "cannot allocate memory", "out of memory")
"""How allocators say it: the CPU's raises a plain RuntimeError."""


def ran_out(problem: BaseException) -> bool:
    """Whether this error means that memory ran out."""
    if isinstance(problem, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(problem, RuntimeError) and any(words in str(problem).lower() for words in _WORDS)


def halving(work: Callable[[int], T], size: int) -> T:
    """`work(size)`; where memory runs out, the same from its start with half the size, down to 1."""
    while True:
        try:
            return work(size)
        except (RuntimeError, MemoryError) as problem:
            if size <= 1 or not ran_out(problem):
                raise
        # Outside of the handler, whose traceback would hold on to the tensors that were too many.
        size = -(-size // 2)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def in_parts(call: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """`call(x)`, in one piece if that fits into memory, else in as few as do."""
    return halving(lambda size: torch.cat([call(part) for part in x.split(size)]), max(1, len(x)))
