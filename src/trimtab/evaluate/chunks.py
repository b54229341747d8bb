"""One chunk of a cell: measured in batches that fit into memory, or read from the store."""

from __future__ import annotations

import torch
from torch import nn

from trimtab.evaluate.cells import Cell, torch_seeded
from trimtab.evaluate.conditions import IMAGES, Columns
from trimtab.evaluate.store import Span
from trimtab.runtime import is_out_of_memory, retry_halved
from trimtab.types import BadInput


def measured(cell: Cell, module: nn.Module, span: Span) -> Columns | BadInput:
    """Return the columns of a chunk, or why it cannot be measured.

    Args:
        cell: the cell that the chunk is a part of.
        module: its model, in its BN mode.
        span: the positions of the chunk's images in the data.
    """
    start, stop = span
    subject = cell.subject

    def in_batches(size: int) -> list[Columns]:
        with torch_seeded(cell.seed, start):
            parts = [
                cell.condition.columns(module, subject.batch(first, min(first + size, stop)), cell.seed)
                for first in range(start, stop, size)
            ]
        if size < largest:
            subject.fits["batch_size"] = size
        return parts

    largest = min(subject.fits.get("batch_size", subject.batch_size), stop - start)
    try:
        parts = in_batches(stop - start) if cell.coupled else retry_halved(in_batches, largest)
    except BadInput as problem:
        single = cell.coupled and stop - start == 1 < subject.chunk and start > 0
        hint = f"the last of {cell.n} images is a batch of its own: if that is why, take {start}"
        return BadInput(f"{problem} ({hint})") if single else problem
    except (RuntimeError, MemoryError, OSError) as problem:
        if not is_out_of_memory(problem):
            raise
        return BadInput(_too_large(cell, stop - start))
    columns = {name: values.detach().cpu() for name, values in joined(parts).items()}
    return columns if subject.keep_images else without_images(columns)


def stored(cell: Cell) -> dict[Span, Columns]:
    """Return the chunks of a cell that the store has, without images.

    The beginning of a longer chunk counts as well, unless images influence each other. Damaged files are
    forgotten; a chunk without images counts as missing where the cell keeps them.
    """
    store, chunks = cell.subject.store, {}
    files = store.chunks(cell.key)
    for start, stop in cell.spans:
        longer = [span for span in files if not cell.coupled and span[0] == start < stop < span[1]]
        for span in ((start, stop), *longer):
            columns = store.read(files[span]) if span in files else None
            if not columns or any(len(column) != span[1] - span[0] for column in columns.values()):
                if span in files:  # and damaged
                    store.forget(cell.key, span)
            elif not _lacks_images(cell, columns):
                kept = without_images(columns)
                chunks[start, stop] = {name: values[: stop - start] for name, values in kept.items()}
                break
    return chunks


def joined(parts: list[Columns]) -> Columns:
    """Return the columns of several parts, concatenated."""
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def without_images(columns: Columns) -> Columns:
    """Return the columns without adversarial images."""
    return {name: values for name, values in columns.items() if name != IMAGES}


def _lacks_images(cell: Cell, columns: Columns) -> bool:
    return cell.subject.keep_images and cell.condition.kind == "attack" and IMAGES not in columns


def _too_large(cell: Cell, images: int) -> str:
    """What to do where memory ran out; the health of uncoupled images was already tried one by one."""
    one_by_one = cell.condition.kind == "health" and not cell.bn_mode.couples
    if cell.coupled and images > 1 and not one_by_one:
        belong = f"a batch of {images} images does not fit into memory, and its images belong together"
        return f"{cell.condition}: {belong}; give a smaller chunk, which is then part of the result"
    return (
        f"{cell.condition}: not even one image at a time fits into memory; free some, or take another device"
    )
