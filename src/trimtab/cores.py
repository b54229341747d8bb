"""Work on all cores of a CPU: several threads with few cores each, instead of all cores for each operation.

A small network's operations are too short to be split: between any two of them the cores wait for each
other. Images that do not influence one another can be worked on side by side instead, a slice on every
core, which saves a tenth of the time of a ResNet-8's attacks through autograd. A network whose passes say so
(`cores_each`) has more than one core a thread. Every thread has a twin of the network, so that a forward pass
may keep things on its modules.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Event
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from trimtab.copies import twin

MOST = 8
"""Threads that work side by side; Python's lock keeps more of them from gaining anything."""
FEWEST = 16
"""Images that are worth a thread of their own."""

LARGE = (1 << 25) - (1 << 16)
"""Bytes of the largest piece that glibc learns from: it must be smaller than 32 MiB, with what it adds."""

Item = TypeVar("Item")
Found = TypeVar("Found")


def workers_for(net: nn.Module, x: Tensor) -> int:
    """How many threads may work on x (N, ...) side by side: one if that is not safe, or not worth it.

    A network that draws random numbers, or counts what it sees, would do so in the order in which the threads
    happen to run, and what a hook or a compiled network does with two passes at a time is not known.
    """
    each = getattr(net, "cores_each", 1)
    workers = min(torch.get_num_threads() // each, MOST, len(x) // FEWEST)
    return workers if workers > 1 and x.device.type == "cpu" and _unhooked(net) and _pure(net, x[:2]) else 1


def spread(
    run: Callable[[nn.Module, Item], Found], net: nn.Module, items: Sequence[Item], workers: int
) -> list[Found]:
    """[run(net, item) for item in items], `workers` of them at a time, each with a twin of the net."""
    if workers < 2:
        return [run(net, item) for item in items]
    twins = [net, *(twin(net) for _ in range(workers - 1))]
    free: SimpleQueue[nn.Module] = SimpleQueue()
    given_up = Event()

    def one(item: Item) -> Found:
        own = free.get()
        try:
            return run(own, item)
        finally:
            free.put(own)

    def halt(*_: object) -> None:
        if given_up.is_set():
            raise RuntimeError("another thread failed, or the work was interrupted")

    hooks = [own.register_forward_pre_hook(halt) for own in twins]
    for own in twins:
        free.put(own)
    try:
        with side_by_side(workers) as pool:
            try:
                return list(pool.map(one, items))
            except BaseException:
                given_up.set()  # the others end at their next pass, and are waited for
                raise
    finally:
        for hook in hooks:
            hook.remove()


def keep_features() -> None:
    """Free one large piece of memory, from which glibc learns to keep smaller ones for the next pass.

    So does any program that frees one. Until then features are given back to the system after a pass and
    fetched again, page by page, in the next.
    """
    torch.empty(LARGE, dtype=torch.uint8, device="cpu")


@contextmanager
def side_by_side(workers: int) -> Iterator[ThreadPoolExecutor]:
    """A pool of threads that share torch's cores, in the precision that is in force here."""
    cores = torch.get_num_threads()
    mixed = [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda")]

    def begin() -> None:
        torch.set_num_threads(max(1, cores // workers))
        for device, enabled, dtype in mixed:
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)

    try:
        with ThreadPoolExecutor(workers, initializer=begin) as pool:
            yield pool
    finally:
        torch.set_num_threads(cores)  # threads to come take over what was set last, by whichever thread


def _unhooked(net: nn.Module) -> bool:
    return not any(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "_orig_mod" in module._modules
        or isinstance(module, torch.jit.ScriptModule)
        for module in net.modules()
    )


@torch.no_grad()
def _pure(net: nn.Module, x: Tensor) -> bool:
    return without_effect(net, lambda: net(x))[1]


def without_effect(net: nn.Module, run: Callable[[], Found]) -> tuple[Found, bool]:
    """What running passes of a network found, and whether they drew no random number and wrote to none of its
    parameters or buffers. What is drawn here, others will draw again."""
    chance, pythons, numpys = torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002
    before = _state(net)
    try:
        found = run()
        return found, torch.equal(chance, torch.get_rng_state()) and before == _state(net)
    finally:
        torch.set_rng_state(chance)
        random.setstate(pythons)
        np.random.set_state(numpys)  # noqa: NPY002


def _state(net: nn.Module) -> tuple[object, ...]:
    numpys = np.random.get_state(legacy=False)["state"]  # noqa: NPY002, what a network may draw from
    versions = [(id(value), value._version) for value in (*net.parameters(), *net.buffers())]
    return random.getstate(), numpys["key"].tobytes(), numpys["pos"], versions
