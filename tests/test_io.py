"""Files are replaced whole or not at all, and by one writer at a time."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trimtab.io import _here, atomic_write
from trimtab.types import BadInput


def write(target: Path, content: bytes, disk: str | None = None, fail: bool = False) -> None:
    with atomic_write(target) as part:
        if disk:
            part.symlink_to(disk)
        part.write_bytes(content)
        if fail:
            raise RuntimeError("killed")


def test_a_failure_while_writing_leaves_what_was_there(tmp_path: Path) -> None:
    target = tmp_path / "file"
    write(target, b"old")
    with pytest.raises(RuntimeError):
        write(target, b"half of the ne", fail=True)
    assert target.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a file on a full disk")
def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="disk is full"):
        write(tmp_path / "set", b"x" * 100_000, disk="/dev/full")
    assert list(tmp_path.iterdir()) == []


def test_a_device_is_never_replaced_by_a_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)  # stands for /dev/null, which root could do away with
    for place in (pipe, tmp_path):
        with pytest.raises(BadInput, match="not a file that can be replaced"), atomic_write(place):
            pass
    assert pipe.is_fifo()


def test_two_writers_never_share_a_file_and_the_next_one_tidies_up(tmp_path: Path) -> None:
    place = tmp_path / "a[1].bin"
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    owners = (f"{_here()}-{gone.pid}-0a", f"{_here()}-1-0a", f"elsewhere-{gone.pid}-0a", "x")
    dead, *others = (tmp_path / f".a[1].bin.{owner}.tmp" for owner in owners)
    for file in (dead, *others):
        file.write_text("half")
    with atomic_write(place) as part, atomic_write(place) as again:
        assert part != again
        part.write_text("half")
        again.write_text("whole")
    assert place.read_text() == "half"  # by who came last
    assert not dead.exists()
    assert all(file.exists() for file in others)  # process 1 lives, and of others' nothing is known
