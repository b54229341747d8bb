"""Accuracy: exact merging, and intervals against the binomial law itself."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from trimtab import measure, norm
from trimtab.measure.accuracy import Accuracy, accuracy, clopper_pearson, top_k
from trimtab.models import wrap
from trimtab.types import BadInput


def binomial_tail(k: int, n: int, p: float) -> float:
    """P(X >= k), summed term by term."""
    return sum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k, n + 1))


@pytest.mark.parametrize(("k", "n"), [(1, 10), (7, 20), (30, 64), (63, 64)])
def test_the_interval_ends_where_the_binomial_tails_hold_half_of_alpha(k: int, n: int) -> None:
    low, high = clopper_pearson(k, n, 0.95)
    assert binomial_tail(k, n, low) == pytest.approx(0.025, abs=1e-9)
    assert 1 - binomial_tail(k + 1, n, high) == pytest.approx(0.025, abs=1e-9)


def test_the_interval_of_nothing_and_of_everything_reaches_the_end() -> None:
    assert clopper_pearson(0, 10)[0] == 0.0
    assert clopper_pearson(10, 10)[1] == 1.0
    assert clopper_pearson(0, 10)[1] == pytest.approx(1 - 0.025 ** (1 / 10))  # (1 - p)^n = alpha / 2
    assert clopper_pearson(0, 0) == (0.0, 1.0)


def test_the_interval_covers_the_truth_at_least_as_often_as_it_says() -> None:
    n, p = 40, 0.83
    covered = sum(
        math.comb(n, k) * p**k * (1 - p) ** (n - k)
        for k in range(n + 1)
        if (ends := clopper_pearson(k, n, 0.9))[0] <= p <= ends[1]
    )
    assert covered >= 0.9


@given(st.lists(st.booleans(), min_size=1), st.data())
def test_counts_merge_exactly_however_they_are_cut(seen: list[bool], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(seen)))
    whole = torch.tensor(seen)
    assert Accuracy.of(whole[cut:]) + Accuracy.of(whole[:cut]) == Accuracy(sum(seen), len(seen))


def test_bounds_close_on_the_value() -> None:
    assert Accuracy(30, 50).bounds(100) == (0.3, 0.8)
    assert Accuracy(30, 50).bounds(50) == (0.6, 0.6)
    with pytest.raises(BadInput, match="50 images are known"):
        Accuracy(30, 50).bounds(40)


def test_impossible_counts_are_refused() -> None:
    with pytest.raises(BadInput, match="3 of 2"):
        Accuracy(3, 2)


def test_a_model_is_scored_in_eval_mode_over_any_batches() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.9), nn.Linear(12, 3)).train()
    x, y = torch.rand(50, 3, 2, 2), torch.randint(0, 3, (50,))
    by_hand = int((model[2](x.flatten(1)).argmax(1) == y).sum())
    for size in (7, 50):
        batches = list(zip(x.split(size), y.split(size), strict=True))
        assert accuracy(model, batches) == Accuracy(by_hand, 50)
    assert model.training


def test_bytes_are_refused_as_the_model_refuses_them_and_floats_made_as_wide_as_it_is() -> None:
    model = wrap(nn.Sequential(nn.Flatten(), nn.Linear(12, 3)).double())
    x, y = torch.randint(0, 256, (50, 3, 2, 2), dtype=torch.uint8), torch.zeros(50, dtype=torch.long)
    with pytest.raises(BadInput, match="divide by 255"):
        accuracy(model, [(x, y)])
    assert accuracy(model, [(x.float() / 255, y)]).n == 50


def test_what_an_outer_use_chose_is_measured() -> None:
    torch.manual_seed(0)
    model = norm.steer(nn.Sequential(nn.Flatten(), nn.BatchNorm1d(48), nn.Linear(48, 5)))
    x = torch.rand(64, 3, 4, 4)
    model.train()(x)
    y = model.eval()(x).argmax(1)
    shift = {"1": norm.Shift(mu=torch.full((48,), 0.5))}
    for knobs in ({"source": "batch"}, {"shift": shift}, {"source": "batch", "update": True}):
        before = model[1].running_mean.clone()
        with norm.use(model, **knobs):
            found = accuracy(model, [(x, y)])
            with torch.no_grad(), norm.use(model, update=False):
                wanted = (model(x).argmax(1) == y).double().mean()
        assert found.value == pytest.approx(float(wanted))
        assert torch.equal(model[1].running_mean, before)
    assert accuracy(model, [(x, y)]).value == 1 > found.value


@pytest.mark.parametrize("labels", [torch.zeros(4, 1).long(), torch.zeros(1).long(), torch.zeros(4)])
def test_labels_are_not_broadcast(labels: torch.Tensor) -> None:
    model = norm.steer(nn.Sequential(nn.BatchNorm2d(3), nn.Flatten()))
    x = torch.rand(4, 3, 2, 2)
    for measured in (
        lambda: accuracy(model, [(x, labels)]),
        lambda: measure.tolerance(model, [(x, labels)], eps=(0.0,)),
        lambda: measure.landscape(model, x, labels),
    ):
        with pytest.raises(BadInput, match="label"):
            measured()


def test_top_k_counts_labels_among_the_likeliest_classes() -> None:
    """Logits are the image itself: the label's rank is known."""
    x = torch.tensor([[9.0, 8, 7, 6], [6, 7, 8, 9], [7, 9, 8, 6]]).view(3, 4, 1, 1)
    found = top_k(nn.Flatten(), [(x, torch.tensor([0, 0, 0]))], (1, 3, 5))
    assert {k: one.correct for k, one in found.items()} == {1: 1, 3: 2, 5: 3}


def test_top_k_wants_a_label_for_every_image() -> None:
    model, x = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), torch.rand(8, 1, 2, 2)
    for y in (torch.zeros(1, dtype=torch.long), torch.zeros(8, 1, dtype=torch.long)):
        with pytest.raises(BadInput, match="label"):
            top_k(model, [(x, y)])
