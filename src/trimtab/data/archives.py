"""Archives, read without unpacking them.

Members are read one by one into memory and never written to disk, so an archive cannot place a file
anywhere. One that holds a path outside its folder, a link or a device is refused all the same, since it is
not what its publisher made.
"""

from __future__ import annotations

import re
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import TypeAlias

from trimtab.io import existing, reading
from trimtab.types import BadInput

Wanted: TypeAlias = Callable[[str], object]
LARGEST = 2**30
"""Largest size in bytes of an unpacked file; no published file is larger."""


def members(path: Path, is_wanted: Wanted) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of the wanted files of a tar or zip archive, in the archive's order.

    Args:
        path: The archive.
        is_wanted: Called with the name of each file.
    """
    path = existing(path)
    with reading(path, "a tar or zip archive"):
        is_zip = zipfile.is_zipfile(path)
        if not is_zip and not tarfile.is_tarfile(path):
            raise ValueError  # `reading` turns it into BadInput
    read = _zip_members if is_zip else _tar_members
    try:
        with reading(path):
            yield from read(path, is_wanted)
    except NotImplementedError as problem:  # an unsupported compression or encryption
        raise BadInput(f"{path} cannot be read: {problem}") from None


def _tar_members(path: Path, is_wanted: Wanted) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(path) as archive:
        for member in archive:
            _refuse_unsafe(path, member.name, special=not (member.isfile() or member.isdir()))
            if member.isfile() and is_wanted(member.name):
                _refuse_large(path, member.name, member.size)
                file = archive.extractfile(member)
                assert file is not None  # only links and devices have no content
                yield member.name, file.read()


def _zip_members(path: Path, is_wanted: Wanted) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            kind = member.external_attr >> 28  # the file type of a unix mode: 0 unset, 4 folder, 8 file
            _refuse_unsafe(path, member.filename, special=kind not in (0, 4, 8))
            if not member.is_dir() and is_wanted(member.filename):
                _refuse_large(path, member.filename, member.file_size)  # zipfile unpacks no more than this
                yield member.filename, archive.read(member)


def _refuse_unsafe(path: Path, name: str, special: bool) -> None:
    if special:
        raise BadInput(f"{path} holds a link or device ({name}), which no data set needs; it is not used")
    inside = PurePosixPath(name.replace("\\", "/"))
    if inside.is_absolute() or ".." in inside.parts or re.match("[A-Za-z]:", name):
        raise BadInput(f"{path} holds a path outside its folder ({name}); it is not used")


def _refuse_large(path: Path, name: str, size: int) -> None:
    if size > LARGEST:
        raise BadInput(
            f"{name} in {path} unpacks to {size / 2**30:.1f} GiB, which is no published file's size"
        )
