"""Peak memory of each command, and of streaming an image folder that does not fit.

    python -m benchmarks.memory [--only NAME] [--files 100000]       writes docs/results/memory.json

Each command is a process of its own on CIFAR-10-sized images, with the memory that the system says it had
at its highest (ru_maxrss). The number of images hardly matters, so few are taken. `folder` makes so many
small PNG files in a temporary folder, reads all of them as evaluation does, and removes them.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

OUT = Path(__file__).parents[1] / "docs" / "results" / "memory.json"
NET = "net:resnet20"
COMMANDS = {
    "audit": ["audit", NET, "--data", "cifar10"],
    "evaluate": ["evaluate", NET, "--data", "cifar10", "--limit", "256"],
    "adapt": ["adapt", NET, "--data", "cifar10", "--limit", "256", "--sigma", "0.1"],
    "certify": ["certify", NET, "--data", "cifar10", "--limit", "4", "--n", "1000"],
    "analyze": ["analyze", NET, "--data", "cifar10", "--limit", "256"],
    "construct": ["construct", "D_rand", NET, "--data", "cifar10", "--limit", "256", "--steps", "2"],
    "train": ["train", "standard-laptop", "--epochs", "1", "--data.images", "2048", "--out", "run"],
    "doctor": ["doctor"],
}
READ = """
import sys
from trimtab import data
images = data.load(f"folder:{sys.argv[1]}@64")
seen = sum(len(batch.y) for batch in images.batches(256))
assert seen == int(sys.argv[2]), seen
print(type(images).__name__)
"""


def peak(command: list[str], folder: str) -> tuple[int, float, float]:
    """Exit code, megabytes at the highest, seconds."""
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        os.chdir(folder)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        os.execv(command[0], command)
    _, status, used = os.wait4(child, 0)
    return os.waitstatus_to_exitcode(status), used.ru_maxrss / 1024, time.monotonic() - began


def fill(folder: Path, files: int) -> None:
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", (8, 8), (90, 60, 30)).save(buffer, "PNG")
    for label in range(100):
        (folder / f"class{label:02d}").mkdir()
    for number in range(files):
        (folder / f"class{number % 100:02d}" / f"{number:06d}.png").write_bytes(buffer.getvalue())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", help=", ".join([*COMMANDS, "folder"]))
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--out", type=Path, default=OUT)
    asked = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    rows = []
    for name, words in COMMANDS.items():
        if asked.only in (None, name):
            with tempfile.TemporaryDirectory() as folder:
                rows.append(row(f"`trimtab {' '.join(words)}`", ["-m", "trimtab", *words], folder))
    for files in (asked.files // 10, asked.files) if asked.only in (None, "folder") else ():
        with tempfile.TemporaryDirectory() as folder:
            fill(Path(folder), files)
            rows.append(row(f"{files:,} files, read at 64x64", ["-c", READ, folder, str(files)], "/"))
    about = {"command": "python -m benchmarks.memory", "python": platform.python_version(), "rows": rows}
    asked.out.write_text(json.dumps(about, indent=1) + "\n")


def row(what: str, words: list[str], folder: str) -> dict[str, Any]:
    """The peak of a Python process in a folder; one that fails ends the measurement."""
    code, megabytes, seconds = peak([sys.executable, *words], folder)
    if code:
        sys.exit(f"{what} ended with {code}")
    print(f"{what}: {megabytes:.0f} MB, {seconds:.0f} s", flush=True)
    return {"what": what, "megabytes": round(megabytes), "seconds": round(seconds, 1)}


if __name__ == "__main__":
    main()
