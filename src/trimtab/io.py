"""Files: what cannot be read is named in one sentence, what is written is whole or not there.

Files are written next to their place, synced, then renamed.

Every writer has its own temporary file, whatever machines and containers share the folder. What a killed
process left there is removed by the next writer of the same file on the same machine; whether processes of
other machines are alive is unknown.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import platform
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from trimtab.types import BadInput

_HEADS = {
    b"\x80": "a Python pickle, which is never opened",
    b"\x1f\x8b": "a gzip file",
    b"PK\x03\x04": "a zip file",
    b"\x93NUMPY": "a NumPy array",
    b"\x89PNG": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"\x89HDF": "an HDF5 file",
    b"version https://git-lfs": "a Git LFS pointer, fetch the file that it points to",
}


def existing(path: str | Path) -> Path:
    """Return the path of a file that is there; `~` is expanded."""
    path = Path(path).expanduser()
    if not path.is_file():
        raise BadInput(f"{path} is {'a folder, not a file' if path.is_dir() else 'not there'}")
    return path


def kind_of(path: Path) -> str:
    """Return what a file is by its first bytes, in words for an error message."""
    with open(path, "rb") as file:
        head = file.read(512)
    if not head:
        return "an empty file"
    if head.lstrip().lower().startswith((b"<!doctype html", b"<html", b"<head", b"<?xml")):
        return "a web page (HTML)"
    unknown = f"{path.stat().st_size} bytes of another kind, or cut short"
    return next((words for start, words in _HEADS.items() if head.startswith(start)), unknown)


@contextmanager
def reading(path: Path, what: str | None = None) -> Iterator[None]:
    """Turn whatever a reader raises on a file that is damaged, or made to do harm, into one sentence.

    Args:
        path: the file.
        what: what it should be, such as "a NumPy array"; if not given, it is that, but damaged.
    """
    try:
        yield
    except BadInput:
        raise
    except Exception:  # the reader of a foreign format can fail in any way
        if what is None:
            raise BadInput(f"{path} is damaged or cut short; fetch or save it again") from None
        raise BadInput(f"{path} is not {what}: it is {kind_of(path)}") from None


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a file next to `path` to write to: synced and renamed on success, else removed.

    Args:
        path: the file to replace, or to create with the folders that it lies in.
    """
    if not path.name:
        raise BadInput(f"{str(path)!r} names no file to write; give a name")
    if _is_special(path):  # to rename over a device would do away with it
        raise BadInput(f"{path} is a folder or a device, not a file that can be replaced; give another name")
    part = path.with_name(f".{path.name}.{_here()}-{os.getpid()}-{uuid.uuid4().hex[:12]}.tmp")
    try:
        with readable_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            _remove_leftovers(path)
            yield part
            with open(part, "rb+") as file:
                os.fsync(file.fileno())
            part.chmod(0o644)  # safetensors writes files for their owner only
            os.replace(part, path)
            _sync_folder(path.parent)
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


@contextmanager
def readable_errors(path: Path) -> Iterator[None]:
    """Turn an error of the operating system into one sentence that says why `path` cannot be written."""
    try:
        yield
    except (OSError, SafetensorError) as problem:
        # safetensors wraps the operating system's error in its own
        known = getattr(problem, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
        full = known or "os error 28" in str(problem)
        plain = getattr(problem, "strerror", None) or problem
        why = "the disk is full; free some space and try again" if full else plain
        raise BadInput(f"{path} could not be written: {why}") from None


def _is_special(path: Path) -> bool:
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except OSError:  # nothing is there, or writing will say what is wrong
        return False


def _here() -> str:
    """This machine's name, as a part of a file's."""
    return "".join(c for c in platform.node() if c.isalnum()) or "here"


def _remove_leftovers(path: Path) -> None:
    for left in path.parent.glob(f".{escape(path.name)}.{_here()}-*-*.tmp"):
        owner = left.name.split("-")[-2]
        if owner.isdigit() and not _is_alive(int(owner)):
            left.unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # somebody else's, or no process at all
        pass
    return True


def _sync_folder(folder: Path) -> None:
    """Make a rename survive a power cut, where the system lets folders be opened."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def digest(value: Any) -> str:
    """Return the hash of a JSON value, the same for equal values."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def canonical(value: Any) -> str:
    """Return a JSON value as text, the same for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
