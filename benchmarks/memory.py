"""Peak memory of each command, and of streaming an image folder that does not fit.

    python benchmarks/memory.py [--only NAME] [--files 100000]

Each command is a process of its own on CIFAR-10-sized images, with the memory that the system says it had
at its highest (ru_maxrss). The number of images hardly matters, so few are taken. `folder` makes so many
small PNG files in a temporary folder, reads all of them as evaluation does, and removes them.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import tempfile
import time
from pathlib import Path

NET = "net:resnet20"
COMMANDS = {
    "audit": ["audit", NET, "--data", "cifar10"],
    "evaluate": ["evaluate", NET, "--data", "cifar10", "--limit", "256"],
    "adapt": ["adapt", NET, "--data", "cifar10", "--limit", "256", "--sigma", "0.1"],
    "certify": ["certify", NET, "--data", "cifar10", "--limit", "4", "--n", "1000"],
    "lens": ["lens", NET, "--data", "cifar10", "--limit", "256"],
    "construct": ["construct", "D_rand", NET, "--data", "cifar10", "--limit", "256", "--steps", "2"],
    "train": ["train", "standard-laptop", "--epochs", "1", "--data.images", "2048", "--out", "run"],
    "report": ["runs"],
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
    asked = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    print("| command | peak MB |\n|---|---|", flush=True)
    for name, words in COMMANDS.items():
        if asked.only in (None, name):
            with tempfile.TemporaryDirectory() as folder:
                code, megabytes, _ = peak([sys.executable, "-m", "trimtab", *words], folder)
            ended = "" if code == 0 else f" (exit code {code})"
            print(f"| `trimtab {' '.join(words)}`{ended} | {megabytes:.0f} |", flush=True)
    if asked.only in (None, "folder"):
        for files in (asked.files // 10, asked.files):
            with tempfile.TemporaryDirectory() as folder:
                fill(Path(folder), files)
                code, megabytes, seconds = peak([sys.executable, "-c", READ, folder, str(files)], "/")
            ended = "" if code == 0 else f" (exit code {code})"
            print(f"| {files:,} files, read at 64x64{ended} | {megabytes:.0f} |", flush=True)
            print(f"{files} files took {seconds:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
