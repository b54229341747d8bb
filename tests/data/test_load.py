"""Sets by the names that people type, and arrays in the layouts that they come in.

Also tests data.arrays.
"""

import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from trimtab.data import TwoCue, load, save
from trimtab.data.load import has_splits
from trimtab.data.sets import ImageSet
from trimtab.types import BadInput

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 5, 4, 3), dtype=np.uint8)
LABELS = np.array([0, 1, 2, 2, 1, 0])
SPELLINGS = [
    ("images", "labels"),
    ("x_test", "y_test"),
    ("X_test", "Y_test"),
    ("test_images", "test_labels"),
    ("data", "targets"),
]


@pytest.mark.parametrize(("images", "labels"), SPELLINGS)
def test_npz_arrays_are_found_by_their_usual_names(tmp_path: Path, images: str, labels: str) -> None:
    np.savez(tmp_path / "a.npz", **{images: PIXELS, labels: LABELS})
    got = load(f"npz:{tmp_path}/a.npz")
    assert isinstance(got, ImageSet)
    assert np.array_equal(got.images.permute(0, 2, 3, 1).numpy(), PIXELS)
    assert np.array_equal(got.labels.numpy(), LABELS)
    assert got.classes == ("0", "1", "2")


def test_npz_splits_are_told_apart(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x_train=PIXELS, y_train=LABELS, x_test=PIXELS[:2], y_test=LABELS[:2])
    assert len(load(f"npz:{tmp_path}/a.npz", "train")) == 6
    assert len(load(f"npz:{tmp_path}/a.npz", "test")) == 2


@pytest.mark.parametrize(
    "images",
    [PIXELS, PIXELS.transpose(0, 3, 1, 2), PIXELS[..., 0], PIXELS / 255, (PIXELS / 255).astype("f4")],
)
def test_npz_images_may_lie_in_any_usual_layout(tmp_path: Path, images: np.ndarray) -> None:
    np.savez_compressed(tmp_path / "a.npz", images=images, labels=LABELS[:, None], classes=["a", "b", "ç"])
    got = load(f"npz:{tmp_path}/a.npz")
    x = next(got.batches(6)).x.permute(0, 2, 3, 1).numpy()
    assert np.allclose(x, PIXELS[..., : x.shape[-1]] / 255, atol=1e-7)
    assert got.classes == ("a", "b", "ç")


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"images": PIXELS}, "holds images; expected images and labels"),
        ({"images": PIXELS, "labels": LABELS[:3]}, "one label for each of its 6 images"),
        ({"images": PIXELS, "labels": np.eye(6, dtype=int)}, r"one label for each.*found \(6, 6\)"),
        ({"images": PIXELS, "labels": LABELS, "classes": ["a", "b"]}, "do not fit its 2 classes"),
        ({"images": PIXELS, "labels": LABELS / 2}, "integer label"),
        ({"images": PIXELS.astype("i8"), "labels": LABELS}, "uint8, or float"),
        ({"images": PIXELS / 2.0, "labels": LABELS}, r"pixels in \[0, 1\]"),
        ({"images": PIXELS[:0], "labels": LABELS[:0]}, r"found \(0"),
        ({"images": np.array([[1], None], dtype=object), "labels": LABELS}, "never unpickled"),
    ],
)
def test_arrays_that_are_no_images_are_refused(
    tmp_path: Path, arrays: dict[str, np.ndarray], said: str
) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(BadInput, match=said):
        load(f"npz:{tmp_path}/a.npz")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"<html>", "a web page"),
        (b"", "an empty file"),
        (b"\x80\x04.", "a Python pickle"),
        (b"PK\x03\x04", "a zip"),
    ],
)
def test_files_that_are_no_arrays_are_named(tmp_path: Path, content: bytes, said: str) -> None:
    for name in ("a.npz", "fog.npy", "labels.npy"):
        (tmp_path / name).write_bytes(content)
    for name in (f"npz:{tmp_path}/a.npz", f"cifar10-c:{tmp_path}/fog/1"):
        with pytest.raises(BadInput, match=said):
            load(name)


