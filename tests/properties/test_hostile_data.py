"""Archives, arrays and image folders that were damaged, or made to do harm: images, or one sentence."""

from __future__ import annotations

import io
import os
import struct
import tarfile
import tempfile
import warnings
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image
from tests.properties.hostile import Evil, damaged, examples, survives, texts, tidy

from trimtab import data
from trimtab.data import archives, published
from trimtab.data.sets import Images, from_arrays
from trimtab.types import BadInput

NAMES = [
    *(f"c/{stem}.bin" for stem in ("data_batch_1", "test_batch", "train", "test")),
    *("c/data_batch_1.png", "c/test_batch.png", "c/train_lables.json", "c/test_lables.json"),
    *("c/wnids.txt", "c/words.txt", "c/val/val_annotations.txt", "c/train/n01/n01_0.JPEG", "c/val/v_0.JPEG"),
    *("c/fine_label_names.txt", "../up", "/etc/passwd", "a/../../b", "C:\\x", "..\\x", "", ".", "a\0b"),
]
DECODERS = [published.cifar10, published.cifar100, published.tiny_imagenet]


def picture(mode: str = "RGB", size: tuple[int, int] = (8, 8), form: str = "PNG", level: int = 90) -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, size, level if mode == "L" else (level,) * 3).save(buffer, form)
    return buffer.getvalue()


contents = st.binary(max_size=60) | st.sampled_from(
    [bytes(3073), bytes(3074), b"[1, 2]", b"n01\tcat", b"n01\n", b"[" * 90, picture(), picture(size=(64, 64))]
)


def quiet(what: str, done: int, total: int) -> None:
    pass


# ---- archives --------------------------------------------------------------------------------------------


def tar(members: list[tuple[str, bytes]], kind: bytes, packing: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=f"w:{packing}") as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/passwd"
            member.size = len(content) if kind == tarfile.REGTYPE else 0
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def zipped(members: list[tuple[str, bytes]], mode: int) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the same name twice
        for name, content in members:
            info = zipfile.ZipInfo(name)
            info.external_attr, info.compress_type = mode << 28, zipfile.ZIP_DEFLATED
            archive.writestr(info, content)
    return buffer.getvalue()


@st.composite
def packed(draw: st.DrawFn) -> bytes:
    inside = draw(st.lists(st.tuples(st.sampled_from(NAMES) | texts, contents), max_size=5))
    if draw(st.booleans()):
        kinds = [tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE]
        kind = draw(st.sampled_from(kinds + [tarfile.REGTYPE] * 5))
        whole = tar(inside, kind, draw(st.sampled_from(["", "gz", "xz", "bz2"])))
    else:
        whole = zipped(inside, draw(st.sampled_from([0, 8, 8, 8, 4, 10])))
    return draw(st.just(whole) | damaged(whole))


@examples(300)
@given(packed(), st.sampled_from(DECODERS))
def test_any_archive_is_decoded_or_refused(tmp_path: Path, content: bytes, decode: Any) -> None:
    path = tmp_path / "archive"
    path.write_bytes(content)
    survives(lambda: list(archives.members(path, lambda name: True)))
    survives(lambda: list(decode(path, quiet)))
    assert os.listdir(tmp_path) == ["archive"]


@examples(60)
@given(packed())
def test_a_hostile_source_places_nothing(tmp_path: Path, content: bytes) -> None:
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    (folder / "source").write_bytes(content)
    for name in ("cifar10", "cifar100", "svhn", "tiny-imagenet"):
        with pytest.raises(BadInput):
            data.fetch(name, folder / "root", source=folder / "source")
    assert not [path for path in (folder / "root").rglob("*") if path.is_file()]


@pytest.mark.parametrize("form", ["tar", "zip"])
def test_a_bomb_is_refused_before_it_unpacks(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "LARGEST", 1 << 20)
    bomb = [("c/data_batch_1.bin", bytes(2 << 20))]
    content = tar(bomb, tarfile.REGTYPE, "gz") if form == "tar" else zipped(bomb, 8)
    assert len(content) < 10_000
    (tmp_path / "bomb").write_bytes(content)
    with pytest.raises(BadInput, match="unpacks to"):
        list(archives.members(tmp_path / "bomb", lambda name: True))


