"""Measuring cells (model x condition x norm state x seed) in chunks that are committed one by one.

The data are cut into fixed chunks. Chunks that the store has are never measured again, whichever run measured
them, with however many images or processes. The processes of a Fabric take the missing chunks in turn, and
return columns to the first, which alone writes. Within a chunk any batch size gives the same result, since
randomness belongs to the image; where images of a batch influence each other, the chunk is the batch, and
its size part of the key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from trimtab import adapt, draws, keys
from trimtab.attacks import couples_batch
from trimtab.data.sets import Batch, Images
from trimtab.evaluate.conditions import IMAGES, Columns, Condition
from trimtab.evaluate.states import NormState, Running
from trimtab.evaluate.store import Span, Store
from trimtab.measure.accuracy import Accuracy
from trimtab.models import memory
from trimtab.types import BadInput

if TYPE_CHECKING:
    from lightning_fabric import Fabric

CHUNK = 256
"""Images that are committed together."""

Told = Callable[["Cell", int, Accuracy], None]
"""Told on the first process: the cell, how many of its images were just measured, and its count so far."""


@dataclass(frozen=True, eq=False)
class Subject:
    """What all cells of a run share."""

    model: nn.Module
    data: Images
    store: Store
    chunk: int = CHUNK
    batch_size: int = CHUNK
    keep_images: bool = False
    """Whether to store adversarial images."""
    fabric: Fabric | None = None
    identity: dict[str, str] = field(default_factory=dict)
    """What tells model and data from others; taken before the first pass, of which a model may keep some."""
    fits: dict[str, int] = field(default_factory=dict, init=False)
    """The batch size that memory has been found to allow, where that is less."""

    def __post_init__(self) -> None:
        if any(isinstance(module, adapt.Stream) for module in self.model.modules()):
            raise BadInput(
                "a stream learns from what it is shown, so its accuracy depends on what came before; "
                "evaluate its model, in the norm state PerBatch or Frozen"
            )
        if not self.identity:
            self.identity.update(model=keys.weights(self.model), data=self.data.digest)

    @cached_property
    def couples(self) -> bool:
        """Whether the model by itself lets images of a batch influence each other."""
        with chance(0, 0), Running().lend(self.model, lambda n: self.batch(0, n).x) as module:
            return couples_batch(module, self.batch(0, min(4, len(self.data))).x)

    def batch(self, start: int, stop: int) -> Batch:
        """These images, where and as wide as the model is."""
        return self.data.take(torch.arange(start, min(stop, len(self.data)))).beside(self.model)


@dataclass(frozen=True, eq=False)
class Cell:
    subject: Subject
    condition: Condition
    state: NormState
    seed: int
    n: int
    """The first n images of the data."""

    @cached_property
    def coupled(self) -> bool:
        return self.state.couples or self.condition.whole or self.subject.couples

    @cached_property
    def about(self) -> dict[str, Any]:
        """All that determines the result of an image; how many images are measured does not."""
        return {
            **self.subject.identity,
            "condition": keys.describe(self.condition),
            "state": keys.describe(self.state),
            "seed": self.seed,
            "batch": self.subject.chunk if self.coupled else None,
            **_autocast(),
        }

    @cached_property
    def key(self) -> str:
        return keys.digest(self.about)

    @property
    def spans(self) -> list[Span]:
        chunk = self.subject.chunk
        return [(start, min(start + chunk, self.n)) for start in range(0, self.n, chunk)]


def measure(cell: Cell, told: Told | None = None) -> Columns:
    """The columns of a cell, one value per image: from the store where it has them, else measured and stored.

    Every process of the Fabric calls this, and every one gets the columns. Images stay in the store.
    """
    subject, fabric = cell.subject, cell.subject.fabric
    world, rank = (fabric.world_size, fabric.global_rank) if fabric else (1, 0)
    ledger = _stored(cell) if rank == 0 else {}
    missing: list[Span] = _broadcast(fabric, [span for span in cell.spans if span not in ledger])
    count = sum((Accuracy.of(columns["correct"]) for columns in ledger.values()), Accuracy())
    if told and rank == 0:
        told(cell, 0, count)
    if missing:
        with cell.state.lend(subject.model, lambda n: _first(cell, n)) as module:
            for i in range(0, len(missing), world):
                turn = missing[i : i + world]
                found = _gather(fabric, _measured(cell, module, turn[rank]) if rank < len(turn) else None)
                problems = [one for one in found if isinstance(one, BadInput)]
                for span, columns in zip(turn, found, strict=False):
                    if isinstance(columns, BadInput):
                        continue
                    try:
                        if subject.keep_images:  # in place of one without images
                            subject.store.forget(cell.key, span)
                        subject.store.commit(cell.key, cell.about, span, columns)
                    except BadInput as failed:
                        problems.append(failed)
                        continue
                    ledger[span] = _without_images(columns)
                    count += Accuracy.of(columns["correct"])
                    if told:
                        told(cell, span[1] - span[0], count)
                # What one process cannot use, all of them stop at; the others' chunks are kept.
                problem = _broadcast(fabric, problems[0] if problems else None)
                if problem:
                    raise problem
    return _broadcast(fabric, _joined([ledger[span] for span in cell.spans]) if rank == 0 else None)


def _measured(cell: Cell, module: nn.Module, span: Span) -> Columns | BadInput:
    """One chunk, in batches of any size unless its images belong together; or why it cannot be measured."""
    start, stop = span
    subject = cell.subject

    def work(size: int) -> list[Columns]:
        with chance(cell.seed, start):
            found = [
                cell.condition.columns(module, subject.batch(at, min(at + size, stop)), cell.seed)
                for at in range(start, stop, size)
            ]
        if size < first:
            subject.fits["batch_size"] = size
        return found

    first = min(subject.fits.get("batch_size", subject.batch_size), stop - start)
    try:
        parts = work(stop - start) if cell.coupled else memory.halving(work, first)
    except BadInput as problem:
        alone = cell.coupled and stop - start == 1 < subject.chunk and start > 0
        tail = f"the last of {cell.n} images is a batch of its own: if that is why, take {start}"
        return BadInput(f"{problem} ({tail})") if alone else problem
    except (RuntimeError, MemoryError) as problem:
        if not memory.ran_out(problem):
            raise
        return BadInput(_too_large(cell, stop - start))
    columns = {name: values.detach().cpu() for name, values in _joined(parts).items()}
    return columns if cell.subject.keep_images else _without_images(columns)


def _too_large(cell: Cell, images: int) -> str:
    alone = cell.condition.kind == "health" and not cell.state.couples  # which has tried them one by one
    if cell.coupled and images > 1 and not alone:
        belong = f"a batch of {images} images does not fit into memory, and its images belong together"
        return f"{cell.condition}: {belong}; give a smaller chunk, which is then part of the result"
    return (
        f"{cell.condition}: not even one image at a time fits into memory; free some, or take another device"
    )


def _stored(cell: Cell) -> dict[Span, Columns]:
    """The chunks that the store has whole; of a longer one our part, unless images influence each other."""
    store, found = cell.subject.store, {}
    files = store.chunks(cell.key)
    for start, stop in cell.spans:
        longer = [span for span in files if not cell.coupled and span[0] == start < stop < span[1]]
        for span in ((start, stop), *longer):
            columns = store.read(files[span]) if span in files else None
            if not columns or any(len(one) != span[1] - span[0] for one in columns.values()):
                if span in files:  # and damaged
                    store.forget(cell.key, span)
            elif not _lacks_images(cell, columns):
                kept = _without_images(columns)
                found[start, stop] = {name: values[: stop - start] for name, values in kept.items()}
                break
    return found


def _lacks_images(cell: Cell, columns: Columns) -> bool:
    return cell.subject.keep_images and cell.condition.kind == "attack" and IMAGES not in columns


def _without_images(columns: Columns) -> Columns:
    return {name: values for name, values in columns.items() if name != IMAGES}


def _autocast() -> dict[str, str]:
    """The narrow format that a caller computes in, if any."""
    on = [at for at in ("cpu", "cuda") if torch.is_autocast_enabled(at)]
    return {"autocast": " ".join(f"{at} {torch.get_autocast_dtype(at)}" for at in on)} if on else {}


def _first(cell: Cell, n: int) -> Tensor:
    return cell.condition.shown(cell.subject.batch(0, n), cell.seed)


def _joined(parts: list[Columns]) -> Columns:
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


@contextmanager
def chance(seed: int, start: int) -> Iterator[None]:
    """Seed torch's own generator for a model that draws by itself, and leave it as it was."""
    with torch.random.fork_rng():
        torch.manual_seed(draws.key(seed, start))
        yield


def _broadcast(fabric: Fabric | None, value: Any) -> Any:
    return fabric.broadcast(value) if fabric and fabric.world_size > 1 else value


def _gather(fabric: Fabric | None, mine: Any) -> list[Any]:
    """What every process found, in rank order, on the first; nothing on the others."""
    if fabric is None or fabric.world_size == 1:
        return [mine]
    found: list[Any] | None = [None] * fabric.world_size if fabric.global_rank == 0 else None
    torch.distributed.gather_object(mine, found, dst=0)
    return found or []
