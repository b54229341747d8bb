"""Adversarial images that were kept: load them, and let any model judge them again."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from trimtab.data.sets import Images
from trimtab.evaluate.card import Row
from trimtab.evaluate.conditions import IMAGES, correct
from trimtab.evaluate.states import NormState, Running
from trimtab.evaluate.store import DEFAULT, Span, Store
from trimtab.measure.accuracy import Accuracy
from trimtab.types import BadInput


def images(row: Row, store: Store | str | Path = DEFAULT) -> Iterator[tuple[Span, Tensor]]:
    """The adversarial images of a row, chunk by chunk, with their positions in the data."""
    store = store if isinstance(store, Store) else Store(store)
    files = store.chunks(row.key)
    batch = json.loads(dict(store.cells()).get(row.key, "{}")).get("batch")
    at = 0
    while at < row.n:
        for start, stop in _holding(files, at, row.n, batch):
            columns = store.read(files[start, stop])
            if columns is not None and IMAGES in columns:
                end = min(stop, row.n)
                yield (at, end), columns[IMAGES][at - start : end - start]
                at = end
                break
        else:
            raise BadInput(
                f"the images of {row.condition!r} were not kept; run it again with keep_images=True"
            )


def _holding(spans: Iterable[Span], at: int, n: int, batch: int | None) -> list[Span]:
    """The chunks that hold the image `at` of n, the best first: of runs with other limits there are several.

    Images that influence each other (in batches of `batch`) are those of exactly one chunk.
    """
    if batch is not None:
        return [span for span in spans if span == (at, min(at + batch, n))]
    holding = [span for span in spans if span[0] <= at < span[1]]
    return sorted(holding, key=lambda span: (span[0] != at, span[1] > n, -span[1]))


def rescore(
    model: nn.Module,
    data: Images,
    row: Row,
    store: Store | str | Path = DEFAULT,
    state: NormState | None = None,
) -> Accuracy:
    """The accuracy on a row's kept images; of the model that was attacked, the accuracy that was printed.

    `state` is the norm state that the row was measured in.
    """
    state = state or Running()
    if str(state) != row.state:
        raise BadInput(f"the row was measured {row.state!r}; give that norm state, not {str(state)!r}")
    count = Accuracy()
    like = next(model.parameters(), torch.empty(0))

    def shown(n: int) -> Tensor:
        return data.take(torch.arange(min(n, len(data)))).beside(model).x

    with state.lend(model, shown) as module:
        for (start, stop), x in images(row, store):
            y = data.labels[start:stop]
            count += Accuracy.of(correct(module, x.to(like), y.to(like.device)))
    return count
