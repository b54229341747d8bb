import os
import random
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from trimtab.data import ImageSet, Loader, as_set, load
from trimtab.data.sets import from_arrays
from trimtab.types import BadInput

PIXELS = torch.randint(0, 256, (23, 3, 6, 5), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(23) % 4
FLOATS = TensorDataset(PIXELS / 255, LABELS)


def all_of(source: object, size: int = 7) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(torch.cat(parts) for parts in zip(*as_set(source).batches(size), strict=True))  # type: ignore


def test_a_set_passes_as_it_is_and_a_name_is_loaded() -> None:
    images = from_arrays(PIXELS, LABELS)
    assert as_set(images) is images
    assert as_set("sample").digest == load("sample").digest


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_dataloader_is_read_in_its_datasets_order(shuffle: bool, drop_last: bool) -> None:
    loader = DataLoader(FLOATS, batch_size=4, shuffle=shuffle, drop_last=drop_last)
    x, y, ids = all_of(loader)
    assert torch.equal(x, PIXELS / 255)
    assert torch.equal(y, LABELS)
    assert torch.equal(ids, torch.arange(23))
    assert x.is_contiguous(memory_format=torch.channels_last)


def test_adapting_draws_nothing_from_the_global_generator() -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    list(as_set(DataLoader(FLOATS, batch_size=4, shuffle=True)).batches(5))
    assert torch.equal(torch.random.get_rng_state(), before)
    own = torch.Generator().manual_seed(3)
    before = own.get_state()
    as_set(DataLoader(FLOATS, batch_size=4, shuffle=True, generator=own))
    assert torch.equal(own.get_state(), before)


class Told(TensorDataset):
    """Labels are the process that read the image."""

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.tensors[0][i], torch.tensor(os.getpid() % 1000)


def test_labels_and_digest_are_read_by_the_loaders_workers() -> None:
    loader = DataLoader(Told(PIXELS, LABELS), batch_size=4, num_workers=1, multiprocessing_context="fork")
    assert os.getpid() % 1000 not in as_set(loader).labels.tolist()


class Noisy(TensorDataset):
    """Pixels that its own dataset draws, by all three generators that people use."""

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        drawn = torch.tensor([float(torch.rand(())), np.random.rand(), random.random()])  # noqa: NPY002
        return drawn.view(3, 1, 1).expand(3, 8, 8).clone(), self.tensors[1][i]


@pytest.mark.parametrize("workers", [0, 2])
def test_what_a_dataset_draws_depends_on_seed_epoch_and_image_alone(workers: int) -> None:
    how: dict[str, Any] = {"num_workers": workers, "multiprocessing_context": "fork" if workers else None}
    images = as_set(DataLoader(Noisy(PIXELS, LABELS), batch_size=4, **how))

    def drawn(epoch: int, size: int = 5, start: int = 0) -> dict[int, float]:
        batches = list(Loader(images, size, seed=3).at(epoch, start))
        return {int(i): float(x.sum()) for batch in batches for i, x in zip(batch.ids, batch.x, strict=True)}

    first = drawn(1)
    torch.manual_seed(9)
    assert drawn(1) == first
    assert drawn(1, size=7) == first
    assert drawn(1, start=2) == {i: first[i] for i in drawn(1, start=2)}
    assert all(drawn(2)[i] != value for i, value in first.items())
    evaluated = [torch.cat([batch.x for batch in images.batches(size)]) for size in (4, 9)]
    assert torch.equal(*evaluated)
    assert len(set(first.values())) == 23


def test_a_part_of_a_loader_knows_all_classes() -> None:
    images = as_set(DataLoader(TensorDataset(PIXELS, torch.arange(23)), batch_size=4))
    assert len(images.subset(slice(0, 9)).classes) == 23
    assert len(images.subset(slice(0, 9)).subset([1, 2]).classes) == 23


def test_a_samplers_choice_of_images_is_kept() -> None:
    loader = DataLoader(FLOATS, batch_size=4, sampler=SubsetRandomSampler([9, 3, 17]))
    x, _, ids = all_of(loader)
    assert ids.tolist() == [3, 9, 17]
    assert torch.equal(x, PIXELS[[3, 9, 17]] / 255)
    batches = DataLoader(FLOATS, batch_sampler=[[5, 2], [8]])
    assert all_of(batches)[2].tolist() == [2, 5, 8]


def test_workers_and_a_start_give_the_same_batches() -> None:
    images = as_set(DataLoader(FLOATS, batch_size=4, num_workers=2, multiprocessing_context="fork"))
    got = torch.cat([batch.x for batch in images.batches(5, start=4)])
    assert torch.equal(got, PIXELS[4:] / 255)


def test_an_adapted_set_equals_the_set_in_memory() -> None:
    held, lazy = from_arrays(PIXELS, LABELS), as_set(TensorDataset(PIXELS, LABELS))
    assert not isinstance(lazy, ImageSet)
    assert lazy.digest == held.digest
    assert lazy.classes == held.classes
    assert lazy.spec == held.spec
    assert torch.equal(lazy.labels, held.labels)
    part = lazy.subset([8, 2])
    assert part.digest == held.subset([8, 2]).digest
    assert len(part) == 2


def test_class_names_of_the_dataset_are_kept() -> None:
    named = Subset(FLOATS, range(5))
    named.classes = ["a", "b", "c", "d", "e"]  # type: ignore[attr-defined]
    assert as_set(named).classes == ("a", "b", "c", "d", "e")


class Stream(IterableDataset):
    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(FLOATS)


@pytest.mark.parametrize(
    "source",
    [
        DataLoader(Stream(), batch_size=5),
        [(PIXELS[:20], LABELS[:20]), (PIXELS[20:], LABELS[20:])],
        (PIXELS, LABELS),
        (PIXELS.numpy(), LABELS.numpy()),
        (PIXELS, LABELS[:, None]),
        (PIXELS, LABELS.double()),
    ],
)
def test_streams_lists_and_arrays_are_held_in_memory(source: object) -> None:
    x, y, ids = all_of(source)
    assert torch.equal(x, PIXELS / 255)
    assert torch.equal(y, LABELS)
    assert torch.equal(ids, torch.arange(23))


class Pictures(Dataset):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, i: int) -> tuple[Image.Image, int]:
        return Image.new("RGB", (8, 8)), i


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (
            TensorDataset((PIXELS / 255 - 0.5) / 0.25, LABELS),
            r"pixels in \[0, 1\].*leave out the normalization",
        ),
        (TensorDataset(PIXELS.float(), LABELS), r"pixels in \[0, 1\], found 0 to 255; divide by 255"),
        (Pictures(), "cannot be put into a batch: one is a Image; let the dataset give tensors"),
        (TensorDataset(PIXELS), "batches of .images, labels. as tensors"),
        ((PIXELS[:3], torch.tensor([0.0, 1.5, -0.4])), r"whole numbers, found 1\.5"),
        (TensorDataset(PIXELS, LABELS / 4), "whole numbers"),
        (TensorDataset(PIXELS, torch.rand(23, 2)), r"one label per image, found \(7, 2\) for 7"),
        ((PIXELS, LABELS[:5]), r"one label per image, found \(5,\) for 23"),
        ([], "at least one image"),
        (7, "a int is no image set"),
    ],
)
def test_what_cannot_be_adapted_is_refused(source: object, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        all_of(source)


def test_a_sampler_that_repeats_images_is_refused() -> None:
    weighted = WeightedRandomSampler([1.0] * len(FLOATS), 2 * len(FLOATS))
    weighted.generator = torch.Generator().manual_seed(3)
    before = weighted.generator.get_state()
    with pytest.raises(BadInput, match="several times"):
        as_set(DataLoader(FLOATS, batch_size=4, sampler=weighted))
    assert torch.equal(weighted.generator.get_state(), before)


def test_a_loader_without_batches_gives_all_images_as_it_shows_them() -> None:
    halved = DataLoader(FLOATS, batch_size=None, collate_fn=lambda one: (one[0] / 2, one[1]))
    x, _, ids = all_of(halved)
    assert ids.tolist() == list(range(len(FLOATS)))
    assert torch.equal(x, PIXELS / 255 / 2)
    with pytest.raises(BadInput, match="batch_sampler"):
        as_set(DataLoader(FLOATS, batch_size=None, sampler=BatchSampler(range(6), 2, False)))
