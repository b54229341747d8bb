"""LIGS and moved statistics as rows of a card: the numbers of `measure`, in every norm state."""

from __future__ import annotations

import copy

import pytest
import scipy.stats
import torch
from torch import Tensor, nn

from trimtab import measure, models, norm, rng
from trimtab.attacks import RandomSign
from trimtab.data import ImageSet, load
from trimtab.evaluate import Card, Clean, PerBatchMode, RunningMode, Shifted, Similar, Store, run
from trimtab.evaluate.records import Measure
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
    assert similar.measure is not None
    assert similar.measure.name == LIGS
    assert similar.measure.value == pytest.approx(float(expected.mean()), abs=1e-6)
    assert shifted.accuracy < clean.accuracy
    assert similar.accuracy == clean.accuracy


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_each_image_has_signs_of_its_own_so_that_the_interval_holds(
    net: nn.Module, images: ImageSet, store: Store, dtype: torch.dtype
) -> None:
    """Over seeds it scatters as images of a sample do; with one draw for all it did by 40 points."""
    one = copy.deepcopy(net).to(dtype)
    rows = run(one, images, [Shifted(0.2)], store, seed=range(6), batch_size=40, examine=False).rows
    mean = sum(row.accuracy for row in rows) / len(rows)
    chi2 = sum((row.accuracy - mean) ** 2 for row in rows) * len(images) / (mean * (1 - mean))
    assert chi2 < scipy.stats.chi2.ppf(0.999, len(rows) - 1)
    whole = run(one, images, [Shifted(0.2)], Store(store.path.parent / "again.sqlite"), examine=False).rows
    assert whole[0].correct == rows[0].correct  # whatever the batch


def test_images_have_the_signs_of_their_ids_and_coupled_batches_those_of_their_first(
    net: nn.Module, images: ImageSet, store: Store
) -> None:
    few = images.subset(slice(8, 24))
    x, y, ids = few.take(torch.arange(16))
    moved = norm.steer(norm.clone(net)).eval()

    def right(who: slice, first: int, source: str) -> Tensor:
        signs = RandomSign(0.2)(moved, seed=rng.key(5, int(ids[first])) >> 1)
        with torch.no_grad(), norm.use(moved, shift=signs, source=source, update=False):
            return moved(x[who]).argmax(1) == y[who]

    states = (RunningMode(), PerBatchMode())
    rows = run(net, few, [Shifted(0.2)], store, seed=5, bn_modes=states, chunk=8, examine=False).rows
    alone = sum(int(right(slice(i, i + 1), i, "running")) for i in range(16))
    together = sum(int(right(slice(i, i + 8), i, "batch").sum()) for i in (0, 8))
    assert [row.correct for row in rows] == [alone, together]


def test_a_network_that_takes_no_single_image_has_its_statistics_moved(
    net: nn.Module, images: ImageSet, store: Store
) -> None:
    class Squeezed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x).squeeze()

    rows = [run(one, images, [Shifted(0.2)], store, examine=False).rows[0] for one in (net, Squeezed())]
    assert rows[0].correct == rows[1].correct


def test_signs_are_alike_in_every_precision(net: nn.Module) -> None:
    steered = norm.steer(norm.clone(net))
    narrow, wide = RandomSign(0.2)(steered, seed=3), RandomSign(0.2)(steered.double(), seed=3)
    for name, shift in narrow.items():
        assert float(wide[name].mu.abs().max()) == 0.2
        assert torch.equal(shift.mu, wide[name].mu.float())
        assert torch.equal(shift.sigma, wide[name].sigma.float())


def test_statistics_that_move_by_nothing_change_nothing(
    net: nn.Module, images: ImageSet, store: Store
) -> None:
    states = (RunningMode(), PerBatchMode())
    rows = run(net, images, [Clean(), Shifted(0)], store, bn_modes=states, examine=False).rows
    assert [rows[0].correct, rows[2].correct] == [rows[1].correct, rows[3].correct]


def test_every_norm_state_has_its_own_and_the_scorecard_shows_a_number_not_a_share(
    net: nn.Module, images: ImageSet, store: Store
) -> None:
    card = run(net, images, SUITE, store, bn_modes=(RunningMode(), PerBatchMode()), examine=False)
    assert Card.read(card.json()) == card
    lines = {line.name: line.cells for line in tables.grid(card).lines}
    here, there = lines[str(Similar())]
    assert here is not None
    assert there is not None
    assert card.rows[2].measure is not None
    assert here.text == f"{card.rows[2].measure.value:.2f}"
    assert here.low < here.value < here.high
    assert here.value != there.value
    gap = tables.difference(here, there)
    assert tables.points(gap).startswith(f"{gap.value:+.2f} (".replace("-", "−"))
    assert "%" in str(lines["clean"][0])


def test_a_network_without_batch_norm_has_no_row_for_its_statistics(images: ImageSet, store: Store) -> None:
    card = run(models.load("zoo:sample-nobn"), images, SUITE, store, examine=False)
    assert [row.kind for row in card.rows] == ["clean", "gradients"]


def test_a_batch_norm_of_its_own_kind_is_left_alone_and_all_else_measured(
    images: ImageSet, store: Store
) -> None:
    class Own(nn.BatchNorm2d):
        def forward(self, input: Tensor) -> Tensor:
            return input + 1

    net = nn.Sequential(nn.Conv2d(1, 4, 3), Own(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10))
    assert not norm.steerable(net)
    card = run(net, images, SUITE, store, examine=False)
    assert [row.kind for row in card.rows] == ["clean", "gradients"]
    with pytest.raises(BadInput, match=r"BN mode running$"):
        run(net, images, [Shifted()], store, examine=False)


class Deaf(nn.Module):
    """Lets no gradient through to its input, or one of zero."""

    def __init__(self, cut: bool) -> None:
        super().__init__()
        self.z, self.cut = nn.Parameter(torch.arange(10.0)), cut

    def forward(self, x: Tensor) -> Tensor:
        return self.z + 0 * (x.detach() if self.cut else x).flatten(1).sum(1, keepdim=True)


@pytest.mark.parametrize("cut", [True, False])
def test_gradients_of_zero_have_no_similarity(cut: bool, images: ImageSet, store: Store) -> None:
    card = run(Deaf(cut), images, [Clean(), Similar()], store, examine=False)
    assert card.rows[1].measure == Measure(LIGS)
    assert card.rows[1].estimate is None
    assert [line.name for line in tables.grid(card).lines] == ["clean"]


def test_one_image_says_nothing_about_others(net: nn.Module, images: ImageSet, store: Store) -> None:
    (row,) = run(net, images, [Similar()], store, limit=1, examine=False).rows
    assert row.estimate is not None
    assert row.estimate[1:] == (-1.0, 1.0)


def test_odd_sizes_are_refused() -> None:
    for bad in (lambda: Similar(0), lambda: Shifted(1), lambda: Shifted("-1/5")):
        with pytest.raises(BadInput, match=r"longer than 0|0 to less than 1"):
            bad()
