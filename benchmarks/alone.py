"""A contestant in a process of its own, as its users run it: nobody else has touched its memory.

What an allocator has learnt from one contestant changes what another costs by up to a third, both ways.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import cache
from multiprocessing import get_context
from typing import Any

import torch

from benchmarks.race import Run

Maker = Callable[..., Run]


@contextmanager
def alone(maker: Maker, *arguments: Any, process: Executor | None = None) -> Iterator[Callable[[], Any]]:
    """What `maker(*arguments)` makes, run in a process of its own; what it returns or raises arrives here.

    A `process` that is given is shared with other contestants: for smoke runs, in which nothing is compared.
    """
    with nullcontext(process) if process else fresh_process() as worker:
        yield lambda: worker.submit(_turn, maker, *arguments).result()


def fresh_process() -> ProcessPoolExecutor:
    """Start one Python process, with as many threads of torch as this one has."""
    threads = torch.get_num_threads()
    return ProcessPoolExecutor(1, get_context("spawn"), initializer=_begin, initargs=(threads,))


def _begin(threads: int) -> None:
    warnings.simplefilter("ignore")  # the peers', about what they are built on
    torch.set_num_threads(threads)


def _turn(maker: Maker, *arguments: Any) -> Any:
    return _made(maker, *arguments)()


@cache
def _made(maker: Maker, *arguments: Any) -> Run:
    """In the child, which makes one contestant and keeps it."""
    return maker(*arguments)
