"""Randomness is a function of (seed, id, draw), never of the batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from trimtab import rng
from trimtab.types import BadInput

LIKE = torch.empty(6, 3, 4, 5)
IDS = [7, 0, 3, 12, 5, 9]


@pytest.mark.parametrize("fill", [rng.uniform, rng.normal])
def test_an_image_gets_the_same_numbers_in_any_batch_order_and_layout(fill: object) -> None:
    whole = fill(LIKE, 1, IDS)
    for order in ([3], [5, 0, 2], [4, 3, 2, 1, 0]):
        part = fill(LIKE[order], 1, [IDS[i] for i in order])
        assert torch.equal(part, whole[order])
    last = LIKE.contiguous(memory_format=torch.channels_last)
    laid_out = fill(last, 1, IDS)
    assert torch.equal(laid_out, whole)
    assert laid_out.is_contiguous(memory_format=torch.channels_last)
    assert fill(LIKE.double(), 1, IDS).dtype == torch.float64


def test_seed_id_and_draw_each_change_the_numbers() -> None:
    one = rng.normal(LIKE[:1], 1, [2], 3)
    for seed, id, draw in ((2, 2, 3), (1, 3, 3), (1, 2, 4), (3, 2, 1)):
        assert not torch.equal(rng.normal(LIKE[:1], seed, [id], draw), one)


def test_ids_of_any_size_and_sign_have_keys_of_their_own_whatever_stands_beside_them() -> None:
    ids = [2**63 + 12345, 2**63 + 12346, 1, -1, 2**64 + 7]
    drawn = rng.uniform(LIKE[: len(ids)], 1, ids, 2)
    for row, id in zip(drawn, ids, strict=True):
        own = torch.Generator().manual_seed(rng.key(1, id, 2))
        assert torch.equal(row, torch.rand(row.shape, generator=own))
    scalars = rng.scalars(1, ids, 2)
    assert len(set(scalars.tolist())) == len(ids)
    assert [float(rng.scalars(1, [id], 2)) for id in ids] == scalars.tolist()


def test_seeds_and_ids_may_be_numpys_but_not_fractions() -> None:
    assert rng.key(np.int64(-3), np.int32(5)) == rng.key(-3, 5)
    with pytest.raises(BadInput, match="whole numbers"):
        rng.ids_of(LIKE, torch.arange(6.0))


def test_global_randomness_is_neither_read_nor_moved() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    one = rng.uniform(LIKE, 1, IDS)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    assert torch.equal(rng.uniform(LIKE, 1, IDS), one)


def test_keys_of_neighbors_do_not_collide() -> None:
    keys = {rng.key(seed, id, draw) for seed in range(8) for id in range(64) for draw in range(8)}
    assert len(keys) == 8 * 64 * 8
    assert rng.key(1, 2) != rng.key(2, 1)
    assert all(0 <= key < 2**64 for key in keys)


def test_the_distributions_are_what_they_say() -> None:
    ids = list(range(64))
    like = torch.empty(64, 64, 16)  # 65,536 values: a mean is known to about 0.004
    uniform, normal = rng.uniform(like, 0, ids), rng.normal(like, 0, ids)
    assert uniform.min() >= 0
    assert uniform.max() < 1
    assert uniform.mean().item() == pytest.approx(0.5, abs=0.006)
    assert uniform.var().item() == pytest.approx(1 / 12, abs=0.003)
    assert normal.mean().item() == pytest.approx(0, abs=0.02)
    assert normal.var().item() == pytest.approx(1, abs=0.03)


def test_integers_and_scalars_are_one_per_image() -> None:
    chosen = rng.integers(2, 5, 0, range(200))
    assert set(chosen.tolist()) == {2, 3, 4}
    assert torch.equal(rng.integers(2, 5, 0, [17]), chosen[17:18])
    numbers = rng.scalars(0, range(4000))
    assert torch.equal(rng.scalars(0, torch.tensor([17, 3])), numbers[[17, 3]])
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert numbers.mean().item() == pytest.approx(0.5, abs=0.02)
    assert numbers.unique().numel() == 4000


def test_a_permutation_is_one_and_differs_by_seed() -> None:
    order = rng.permutation(50, 0)
    assert order.sort().values.tolist() == list(range(50))
    assert torch.equal(order, rng.permutation(50, 0))
    assert not torch.equal(order, rng.permutation(50, 1))


def test_ids_default_to_the_places_in_the_batch() -> None:
    assert rng.ids_of(LIKE, None) == [0, 1, 2, 3, 4, 5]
    assert rng.ids_of(LIKE, torch.tensor(IDS)) == rng.ids_of(LIKE, IDS) == IDS
    with pytest.raises(BadInput, match="2 ids for 6 images"):
        rng.ids_of(LIKE, [1, 2])


def test_torchs_default_device_plays_no_part() -> None:
    wanted = (rng.normal(LIKE, 1, IDS), rng.integers(0, 9, 1, IDS), rng.permutation(6, 1))
    torch.set_default_device("meta")  # any other than the CPU
    try:
        found = (rng.normal(LIKE, 1, IDS), rng.integers(0, 9, 1, IDS), rng.permutation(6, 1))
    finally:
        torch.set_default_device(None)
    assert all(torch.equal(*pair) for pair in zip(found, wanted, strict=True))
