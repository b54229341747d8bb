"""Images of an evaluation: how they were prepared, and the adversarial ones that were stored."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.data.sets import Images
from trimtab.evaluate.bn_modes import BNMode
from trimtab.evaluate.card import Row
from trimtab.evaluate.conditions import IMAGES, correct
from trimtab.evaluate.store import DEFAULT, Span, Store
from trimtab.measure.accuracy import Accuracy
from trimtab.models.pixels import spec_of
from trimtab.types import BadInput, InputSpec, renamed_arguments


def preprocessing(model: nn.Module, data: Images) -> dict[str, Any]:
    """Return how images become a network's input: size, resize, crop, and what the network normalizes by.

    Args:
        model: any classifier; one without an InputSpec normalizes by nothing.
        data: the images, resized and cropped as they are measured.
    """
    spec = spec_of(model) or InputSpec(data.spec.size, data.spec.channels)
    return replace(data.spec, mean=spec.mean, std=spec.std).to_json()


def images(row: Row, store: Store | str | Path = DEFAULT) -> Iterator[tuple[Span, Tensor]]:
    """Yield the adversarial images of a row, chunk by chunk, with their positions in the data."""
    store = store if isinstance(store, Store) else Store(store)
    files = store.chunks(row.key)
    batch = json.loads(dict(store.cells()).get(row.key, "{}")).get("batch")
    position = 0
    while position < row.n:
        for start, stop in _holding(files, position, row.n, batch):
            columns = store.read(files[start, stop])
            if columns is not None and IMAGES in columns:
                end = min(stop, row.n)
                yield (position, end), columns[IMAGES][position - start : end - start]
                position = end
                break
        else:
            raise BadInput(
                f"the images of {str(row.condition)!r} were not kept; run it again with keep_images=True"
            )


def _holding(spans: Iterable[Span], at: int, n: int, batch: int | None) -> list[Span]:
    """The chunks that hold the image `at` of n, the best first: of runs with other limits there are several.

    Images that influence each other (in batches of `batch`) are those of exactly one chunk.
    """
    if batch is not None:
        return [span for span in spans if span == (at, min(at + batch, n))]
    holding = [span for span in spans if span[0] <= at < span[1]]
    return sorted(holding, key=lambda span: (span[0] != at, span[1] > n, -span[1]))


@renamed_arguments(state="bn_mode")
def rescore(
    model: nn.Module,
    data: Images,
    row: Row,
    store: Store | str | Path = DEFAULT,
    bn_mode: BNMode | None = None,
) -> Accuracy:
    """Return the accuracy on a row's stored images; for the attacked model, this is the row's accuracy.

    Args:
        model: any classifier of these images.
        data: the set that the row was measured on.
        row: a row that was measured with `keep_images`.
        store: where its images are.
        bn_mode: that of the row if not given.
    """
    spec = spec_of(model)
    data = data.prepared_for(spec) if spec else data
    count = Accuracy()
    like = next(model.parameters(), torch.empty(0))

    def first(n: int) -> Tensor:
        return data.take(torch.arange(min(n, len(data)))).to_model(model).x

    with (bn_mode or row.bn_mode).activate(model, first) as module:
        for (start, stop), x in images(row, store):
            y = data.labels[start:stop]
            count += Accuracy.of(correct(module, x.to(like), y.to(like.device)))
    return count