# ---- arrays ----------------------------------------------------------------------------------------------

dtypes = (
    arrays.boolean_dtypes() | arrays.integer_dtypes() | arrays.unsigned_integer_dtypes()
    | arrays.floating_dtypes() | arrays.complex_number_dtypes() | arrays.byte_string_dtypes()
    | arrays.unicode_string_dtypes() | arrays.datetime64_dtypes() | st.just(np.dtype("longdouble"))
    | st.just(np.dtype([("a", "i4")]))
)  # fmt: skip


@st.composite
def any_array(draw: st.DrawFn) -> np.ndarray:
    shape = draw(
        st.sampled_from([(2, 4, 4, 3), (2, 3, 4, 4), (2, 4, 4), (2,), (3,), (0,), (), (2, 1), (0, 4, 4)])
    )
    made = np.zeros(shape, draw(dtypes))
    if made.size and made.dtype.kind in "iuf":
        made.flat[0] = draw(st.sampled_from([0, 1, 100]))
        if made.dtype.kind != "f":
            made.flat[-1] = draw(st.sampled_from([0, 1, np.iinfo(made.dtype).max, np.iinfo(made.dtype).min]))
    return made


def used(images: Images) -> None:
    """A set that was taken can be used: looked at, cut, and shown to a network."""
    assert len(images.digest) == 64
    batch = images.take(torch.arange(1))
    assert batch.x.dtype == torch.float32
    assert 0 <= float(batch.x.min()) <= float(batch.x.max()) <= 1
    assert 0 <= int(batch.y) < len(images.classes)
    assert all(isinstance(name, str) for name in images.classes)


@examples(400)
@given(
    st.dictionaries(st.sampled_from(["images", "labels", "classes", "x_test", "y"]), any_array(), min_size=2)
)
def test_any_arrays_are_images_or_refused(tmp_path: Path, held: dict[str, np.ndarray]) -> None:
    np.savez(tmp_path / "a.npz", **held)  # type: ignore[arg-type]
    survives(lambda: used(data.load(f"npz:{tmp_path / 'a.npz'}")))


@examples(200)
@given(st.data(), st.booleans())
def test_damaged_arrays_are_images_or_refused(tmp_path: Path, seen: st.DataObject, compress: bool) -> None:
    save = np.savez_compressed if compress else np.savez
    save(tmp_path / "a.npz", images=np.zeros((2, 4, 4, 3), np.uint8), labels=np.arange(2))
    (tmp_path / "a.npz").write_bytes(seen.draw(damaged((tmp_path / "a.npz").read_bytes())))
    survives(lambda: used(data.load(f"npz:{tmp_path / 'a.npz'}")))


HEADERS = [
    "{'descr': '|u1', 'fortran_order': False, 'shape': (99999999999, 32, 32, 3), }",
    "{'descr': '|O', 'fortran_order': False, 'shape': (2,), }",
    "{'descr': '|u1', 'fortran_order': False, 'shape': (-1, 4, 4, 3), }",
    "{'descr': '|u1', 'fortran_order': 3, 'shape': 'x', }",
    "__import__('os').mkdir('pwned')",
    "(" * 200,
    "\0\0\0",
]


@pytest.mark.parametrize("header", HEADERS)
@pytest.mark.parametrize("where", ["images", "labels"])
def test_a_made_up_header_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, header: str, where: str
) -> None:
    monkeypatch.chdir(tmp_path)
    made = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode()
    good = io.BytesIO()
    np.save(good, np.zeros((2, 4, 4, 3), np.uint8) if where == "labels" else np.arange(2))
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr(f"{where}.npy", made)
        archive.writestr("labels.npy" if where == "images" else "images.npy", good.getvalue())
    with pytest.raises(BadInput):
        data.load("npz:a.npz")
    assert os.listdir(tmp_path) == ["a.npz"]


def test_objects_in_arrays_are_never_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("images", "labels", "classes"):
        held: dict[str, Any] = {"images": np.zeros((2, 4, 4, 3), np.uint8), "labels": np.arange(2)}
        held[name] = np.array([Evil(), Evil()], dtype=object)
        np.savez("a.npz", **held)
        with pytest.raises(BadInput, match="never unpickled"):
            data.load("npz:a.npz")
    assert tidy(tmp_path)


