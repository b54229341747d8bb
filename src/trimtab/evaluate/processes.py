"""A run on several processes of this machine, started and joined here."""

from __future__ import annotations

import pickle
import signal
from collections.abc import Callable
from functools import partial
from multiprocessing import get_context
from threading import Thread
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from trimtab.evaluate.card import Card
from trimtab.evaluate.progress import Notify
from trimtab.types import BadInput

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Work = Callable[..., Card]
"""Called (fabric, model, notify) in every process; must be picklable."""


def in_processes(count: int, model: nn.Module, work: Work, notify: Notify | None) -> Card:
    """Start processes, relay the first one's progress, and return its card."""
    from lightning_fabric import Fabric
    from torch.multiprocessing import ProcessExitedException

    try:
        pickle.dumps(model)
    except Exception as why:  # whatever the model's parts raise
        raise BadInput(
            f"this model cannot be handed to other processes ({_first_line(why)}); define its classes at the "
            "top of a module, or start the processes yourself with torchrun"
        ) from None
    queue: Any = get_context("spawn").SimpleQueue()
    listener = Thread(target=_relay, args=(queue, notify), daemon=True)
    listener.start()
    device = next(model.parameters(), torch.empty(0)).device.type
    fabric = Fabric(accelerator=device, devices=count, strategy="ddp_spawn")
    # Fabric copies its arguments and results, and cannot copy frozen values, so it is given none.
    task = partial(_in_one_process, work=work, notify=queue.put if notify else None)
    try:
        card, problem = fabric.launch(task, model)
    except ProcessExitedException as ended:
        if ended.signal_name == "SIGINT":
            raise KeyboardInterrupt from None
        raise BadInput(
            f"one of the processes was lost ({_first_line(ended)}); what was finished is kept: run it again"
        ) from None
    finally:
        queue.put(None)
        listener.join()
    if problem:
        raise BadInput(problem)
    return Card.read(card)


def _in_one_process(fabric: Fabric, model: nn.Module, work: Work, notify: Notify | None) -> tuple[str, str]:
    """The card as text, or what was wrong with the input."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends silently, as the end of its parent does
    try:
        return work(fabric, model.to(fabric.device), notify).json(), ""
    except BadInput as problem:
        return "", str(problem)
    finally:
        # A process that ends while the group's threads still run may be aborted.
        torch.distributed.destroy_process_group()


def _relay(queue: Any, notify: Notify | None) -> None:
    while (status := queue.get()) is not None:
        if notify:
            notify(status)


def _first_line(problem: BaseException) -> str:
    return str(problem).partition("\n")[0] or type(problem).__name__
