"""What watches a run from outside: callbacks, the progress bar, TensorBoard; and what stops it.

A callback is any callable that takes an `Event`. What it returns for an "epoch" is added to its metrics:

    fit(model, data, recipe, callbacks=[lambda e: {"ligs": ...} if e.kind == "epoch" else None])
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.train.base import quiet
from trimtab.types import BadInput


@dataclass(frozen=True)
class Event:
    kind: str
    """step, epoch or end."""
    step: int
    """Steps done."""
    steps: int
    """Steps in all."""
    epoch: int
    """The epoch this belongs to, from 0."""
    values: Mapping[str, float]
    """Losses of the step, or metrics of the epoch."""
    model: nn.Module = field(repr=False)


Callback = Callable[[Event], Mapping[str, float] | None]


class Diverged(BadInput):
    """A loss was not finite. The last good checkpoint is on disk."""


class Stopped(SystemExit):
    """A signal asked the run to end; its state was saved first."""

    def __init__(self, code: int, folder: Path) -> None:
        super().__init__(code)
        self.folder = folder
        """Of the run, to resume it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.code, self.folder)


@contextmanager
def signals() -> Iterator[list[int]]:
    """A list that the first SIGTERM or SIGINT is put into, instead of ending the process at once."""
    caught: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return

    def note(number: int, frame: Any) -> None:
        caught.append(number)
        signal.signal(number, before[signal.Signals(number)])  # a second one ends it

    before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@torch.no_grad()
def culprit(model: nn.Module, x: Tensor) -> str:
    """Which layer went first, in a clause: by its weights, its output, or its gradient."""
    for name, p in model.named_parameters():
        if not bool(p.isfinite().all()):
            return f"the weights of {name!r} are no longer finite"
    order: list[str] = []
    hooks = []
    for name, module in model.named_modules():
        if not list(module.children()):
            hooks.append(module.register_forward_hook(lambda m, i, out, name=name: _note(order, name, out)))
    try:
        with quiet(model):
            model(x)
    finally:
        for hook in hooks:
            hook.remove()
    if order:
        return f"{order[0]!r} was the first layer to put out values that are not finite"
    for name, p in reversed(list(model.named_parameters())):
        if p.grad is not None and not bool(p.grad.isfinite().all()):
            return f"{name!r} was the first to get a gradient that is not finite"
    return "all layers are finite on the clean images, so the loss itself overflowed"


def _note(order: list[str], name: str, out: Any) -> None:
    if isinstance(out, Tensor) and out.is_floating_point() and not bool(out.isfinite().all()):
        order.append(name)


@contextmanager
def progress_bar(title: str = "training", shown: bool = True) -> Iterator[Callback]:
    """A callback that shows steps, losses and the time left on stderr: stdout is for results.

    Where nobody watches (a file, a pipe), it writes a line for every epoch instead.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        TextColumn("{task.fields[now]}"),
    )  # fmt: skip
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not shown or not console.is_terminal) as bar:
        task = bar.add_task(title, total=None, now="")

        def show(event: Event) -> None:
            told = [
                f"{name} {value:.3f}" for name, value in event.values.items() if name not in ("epoch", "step")
            ]
            now = "  ".join([f"epoch {event.epoch + 1}", *told])
            bar.update(task, total=event.steps, completed=event.step, now=now)
            if shown and not console.is_terminal and event.kind == "epoch":
                console.print(
                    f"{title}: step {event.step} of {event.steps}, {now}", markup=False, soft_wrap=True
                )

        yield show


def tensorboard(folder: str | Path) -> Callback:
    """A callback that writes every epoch's metrics for TensorBoard (an extra of the installation)."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise BadInput("TensorBoard is not installed; pip install 'trimtab[tensorboard]'") from None
    writer = SummaryWriter(str(folder))

    def write(event: Event) -> None:
        if event.kind == "epoch":
            for name, value in event.values.items():
                writer.add_scalar(name, value, event.epoch)
            writer.flush()

    return write
