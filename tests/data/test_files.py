from pathlib import Path

import pytest
import torch

from trimtab.data.files import read, save
from trimtab.data.sets import from_arrays
from trimtab.io import kind_of
from trimtab.types import BadInput


def make(dtype: torch.dtype = torch.uint8) -> object:
    images = torch.randint(0, 256, (6, 3, 4, 5), dtype=torch.uint8)
    images = images if dtype == torch.uint8 else images / 255
    return from_arrays(images, torch.tensor([0, 1, 2, 0, 1, 2]), ["a", "b", "ç"], "toy").subset([5, 1, 2])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_a_saved_set_comes_back_whole(tmp_path: Path, dtype: torch.dtype) -> None:
    images = make(dtype)
    save(images, tmp_path / "deep" / "set.safetensors")
    again = read(tmp_path / "deep" / "set.safetensors")
    assert again.digest == images.digest
    assert torch.equal(again.images, images.images)
    assert (again.classes, again.name, again.spec) == (images.classes, images.name, images.spec)
    assert again.ids.tolist() == [5, 1, 2]


def test_writing_to_a_mapped_set_does_not_change_its_file(tmp_path: Path) -> None:
    save(make(), tmp_path / "set")
    before = (tmp_path / "set").read_bytes()
    read(tmp_path / "set").images.zero_()
    assert (tmp_path / "set").read_bytes() == before


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"<!DOCTYPE html><html>not found</html>", "a web page"),
        (b"\n <HTML>", "a web page"),
        (b"", "an empty file"),
        (b"\x80\x04\x95", "a Python pickle"),
        (b"PK\x03\x04rest", "a zip file"),
        (b"\x1f\x8b\x08", "a gzip file"),
        (b"something else", "14 bytes of another kind"),
    ],
)
def test_a_file_of_another_kind_is_named(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "set.safetensors"
    path.write_bytes(content)
    assert said in kind_of(path)
    with pytest.raises(BadInput, match=said):
        read(path)


def test_a_truncated_set_is_refused(tmp_path: Path) -> None:
    save(make(), tmp_path / "set")
    whole = (tmp_path / "set").read_bytes()
    for length in (5, 100, len(whole) - 1):
        (tmp_path / "cut").write_bytes(whole[:length])
        with pytest.raises(BadInput, match="not an image set"):
            read(tmp_path / "cut")


def test_a_missing_file_and_a_folder_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="not there"):
        read(tmp_path / "nothing")
    with pytest.raises(BadInput, match="a folder"):
        read(tmp_path)


def test_a_bit_that_changed_on_the_disk_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "set.safetensors"
    images = from_arrays(torch.arange(96, dtype=torch.uint8).view(2, 3, 4, 4), torch.arange(2))
    save(images, path)
    content = bytearray(path.read_bytes())
    content[content.index(bytes(images.images.permute(0, 2, 3, 1).reshape(-1)[:8].tolist()))] ^= 1
    path.write_bytes(content)
    with pytest.raises(BadInput, match="not those that were saved"):
        read(path)
