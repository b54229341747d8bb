"""A run that is killed: first undisturbed in one folder; then in another, killed and run again.

Runs are forked, so that Python and torch are loaded only once. Each is killed at a random moment after the
store has grown to a random size, so that all of them fall within the work.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn

from trimtab import evaluate
from trimtab.attacks import FGSM, PGD, Linf
from trimtab.data.sets import from_arrays


def go(folder: Path) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(392, 4)
    )
    images = from_arrays(torch.rand(160, 3, 16, 16), torch.randint(0, 4, (160,)))
    suite = [evaluate.Clean(), evaluate.Noise(0.1), FGSM(), PGD(Linf("8/255"), steps=20)]
    card = evaluate.run(model, images, suite, store=folder / "store.sqlite", chunk=16, keep_images=True)
    (folder / "card.json").write_text(card.json())


def forked(folder: Path) -> int:
    child = os.fork()
    if child == 0:
        go(folder)
        os._exit(0)
    return child


def kept(folder: Path) -> int:
    return len(list(folder.rglob("*.safetensors")))


def main(whole: Path, killed: Path, seed: int, times: int) -> None:
    os.waitpid(forked(whole), 0)
    chance = random.Random(seed)
    for size in sorted(chance.sample(range(int(0.9 * kept(whole))), times)):
        child = forked(killed)
        while kept(killed) < size:
            time.sleep(0.001)
        time.sleep(chance.uniform(0, 0.03))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        print("killed" if os.WIFSIGNALED(status) else "finished", "at", kept(killed), "of", kept(whole))
    os.waitpid(forked(killed), 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
