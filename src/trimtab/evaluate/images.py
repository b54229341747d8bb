"""Adversarial images that were kept: load them, and let any model judge them again."""

from __future__ import annotations

from collections.abc import Iterator
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
    files = {span: file for span, file in store.chunks(row.key).items() if span[1] <= row.n}
    for span, file in files.items():
        columns = store.read(file)
        if columns is None or IMAGES not in columns:
            raise BadInput(
                f"the images of {row.condition!r} were not kept; run it again with keep_images=True"
            )
        yield span, columns[IMAGES]


def rescore(
    model: nn.Module,
    data: Images,
    row: Row,
    store: Store | str | Path = DEFAULT,
    state: NormState | None = None,
) -> Accuracy:
    """The accuracy on a row's kept images; of the model that was attacked, the accuracy that was printed."""
    count = Accuracy()
    like = next(model.parameters(), torch.empty(0))
    with (state or Running()).lend(model, lambda n: data.take(torch.arange(n)).x) as module:
        for (start, stop), x in images(row, store):
            y = data.labels[start:stop]
            count += Accuracy.of(correct(module, x.to(like), y.to(like.device)))
    if count.n != row.n:
        raise BadInput(
            f"{row.n} images were scored but {count.n} are kept; run it again with keep_images=True"
        )
    return count