def test_a_truncated_npz_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=PIXELS, labels=LABELS)
    whole = (tmp_path / "a.npz").read_bytes()
    (tmp_path / "a.npz").write_bytes(whole[:-40])
    with pytest.raises(BadInput, match=r"is not a|cut short"):
        load(f"npz:{tmp_path}/a.npz")
    with zipfile.ZipFile(tmp_path / "b.npz", "w") as archive:  # whole outside, cut short inside
        archive.writestr("images.npy", b"\x93NUMPY\x01\x00v\x00{'descr'")
        archive.writestr("labels.npy", b"")
    with pytest.raises(BadInput, match=r"is not a|damaged|never unpickled"):
        load(f"npz:{tmp_path}/b.npz")


def test_cifar10_c_takes_the_block_of_its_severity(tmp_path: Path) -> None:
    pixels = np.lib.format.open_memmap(tmp_path / "fog.npy", "w+", np.uint8, (50_000, 32, 32, 3))
    for severity in range(1, 6):
        pixels[(severity - 1) * 10_000 : severity * 10_000, 0, 0] = severity
    pixels[20_001, 1, 1] = (7, 8, 9)
    del pixels
    np.save(tmp_path / "labels.npy", np.tile(np.arange(10_000) % 10, 5).astype(np.uint8))
    images = load(f"cifar10-c:{tmp_path}/fog/3")
    assert len(images) == 10_000
    assert torch.equal(images.images[:, 0, 0, 0], torch.full((10_000,), 3, dtype=torch.uint8))
    assert images.images[1, :, 1, 1].tolist() == [7, 8, 9]
    assert images.ids.tolist() == list(range(10_000))
    assert images.labels[:3].tolist() == [0, 1, 2]
    for wrong in ("fog/6", "fog"):
        with pytest.raises(BadInput, match="corruption and its severity"):
            load(f"cifar10-c:{tmp_path}/{wrong}")
    with pytest.raises(BadInput, match="not there"):
        load(f"cifar10-c:{tmp_path}/snow/1")
    np.save(tmp_path / "small.npy", PIXELS)
    with pytest.raises(BadInput, match="as published it is uint8"):
        load(f"cifar10-c:{tmp_path}/small/1")


def test_a_saved_set_loads_by_name(tmp_path: Path) -> None:
    images = TwoCue()("test", 10).images
    save(images, tmp_path / "cues.safetensors")
    assert load(f"file:{tmp_path}/cues.safetensors").digest == images.digest


@pytest.mark.parametrize("name", ["cifar11", "folder", "folder:", "sample:x", "cifar10:x", "", "npz"])
def test_unknown_names_are_answered_with_the_known_ones(name: str) -> None:
    with pytest.raises(BadInput, match="there are sample, two-cue, cifar10"):
        load(name)


def test_a_folder_without_its_prefix_is_suggested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pictures").mkdir()
    with pytest.raises(BadInput, match=r"called 'pictures' \(did you mean folder:pictures\?\)"):
        load("pictures")


def test_a_set_prints_as_one_line(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=PIXELS, labels=LABELS)
    assert repr(load(f"npz:{tmp_path}/a.npz")) == "ImageSet('a', 6 images 3x5x4, 3 classes)"


def test_a_folder_of_class_folders_alone_has_no_splits(tmp_path: Path) -> None:
    (tmp_path / "flat" / "cat").mkdir(parents=True)
    (tmp_path / "split" / "train" / "cat").mkdir(parents=True)
    names = (f"folder:{tmp_path}/flat@64", f"folder:{tmp_path}/split@64", "csv:a.csv", "file:a", "sample")
    assert [has_splits(name) for name in names] == [False, True, False, False, True]