@examples(150)
@given(st.data())
def test_a_damaged_set_is_refused_or_whole(tmp_path: Path, seen: st.DataObject) -> None:
    pixels = torch.arange(96, dtype=torch.uint8).view(2, 3, 4, 4)
    whole = from_arrays(pixels, torch.arange(2))
    data.save(whole, tmp_path / "set.safetensors")
    (tmp_path / "set.safetensors").write_bytes(
        seen.draw(damaged((tmp_path / "set.safetensors").read_bytes()))
    )

    def same() -> None:
        found = data.load(f"file:{tmp_path / 'set.safetensors'}")
        used(found)
        assert found.digest == whole.digest

    survives(same)


# ---- image folders ---------------------------------------------------------------------------------------

names = st.sampled_from(
    [
        "a",
        "<img src=x onerror=alert(1)>",
        "[bold]x[bold]",
        "{{7*7}}",
        "é" * 60,
        "a b",
        "-rf",
        "'\"",
        "\x1b[2J",
        "\n",
        "%s",
    ]
) | st.text(st.characters(exclude_characters="/\0.", codec="utf-8"), min_size=1, max_size=20)
files = st.sampled_from(
    [picture(), picture(), picture("L"), picture(size=(9, 8)), picture(form="JPEG"), picture(form="BMP"), b""]
) | st.sampled_from([picture(), picture(form="JPEG"), picture(form="TIFF"), picture(form="WEBP")]).flatmap(
    damaged
)


@examples(150)
@given(
    st.dictionaries(names, st.lists(files, max_size=3), max_size=3),
    st.sampled_from(["", "@4", "@0", "@99999"]),
)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore:Image size")  # Pillow's, about damaged files
def test_any_folder_is_images_or_refused(tmp_path: Path, classes: dict[str, list[bytes]], size: str) -> None:
    root = Path(tempfile.mkdtemp(dir=tmp_path))
    for number, (name, inside) in enumerate(classes.items()):
        (root / f"{name}{number}").mkdir()
        for at, content in enumerate(inside):
            (root / f"{name}{number}" / f"{at}.png").write_bytes(content)
    survives(lambda: used(data.load(f"folder:{root}{size}")))


def png(width: int, height: int) -> bytes:
    """A PNG whose header promises what its body does not hold."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b""))
        + chunk(b"IEND", b"")
    )


@pytest.mark.filterwarnings("ignore:Image size")
@pytest.mark.parametrize("side", [0, 12_000, 100_000, 2**31 - 1])
@pytest.mark.parametrize("size", ["", "@8"])
def test_a_header_that_promises_too_many_pixels_is_refused(tmp_path: Path, side: int, size: str) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "0.png").write_bytes(png(side, side))
    with pytest.raises(BadInput):
        data.load(f"folder:{tmp_path}{size}")


def test_an_image_too_narrow_to_resize_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "0.png").write_bytes(picture(size=(60_000, 1)))
    with pytest.raises(BadInput, match="too narrow"):
        data.load(f"folder:{tmp_path}@64")


def test_what_is_no_plain_image_file_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "0.png").write_bytes(picture())
    os.mkfifo(tmp_path / "a" / "1.png")  # to open it would wait for ever
    for loop in ("b", "c"):
        (tmp_path / "a" / loop).symlink_to(tmp_path / "a")  # circles, in every order
    (tmp_path / "a" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    assert len(data.load(f"folder:{tmp_path}")) == 1
    postscript = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n"
    (tmp_path / "a" / "2.png").write_bytes(postscript)  # which Pillow would give to Ghostscript
    with pytest.raises(BadInput, match="not a readable image"):
        data.load(f"folder:{tmp_path}@8")


def test_names_that_are_no_text_are_shown_as_text(tmp_path: Path) -> None:
    folder = os.path.join(os.fsencode(tmp_path), b"caf\xe9")
    os.mkdir(folder)
    with open(os.path.join(folder, b"\xff.png"), "wb") as file:
        file.write(picture())
    images = data.load(f"folder:{tmp_path}")
    used(images)
    assert images.classes == ("caf\ufffd",)
