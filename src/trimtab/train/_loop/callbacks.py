"""Callbacks, the progress bar, TensorBoard; signals and losses that end a run.

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

from trimtab.train.base import keep_statistics
from trimtab.types import BadInput


@dataclass(frozen=True)
class Event:
    """What a callback gets.

    Args:
        kind: step, epoch or end.
        step: Number of steps done.
        steps: Number of steps of the run.
        epoch: Current epoch, from 0.
        values: Losses of the step, or metrics of the epoch.
        model: The network.
    """

    kind: str
    step: int
    steps: int
    epoch: int
    values: Mapping[str, float]
    model: nn.Module = field(repr=False)


Callback = Callable[[Event], Mapping[str, float] | None]


class Diverged(BadInput):
    """Raised if a loss is not finite; the last good checkpoint is on disk."""


class Stopped(SystemExit):
    """Raised after a signal to end the run, once its state is saved.

    Args:
        code: Exit code.
        folder: Folder of the run, to resume it.
    """

    def __init__(self, code: int, folder: Path) -> None:
        super().__init__(code)
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.code, self.folder)


@contextmanager
def signals() -> Iterator[list[int]]:
    """Yield a list that collects the first SIGTERM or SIGINT, which then does not end the process at once."""
    caught: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return

    def catch(number: int, frame: Any) -> None:
        caught.append(number)
        signal.signal(number, before[signal.Signals(number)])  # the second one ends the process

    before = {number: signal.signal(number, catch) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@torch.no_grad()
def first_nonfinite(model: nn.Module, x: Tensor) -> str:
    """Describe the first layer that is not finite: in its weights, its output, or its gradient."""
    for name, p in model.named_parameters():
        if not bool(p.isfinite().all()):
            return f"the weights of {name!r} are no longer finite"
    names: list[str] = []
    hooks = []
    for name, module in model.named_modules():
        if not list(module.children()):
            hooks.append(
                module.register_forward_hook(lambda m, i, out, name=name: _record_nonfinite(names, name, out))
            )
    try:
        with keep_statistics(model):
            model(x)
    finally:
        for hook in hooks:
            hook.remove()
    if names:
        return f"{names[0]!r} was the first layer whose output is not finite"
    for name, p in reversed(list(model.named_parameters())):
        if p.grad is not None and not bool(p.grad.isfinite().all()):
            return f"{name!r} was the first parameter whose gradient is not finite"
    return "all layers are finite on the clean images, so the loss itself overflowed"


def _record_nonfinite(names: list[str], name: str, out: Any) -> None:
    if isinstance(out, Tensor) and out.is_floating_point() and not bool(out.isfinite().all()):
        names.append(name)


@contextmanager
def progress_bar(title: str = "training", shown: bool = True) -> Iterator[Callback]:
    """Yield a callback that shows steps, losses and the time left on stderr.

    If stderr is not a terminal (a file, a pipe), it writes a line for every epoch instead.

    Args:
        title: Text before the bar.
        shown: Whether anything is shown.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:3.0f} %"),
        TimeRemainingColumn(), TextColumn("left  {task.fields[now]}"),
    )  # fmt: skip
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not shown or not console.is_terminal) as bar:
        task = bar.add_task(title, total=None, now="")

        def show(event: Event) -> None:
            values = [
                f"{name} {value:.3f}" for name, value in event.values.items() if name not in ("epoch", "step")
            ]
            now = "  ".join([f"epoch {event.epoch + 1}", *values])
            bar.update(task, total=event.steps, completed=event.step, now=now)
            if shown and not console.is_terminal and event.kind == "epoch":
                console.print(
                    f"{title}: step {event.step} of {event.steps}, {now}", markup=False, soft_wrap=True
                )

        yield show


def tensorboard(folder: str | Path) -> Callback:
    """Return a callback that writes the metrics of every epoch for TensorBoard (an optional dependency).

    Args:
        folder: Folder of the log.
    """
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
