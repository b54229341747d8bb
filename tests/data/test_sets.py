import numpy as np
import pytest
import torch

from trimtab.data.sets import ImageSet, from_arrays, moments
from trimtab.types import BadInput, InputSpec


def make(n: int = 10, channels: int = 3) -> ImageSet:
    generator = torch.Generator().manual_seed(n)
    images = torch.randint(0, 256, (n, channels, 5, 4), dtype=torch.uint8, generator=generator)
    return from_arrays(images, torch.arange(n) % 3)


def test_batches_are_channels_last_floats_of_the_pixels_over_255() -> None:
    images = make()
    x, y, ids = next(images.batches(4))
    assert x.dtype == torch.float32
    assert x.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(x, images.images[:4].float() / 255)
    assert torch.equal(y, torch.tensor([0, 1, 2, 0]))
    assert torch.equal(ids, torch.arange(4))


def test_batches_give_every_image_once_in_order_whatever_the_size() -> None:
    images = make(10)
    for size in (1, 3, 10, 99):
        got = list(images.batches(size))
        assert torch.equal(torch.cat([b.ids for b in got]), torch.arange(10))
        assert all(len(b.x) == size for b in got[:-1])


def test_batches_start_at_a_position() -> None:
    assert torch.equal(torch.cat([b.ids for b in make(10).batches(4, start=3)]), torch.arange(3, 10))


def test_a_subset_of_a_subset_keeps_the_first_ids() -> None:
    part = make(10).subset([8, 6, 4, 2]).subset(slice(1, 3))
    assert part.ids.tolist() == [6, 4]
    assert torch.equal(part.images, make(10).images[[6, 4]])
    assert part.labels.tolist() == [0, 1]


def test_a_slice_is_a_view_of_the_same_memory() -> None:
    images = make(10)
    assert images.subset(slice(2, 5)).images.data_ptr() == images.images[2:].data_ptr()


def test_a_backward_slice_turns_the_order_round() -> None:
    assert make(5).subset(slice(None, None, -1)).ids.tolist() == [4, 3, 2, 1, 0]


def test_the_digest_is_of_content_and_not_of_layout_or_route() -> None:
    images = make(10)
    copy = from_arrays(images.images.contiguous(), images.labels)
    assert images.digest == copy.digest
    assert images.subset(slice(0, 10)).digest == images.digest
    assert images.subset([1, 2]).subset([1]).digest == images.subset([2]).digest


@pytest.mark.parametrize("change", ["pixel", "label", "ids", "order"])
def test_the_digest_sees_every_change(change: str) -> None:
    images = make(10)
    pixels, labels, ids = images.images.clone(), images.labels.clone(), images.ids.clone()
    if change == "pixel":
        pixels[7, 1, 2, 3] ^= 1
    elif change == "label":
        labels[0] = 2
    elif change == "ids":
        ids = ids + 1
    else:
        pixels, labels = pixels.flip(0), labels.flip(0)
    assert ImageSet(pixels, labels, images.classes, images.name, images.spec, ids).digest != images.digest


def test_moments_equal_those_of_numpy() -> None:
    pixels = torch.randint(0, 256, (20, 6, 5, 3), dtype=torch.uint8)
    reference = pixels.numpy().reshape(-1, 3) / 255
    for given in (pixels, (pixels / 255).float()):
        mean, std = moments(given.split(7))
        assert np.allclose(mean, reference.mean(0), atol=1e-5)
        assert np.allclose(std, reference.std(0), atol=1e-5)


def test_a_constant_channel_gets_deviation_one() -> None:
    assert moments([torch.full((2, 4, 4, 1), 128, dtype=torch.uint8)]) == ((round(128 / 255, 5),), (1.0,))


def test_float_images_are_kept_as_they_are() -> None:
    x = torch.rand(4, 1, 5, 5)
    assert torch.equal(next(from_arrays(x, torch.zeros(4, dtype=torch.long)).batches(4)).x, x)


SPEC = InputSpec((5, 4), 3)


@pytest.mark.parametrize(
    ("images", "labels", "said"),
    [
        (torch.randn(2, 3, 5, 4), torch.zeros(2, dtype=torch.long), r"in \[0, 1\]"),
        (torch.full((2, 3, 5, 4), float("nan")), torch.zeros(2, dtype=torch.long), r"in \[0, 1\]"),
        (torch.zeros(2, 3, 5, 4, dtype=torch.int32), torch.zeros(2, dtype=torch.long), "uint8"),
        (torch.zeros(2, 5, 4, dtype=torch.uint8), torch.zeros(2, dtype=torch.long), r"\(2, 5, 4\)"),
        (torch.zeros(0, 3, 5, 4, dtype=torch.uint8), torch.zeros(0, dtype=torch.long), r"\(0, 3, 5, 4\)"),
        (torch.zeros(2, 3, 5, 4, dtype=torch.uint8), torch.tensor([0, 2]), "do not fit its 2 classes"),
        (torch.zeros(2, 3, 5, 4, dtype=torch.uint8), torch.tensor([0, -1]), "do not fit its 2 classes"),
        (torch.zeros(2, 3, 5, 4, dtype=torch.uint8), torch.tensor([0]), "one int64 label for each"),
        (torch.zeros(2, 3, 4, 5, dtype=torch.uint8), torch.tensor([0, 1]), "InputSpec"),
    ],
)
def test_what_is_no_set_is_refused_in_one_sentence(
    images: torch.Tensor, labels: torch.Tensor, said: str
) -> None:
    with pytest.raises(BadInput, match=said):
        ImageSet(images, labels, ("a", "b"), "toy", SPEC)


@pytest.mark.parametrize("which", [[0, 10], [-1], [0.5], [[1]], torch.tensor([True, False])])
def test_positions_outside_the_set_are_refused(which: object) -> None:
    with pytest.raises(BadInput):
        make(10).subset(which)  # type: ignore[arg-type]


def test_a_batch_moves_to_the_device_and_dtype_of_a_model() -> None:
    batch = next(make().batches(4))
    moved = batch.to_model(torch.nn.Linear(1, 1).double())
    assert (moved.x.dtype, moved.y.dtype) == (torch.float64, torch.int64)
    assert torch.equal(moved.x, batch.x.double())
    assert torch.equal(moved.ids, batch.ids)


def test_the_old_name_of_to_model_warns() -> None:
    batch, model = next(make().batches(4)), torch.nn.Linear(1, 1).double()
    with pytest.warns(DeprecationWarning, match=r"Batch\.to_model"):
        old = batch.beside(model)
    assert torch.equal(old.x, batch.to_model(model).x)
