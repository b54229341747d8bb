"""Archives of published sets are decoded to the images they were made of, and damage is named.

Also tests data.published.
"""

import io
import pickle
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat
from tests.data.small_files import SmallCifar, add

from trimtab.data import published
from trimtab.data.archives import members
from trimtab.types import BadInput


def quiet(what: str, done: int, total: int) -> None:
    assert 0 <= done <= total or total == 0


@pytest.mark.parametrize("layout", ["binary", "npm"])
def test_cifar10_decodes_to_the_images_it_was_made_of(tmp_path: Path, layout: str) -> None:
    made = SmallCifar()
    path = getattr(made, layout)(tmp_path / "archive.tar.gz")
    train, test = published.cifar10(path, quiet)
    assert (train.name, test.name) == ("train", "test")
    assert np.array_equal(train.pixels, made.pixels[:20])
    assert np.array_equal(test.pixels, made.pixels[20:])
    assert np.array_equal(np.concatenate([train.labels, test.labels]), made.labels)


def test_cifar100_takes_the_fine_label(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
    names = [f"name{i}" for i in range(100)]
    with tarfile.open(tmp_path / "a.tgz", "w:gz") as archive:
        for split, fine in (("train", 42), ("test", 7)):
            records = b"".join(bytes([3, fine]) + image.transpose(2, 0, 1).tobytes() for image in pixels)
            add(archive, f"cifar-100-binary/{split}.bin", records)
        add(archive, "cifar-100-binary/fine_label_names.txt", "\n".join(names).encode())
    train, test = published.cifar100(tmp_path / "a.tgz", quiet)
    assert train.labels.tolist() == [42] * 3
    assert test.labels.tolist() == [7] * 3
    assert train.classes[42] == "name42"
    assert np.array_equal(train.pixels, pixels)


def test_svhn_counts_ten_as_zero(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), dtype=np.uint8)
    labels = np.array([[10], [1], [9], [10]], dtype=np.uint8)
    savemat(tmp_path / "train_32x32.mat", {"X": pixels.transpose(1, 2, 3, 0), "y": labels})
    (split,) = published.svhn("train", tmp_path / "train_32x32.mat", quiet)
    assert split.labels.tolist() == [0, 1, 9, 0]
    assert np.array_equal(split.pixels, pixels)


def test_tiny_imagenet_sorts_its_classes_and_reads_the_validation_list(tmp_path: Path) -> None:
    def jpeg(level: int, mode: str = "RGB") -> bytes:
        buffer = io.BytesIO()
        Image.new(mode, (64, 64), (level,) * 3 if mode == "RGB" else level).save(buffer, "JPEG")
        return buffer.getvalue()

    with zipfile.ZipFile(tmp_path / "tiny.zip", "w") as archive:
        archive.writestr("tiny-imagenet-200/wnids.txt", "n02\nn01\n")
        archive.writestr("tiny-imagenet-200/words.txt", "n01\tgoldfish, Carassius\nn02\tnewt\nn03\tother")
        for name, level in (("n02_1", 200), ("n02_0", 150), ("n01_0", 100), ("n01_1", 60)):
            archive.writestr(f"tiny-imagenet-200/train/{name[:3]}/images/{name}.JPEG", jpeg(level))
        archive.writestr("tiny-imagenet-200/val/images/val_0.JPEG", jpeg(50))
        archive.writestr("tiny-imagenet-200/val/images/val_1.JPEG", jpeg(70, "L"))
        listed = "val_0.JPEG\tn02\t0\t0\t9\t9\nval_1.JPEG\tn01\t0\t0\t9\t9\n"
        archive.writestr("tiny-imagenet-200/val/val_annotations.txt", listed)
        archive.writestr("tiny-imagenet-200/test/images/test_0.JPEG", jpeg(1))
    train, test = published.tiny_imagenet(tmp_path / "tiny.zip", quiet)
    assert train.classes == ("goldfish", "newt")
    first, second = train.labels[:2]
    assert train.labels.tolist() == [first, second] * 2  # in turns: the last are held out to validate
    levels = {0: (100, 60), 1: (150, 200)}
    expected = [levels[label][turn] for turn in (0, 1) for label in (first, second)]
    assert np.allclose(train.pixels.mean((1, 2, 3)), expected, atol=2)
    assert test.labels.tolist() == [1, 0]
    assert np.allclose(test.pixels.mean((1, 2, 3)), [50, 70], atol=2)


