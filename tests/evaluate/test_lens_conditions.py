"""LIGS and moved statistics as rows of a card: the numbers of `measure`, in every norm state."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from trimtab import measure, models, norm
from trimtab.data import ImageSet, load
from trimtab.evaluate import Card, Clean, PerBatch, Running, Shifted, Similar, Store, run
from trimtab.report import tables
from trimtab.types import BadInput

LIGS = "LIGS"
SUITE = [Clean(), Shifted(0.2), Similar()]


@pytest.fixture(scope="module")
def images() -> ImageSet:
    return load("sample", "test").subset(slice(0, 96))


@pytest.fixture(scope="module")
def net() -> nn.Module:
    return models.load("zoo:sample-standard").eval()


def test_the_rows_hold_what_the_measurements_say(net: nn.Module, images: ImageSet, store: Store) -> None:
    card = run(net, images, SUITE, store, batch_size=40, examine=False)
    x, y, ids = images.take(torch.arange(96))
    clean, shifted, similar = card.rows
    expected = measure.ligs(net, x, y, ids=ids)
    assert similar.figures[LIGS] == pytest.approx(float(expected.mean()), abs=1e-6)
    rows = measure.tolerance(norm.steer(norm.copied(net)), [(x, y)], eps=[0.2], attacks=["random signs"])
    assert shifted.accuracy == pytest.approx(rows[0]["accuracy"])
    assert shifted.accuracy < clean.accuracy
    assert similar.accuracy == clean.accuracy


def test_statistics_that_move_by_nothing_change_nothing(
    net: nn.Module, images: ImageSet, store: Store
) -> None:
    states = (Running(), PerBatch())
    rows = run(net, images, [Clean(), Shifted(0)], store, states=states, examine=False).rows
    assert [rows[0].correct, rows[2].correct] == [rows[1].correct, rows[3].correct]


def test_every_norm_state_has_its_own_and_the_scorecard_shows_a_number_not_a_share(
    net: nn.Module, images: ImageSet, store: Store
) -> None:
    card = run(net, images, SUITE, store, states=(Running(), PerBatch()), examine=False)
    assert Card.read(card.json()) == card
    lines = {line.name: line.cells for line in tables.grid(card).lines}
    here, there = lines[str(Similar())]
    assert here is not None
    assert there is not None
    assert here.text == f"{card.rows[2].figures[LIGS]:.2f}"
    assert here.low < here.value < here.high
    assert here.value != there.value
    gap = tables.difference(here, there)
    assert tables.points(gap).startswith(f"{gap.value:+.2f} (".replace("-", "−"))
    assert "%" in str(lines["clean"][0])


def test_a_network_without_batch_norm_has_no_row_for_its_statistics(images: ImageSet, store: Store) -> None:
    card = run(models.load("zoo:sample-nobn"), images, SUITE, store, examine=False)
    assert [row.kind for row in card.rows] == ["clean", "gradients"]


def test_gradients_of_zero_have_no_similarity(images: ImageSet, store: Store) -> None:
    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.z = nn.Parameter(torch.arange(10.0))

        def forward(self, x: Tensor) -> Tensor:
            return self.z + 0 * x.flatten(1).sum(1, keepdim=True)

    card = run(Constant(), images, [Similar()], store, examine=False)
    assert card.rows[0].figures == {}


def test_odd_sizes_are_refused() -> None:
    for bad in (lambda: Similar(0), lambda: Shifted(1), lambda: Shifted("-1/5")):
        with pytest.raises(BadInput, match=r"longer than 0|0 to less than 1"):
            bad()
