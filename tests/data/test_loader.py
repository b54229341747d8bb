import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from trimtab import rng
from trimtab.data import Batch, ImageSet, Loader, as_set
from trimtab.data.sets import from_arrays
from trimtab.types import BadInput

ALL = ("random-resized-crop", "augmix", "crop:2", "flip", "mixup", "cutmix")


def make(n: int = 23, size: int = 8) -> ImageSet:
    generator = torch.Generator().manual_seed(n)
    return from_arrays(
        torch.randint(0, 256, (n, 3, size, size), dtype=torch.uint8, generator=generator), torch.arange(n) % 5
    )


def same(a: list[Batch], b: list[Batch]) -> bool:
    return len(a) == len(b) and all(
        torch.equal(u, v) for p, q in zip(a, b, strict=True) for u, v in zip(p, q, strict=True)
    )


def ids_of(loader: Loader) -> list[int]:
    return torch.cat([batch.ids for batch in loader]).tolist()


def test_scalars_are_the_keys_of_their_ids() -> None:
    """The number that a batch hashes is the one that each image's key gives alone."""
    ids = torch.tensor([0, 1, 2, 10**12])
    alone = [(rng.key(7, int(i), 3) >> 11) * 2.0**-53 for i in ids]
    assert rng.scalars(7, ids, 3).tolist() == alone


def test_scalars_are_uniform_and_independent_of_each_other() -> None:
    n = 100_000
    first, draw, seed = (rng.scalars(s, range(n), d) for s, d in ((0, 0), (0, 1), (1, 0)))
    for values in (first, draw, seed):
        counts = torch.histc(values, 100, 0, 1)
        assert ((counts - n / 100) ** 2 / (n / 100)).sum() < 161  # 99 degrees of freedom: 99.99 %
    together = torch.corrcoef(torch.stack([first, draw, seed, first.roll(1)]))
    assert (together - torch.eye(4)).abs().max() < 5 / n**0.5


def test_an_epoch_gives_each_image_once_in_an_order_of_its_own() -> None:
    loader = Loader(make(), 5)
    orders = [ids_of(loader.at(epoch)) for epoch in range(3)] + [ids_of(Loader(make(), 5, seed=1))]
    assert all(sorted(order) == list(range(23)) for order in orders)
    assert len({tuple(order) for order in orders}) == 4
    assert orders[0] == ids_of(Loader(make(), 23))


def test_batches_are_channels_last_floats_in_range() -> None:
    for augment in ((), ALL):
        for x, y, ids in Loader(make(), 8, augment=augment):
            assert x.dtype == torch.float32
            assert x.is_contiguous(memory_format=torch.channels_last)
            assert 0 <= x.min() <= x.max() <= 1
            assert len(x) == len(y) == len(ids)


def test_without_augmentation_the_pixels_are_the_sets() -> None:
    images = make()
    for x, y, ids in Loader(images, 8):
        assert torch.equal(x, images.images[ids] / 255)
        assert torch.equal(y, images.labels[ids])


@settings(max_examples=15, deadline=None)
@given(start=st.integers(0, 6), epoch=st.integers(0, 3), names=st.sets(st.sampled_from(ALL)))
def test_an_epoch_resumes_exactly_in_the_middle(start: int, epoch: int, names: set[str]) -> None:
    loader = Loader(make(), 4, augment=tuple(sorted(names)), seed=3)
    assert same(list(loader.at(epoch))[start:], list(loader.at(epoch, start)))


@settings(max_examples=15, deadline=None)
@given(world=st.integers(1, 4), names=st.sets(st.sampled_from(ALL)), drop=st.booleans())
def test_processes_together_see_what_one_would(world: int, names: set[str], drop: bool) -> None:
    how = {"augment": tuple(sorted(names)), "seed": 1, "drop_last": drop}
    whole = list(Loader(make(), 8, **how))
    parts = zip(*(Loader(make(), 8, rank=rank, world=world, **how) for rank in range(world)), strict=True)
    joined = [Batch(*(torch.cat(values) for values in zip(*part, strict=True))) for part in parts]
    assert same(whole, joined)


def test_an_image_is_augmented_alike_in_every_batch() -> None:
    def by_id(batch_size: int, subset: slice) -> dict[int, Tensor]:
        names = ("random-resized-crop", "augmix", "crop", "flip")
        loader = Loader(make().subset(subset), batch_size, augment=names)
        return {int(i): x for batch in loader for x, i in zip(batch.x, batch.ids, strict=True)}

    some, all_of_them = by_id(3, slice(4, 15)), by_id(23, slice(None))
    assert all(torch.equal(x, all_of_them[i]) for i, x in some.items())


def test_augmentations_can_follow_each_other_in_any_order() -> None:
    names = ("flip", "crop", "random-resized-crop", "augmix")
    for pair in itertools.permutations(names, 2):
        x = next(iter(Loader(make(), 8, augment=pair))).x
        assert x.shape == (8, 3, 8, 8)
        assert x.is_contiguous(memory_format=torch.channels_last)


def test_epochs_augment_differently() -> None:
    images = make(64)
    first, second = (
        next(iter(Loader(images, 64, augment=("crop",), shuffle=False, epoch=e))).x for e in (0, 1)
    )
    assert not torch.equal(first, second)


def test_streamed_sets_give_the_same_batches() -> None:
    images = make()
    lazy = as_set([(images.images, images.labels)])
    streamed = as_set(torch.utils.data.TensorDataset(images.images, images.labels))
    for augment in (("crop", "flip"), ("cutmix",)):
        loaders = [Loader(source, 5, augment=augment, seed=2) for source in (images, lazy, streamed)]
        first, *others = map(list, loaders)
        assert all(same(first, other) for other in others)


def test_the_last_batch_is_kept_or_dropped() -> None:
    assert [len(b.x) for b in Loader(make(23), 8)] == [8, 8, 7]
    assert [len(b.x) for b in Loader(make(23), 8, drop_last=True)] == [8, 8]
    assert len(Loader(make(23), 8)) == 3
    assert len(Loader(make(23), 8, drop_last=True)) == 2
    assert len(Loader(make(24), 8)) == 3


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"batch_size": 0}, "batches of 0"),
        ({"batch_size": 24, "drop_last": True}, "batches of 24 cannot be made from 23"),
        ({"batch_size": 4, "rank": 2, "world": 2}, "no process 2 of 2"),
        ({"batch_size": 4, "augment": ("blur",)}, "no augmentation is called 'blur'; there are flip, crop"),
        ({"batch_size": 4, "augment": ("crop:x",)}, "'x' is not a number"),
        ({"batch_size": 4, "augment": ("flip:0.01",)}, "flip has no strength"),
        ({"batch_size": 4, "augment": ("crop:0.9",)}, "whole pixels, 1 or more, found 'crop:0.9'"),
        ({"batch_size": 4, "augment": ("crop:2.5",)}, "whole pixels"),
        ({"batch_size": 4, "augment": ("mixup:0",)}, "out of range"),
        ({"batch_size": 4, "augment": ("random-resized-crop:2",)}, "out of range"),
    ],
)
def test_impossible_loaders_are_refused(how: dict[str, object], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        Loader(make(23), **how)  # type: ignore[arg-type]
