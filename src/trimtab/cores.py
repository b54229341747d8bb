"""Work on all cores of a CPU: several threads with few cores each, instead of all cores for each operation.

A small network's operations are too short to be split: between any two of them the cores wait for each
other. Images that do not influence one another can be worked on side by side instead, a slice on every core,
which saves a quarter of the time of a ResNet-8's input gradients. Every thread has a twin of the network, so
that a forward pass may keep things on its modules.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue
from typing import TypeVar

import torch
from torch import Tensor, nn

MOST = 8
"""Threads that work side by side; Python's lock keeps more of them from gaining anything."""
FEWEST = 16
"""Images that are worth a thread of their own."""

Item = TypeVar("Item")
Found = TypeVar("Found")


def workers_for(net: nn.Module, x: Tensor) -> int:
    """How many threads may work on x (N, ...) side by side: one if that is not safe, or not worth it.

    A network that draws random numbers would draw them in the order in which the threads happen to run, and
    what a hook or a compiled network does with two passes at a time is not known.
    """
    workers = min(torch.get_num_threads(), MOST, len(x) // FEWEST)
    if x.device.type != "cpu" or workers < 2 or not _plain(net):
        return 1
    before = torch.get_rng_state()
    with torch.no_grad():
        net(x[:2])
    return workers if torch.equal(before, torch.get_rng_state()) else 1


def spread(
    run: Callable[[nn.Module, Item], Found], net: nn.Module, items: Sequence[Item], workers: int
) -> list[Found]:
    """[run(net, item) for item in items], `workers` of them at a time, each with a twin of the net."""
    if workers < 2:
        return [run(net, item) for item in items]
    twins: SimpleQueue[nn.Module] = SimpleQueue()
    twins.put(net)
    for _ in range(workers - 1):
        twins.put(twin(net))

    def one(item: Item) -> Found:
        own = twins.get()
        try:
            return run(own, item)
        finally:
            twins.put(own)

    with side_by_side(workers) as pool:
        return list(pool.map(one, items))


@contextmanager
def side_by_side(workers: int) -> Iterator[ThreadPoolExecutor]:
    """A pool of threads that share torch's cores, in the precision that is in force here."""
    cores = torch.get_num_threads()
    mixed, dtype = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")

    def begin() -> None:
        torch.set_num_threads(max(1, cores // workers))
        torch.set_autocast_enabled("cpu", mixed)
        torch.set_autocast_dtype("cpu", dtype)

    # glibc gives memory of a thread back, and takes it page by page, after every pass; once it has seen a
    # block of this size freed, it no longer does.
    torch.empty(31 << 20, dtype=torch.uint8)
    try:
        with ThreadPoolExecutor(workers, initializer=begin) as pool:
            yield pool
    finally:
        torch.set_num_threads(cores)  # threads to come take over what was set last, by whichever thread


def twin(net: nn.Module) -> nn.Module:
    """A copy with the same parameters: all else is its own."""
    return copy.deepcopy(net, {id(parameter): parameter for parameter in net.parameters()})


def _plain(net: nn.Module) -> bool:
    return not any(
        module._forward_hooks or module._forward_pre_hooks or "_orig_mod" in module._modules
        for module in net.modules()
    )
