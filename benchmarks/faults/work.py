"""The work that faults fall into: real commands on tiny inputs, each with what it must end in.

A job runs in a forked child, in a folder of its own, as `trimtab` does from a shell. Started again in the
same folder it is the same command (a training that has a checkpoint is resumed, as its message says).
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
import tarfile
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import torch

import trimtab
from trimtab import data, models
from trimtab.cli import main
from trimtab.data.sources import Url
from trimtab.evaluate import Store
from trimtab.types import BadInput

ANSWER = "answer.json"
"""Where a command's stdout goes, once it has ended well."""
fetching = sys.modules["trimtab.data.fetch"]  # `trimtab.data.fetch` is the function


@dataclass(frozen=True)
class Job:
    run: Callable[[Path], int]
    """Do the work, or go on with it, in this folder; the exit code."""
    results: tuple[str, ...]
    """The files that must come out, byte for byte."""
    state: tuple[str, ...]
    """Files that hold what was done so far: what a bad disk could damage."""


def command(*words: str, answer: bool = True) -> int:
    """A command line, in the folder that this process is in."""
    out = io.StringIO()
    with redirect_stdout(out):
        code = main(list(words))
    if code == 0 and answer:
        try:
            Path(f".{ANSWER}").write_text(out.getvalue())
        except OSError as problem:  # as a shell's redirection would
            print(f"trimtab: {problem}", file=sys.stderr)
            return 2
        os.replace(f".{ANSWER}", ANSWER)
    return code


def training(folder: Path) -> int:
    if (folder / "run" / "checkpoints" / "last.safetensors").exists():
        return command("train", "--resume", "run", answer=False)
    small = ["--model", "net:resnet8,width=4", "--epochs", "3", "--data.images", "256", "--batch_size", "32"]
    chosen = ["--validation.choose", "clean", "--ema", "0.9", "--checkpoint_steps", "2"]
    return command("train", "smoke", "--out", "run", *small, *chosen, answer=False)


def evaluating(folder: Path) -> int:
    small = ["--limit", "12", "--chunk", "2"]
    return command("evaluate", f"file:{shared()}/net", *small, "--store", "s/store.sqlite", "--json")


def certifying(folder: Path) -> int:
    small = ["--limit", "80", "--n", "50", "--n0", "20", "--sigma", "0.1"]
    return command("certify", f"file:{shared()}/net", *small, "--store", "s/store.sqlite", "--json")


def constructing(folder: Path) -> int:
    small = ["--limit", "1024", "--steps", "1", "--out", "set.npz"]
    return command("construct", "D_rand", f"file:{shared()}/net", *small, answer=False)


def fetching_from_a_file(folder: Path) -> int:
    return command(
        "data", "fetch", "cifar10", "--root", ".", "--source", f"{shared()}/cifar.tar", answer=False
    )


def fetching_from_a_server(folder: Path) -> int:
    """As from the publisher: a download that is continued, then decoded."""
    return command("data", "fetch", "cifar10", "--root", ".", answer=False)


def storing(folder: Path) -> int:
    """Nothing but commits; what the store does not give back whole is made again, as an evaluation does."""
    store = Store("s/store.sqlite")
    found = []
    try:
        for span in ((start, start + 16) for start in range(0, 480, 16)):
            file = store.chunks("cell").get(span)
            held = store.read(file) if file else None
            if held is None:
                held = {"correct": torch.arange(*span)}
                store.forget("cell", span)
                store.commit("cell", {"a": 1}, span, held)
            found.append(held["correct"].tolist())
        Path(f".{ANSWER}").write_text(json.dumps(found))
    except BadInput as problem:
        print(f"trimtab: {problem}", file=sys.stderr)
        return 2
    except OSError as problem:  # of the answer, as a shell's redirection would
        print(f"trimtab: {problem}", file=sys.stderr)
        return 2
    os.replace(f".{ANSWER}", ANSWER)
    return 0


def saving(folder: Path) -> int:
    """The same place written again and again: once it was written, there is always a whole network in it."""
    if Path("written").exists():
        trimtab.load("file:net")
    for number in range(20):
        torch.manual_seed(number)
        trimtab.save(models.build("resnet8", classes=10, width=8, channels=1), "net")
        Path("written").touch()
    return 0


JOBS = {
    "train": Job(
        training,
        ("run/model.safetensors", "run/model.json", "run/metrics.jsonl", "run/stock/main.pt"),
        ("run/checkpoints/*.safetensors", "run/metrics.jsonl"),
    ),
    "evaluate": Job(evaluating, (ANSWER,), ("s/store.sqlite", "s/samples/*/*")),
    "certify": Job(certifying, (ANSWER,), ("s/store.sqlite", "s/samples/*/*")),
    "construct": Job(constructing, ("set.npz",), (".set-*/*.safetensors",)),
    "fetch": Job(
        fetching_from_a_server,
        ("cifar10/train.safetensors", "cifar10/test.safetensors"),
        ("cifar10/*.safetensors", "cifar10/download/*"),
    ),
    "fetch, file": Job(
        fetching_from_a_file,
        ("cifar10/train.safetensors", "cifar10/test.safetensors"),
        ("cifar10/*.safetensors",),
    ),
    "store": Job(storing, (ANSWER,), ("s/store.sqlite", "s/samples/*/*")),
    "save": Job(saving, ("net/model.safetensors", "net/model.json"), ("net/model.safetensors",)),
}


# ---- what jobs share ------------------------------------------------------------------------------------


def shared() -> Path:
    return Path(os.environ["TRIMTAB_FAULTS"])


def prepare(folder: Path) -> None:
    """A network, an archive laid out as CIFAR-10's, and a server that sends it piece by piece."""
    os.environ["TRIMTAB_FAULTS"] = str(folder)
    torch.manual_seed(0)
    net = models.build("resnet8", classes=10, width=4, channels=1)
    with torch.no_grad():
        net.train()(data.load("sample", "train").take(torch.arange(256)).x)
    trimtab.save(net.eval(), folder / "net")
    records = _archive(folder / "cifar.tar")
    content = (folder / "cifar.tar").read_bytes()
    address = f"http://127.0.0.1:{_serve(content)}/cifar.tar"
    part = fetching.PUBLISHED["cifar10"][0]
    small = type(part)((Url(address, hashlib.md5(content).hexdigest()),), part.decode, records)
    fetching.PUBLISHED["cifar10"] = (small,)  # in this process and its children


def _archive(path: Path) -> dict[str, int]:
    """The official layout with 500 images in each of its six files; how many each split has."""
    rng = np.random.default_rng(0)
    with tarfile.open(path, "w") as archive:
        for stem in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
            pixels = rng.integers(0, 256, (500, 3073), dtype=np.uint8)
            pixels[:, 0] %= 10
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{stem}.bin")
            member.size = pixels.size
            archive.addfile(member, io.BytesIO(pixels.tobytes()))
    return {"train": 2500, "test": 500}


def _serve(content: bytes) -> int:
    """A server with ranges in a process of its own; its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers.get("Range")
            start = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
            if start >= len(content):
                self.send_error(416)
                return
            self.send_response(206 if asked else 200)
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            try:
                for at in range(start, len(content), 1 << 18):
                    self.wfile.write(content[at : at + (1 << 18)])
            except ConnectionError:
                pass  # who asked was killed

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    parent = os.getpid()
    if os.fork() == 0:
        server.timeout = 1
        with redirect_stderr(io.StringIO()):
            while os.getppid() == parent:
                server.handle_request()
        os._exit(0)
    return server.server_address[1]