def test_pickles_are_not_opened(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, ...]:
            return (Path.touch, (tmp_path / "sprung",))

    with tarfile.open(tmp_path / "python.tar.gz", "w:gz") as archive:
        for name in ("data_batch_1", "test_batch"):
            add(archive, f"cifar-10-batches-py/{name}", pickle.dumps(Trap()))
        for name in ("train", "test"):
            add(archive, f"cifar-100-python/{name}", pickle.dumps(Trap()))
    for decode in (published.cifar10, published.cifar100):
        with pytest.raises(BadInput, match="pickles, which are never opened"):
            list(decode(tmp_path / "python.tar.gz", quiet))
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "a/../../evil", "C:evil", "..\\evil"])
@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_a_path_outside_the_folder_is_refused(tmp_path: Path, name: str, kind: str) -> None:
    path = tmp_path / "archive"
    if kind == "tar":
        with tarfile.open(path, "w") as archive:
            add(archive, name, b"x")
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(zipfile.ZipInfo(name), b"x")
    with pytest.raises(BadInput, match="outside its folder"):
        list(members(path, lambda _: True))


def test_links_are_refused(tmp_path: Path) -> None:
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE):
        with tarfile.open(tmp_path / "links.tar", "w") as archive:
            link = tarfile.TarInfo("innocent.bin")
            link.type, link.linkname = kind, "/etc/passwd"
            archive.addfile(link)
        with pytest.raises(BadInput, match="link or device"):
            list(members(tmp_path / "links.tar", lambda _: True))
    with zipfile.ZipFile(tmp_path / "links.zip", "w") as archive:
        member = zipfile.ZipInfo("innocent.bin")
        member.external_attr = 0o120777 << 16
        archive.writestr(member, "/etc/passwd")
    with pytest.raises(BadInput, match="link or device"):
        list(members(tmp_path / "links.zip", lambda _: True))


def test_a_truncated_archive_is_named_as_such_wherever_it_is_cut(tmp_path: Path) -> None:
    whole = SmallCifar().binary(tmp_path / "whole.tar.gz").read_bytes()
    for length in (30, 600, len(whole) // 2, len(whole) - 300):
        (tmp_path / "cut.tar.gz").write_bytes(whole[:length])
        with pytest.raises(BadInput, match=r"cut short|gzip file"):
            list(published.cifar10(tmp_path / "cut.tar.gz", quiet))


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"<html>404</html>", "a web page"), (b"", "an empty file"), (b"junk" * 99, "another kind")],
)
def test_what_is_no_archive_is_named(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "file").write_bytes(content)
    for decode in (published.cifar10, published.cifar100, published.tiny_imagenet):
        with pytest.raises(BadInput, match=said):
            list(decode(tmp_path / "file", quiet))
    with pytest.raises(BadInput, match=said):
        list(published.svhn("train", tmp_path / "file", quiet))


def test_an_incomplete_archive_says_what_is_missing(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        add(archive, "cifar-10-batches-bin/data_batch_1.bin", bytes(3073))
    with pytest.raises(BadInput, match="data_batch_2 is missing"):
        list(published.cifar10(tmp_path / "a.tar", quiet))


def test_records_of_the_wrong_length_are_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        add(archive, "data_batch_1.bin", bytes(3072))
    with pytest.raises(BadInput, match="no whole number"):
        list(published.cifar10(tmp_path / "a.tar", quiet))
