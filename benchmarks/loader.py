"""How much of an epoch of ResNet-8 (width 16) training on 32x32 images is spent waiting for the loader?

    python benchmarks/loader.py [--batches 60] [--batch-size 128] [--threads 2] [--cpu]

Loading and training alternate as they do in a training loop, and each is timed; the share is
loading / (loading + training). On a busy machine measure processor time, with one thread: --threads 1 --cpu.
Pixels are random: what they show costs nothing.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from trimtab import data, models
from trimtab.data.sets import from_arrays

AUGMENTS: tuple[tuple[str, ...], ...] = (
    (),
    ("crop", "flip"),
    ("crop", "flip", "mixup"),
    ("crop", "flip", "cutmix"),
    ("random-resized-crop", "flip"),
    ("augmix", "crop", "flip"),
)


def seconds(
    images: data.ImageSet, batch_size: int, batches: int, augment: tuple[str, ...], clock: Callable[[], float]
) -> tuple[float, float]:
    """To load a batch and to train on it: medians, without the first fifth."""
    model = models.build("resnet8", classes=10, input=images.spec, width=16)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loading, training = [], []
    loader = iter(data.Loader(images, batch_size, augment=augment))
    for _ in range(batches):
        started = clock()
        x, y, _ids = next(loader)
        loaded = clock()
        optimiser.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimiser.step()
        loading.append(loaded - started)
        training.append(clock() - loaded)
    return statistics.median(loading[batches // 5 :]), statistics.median(training[batches // 5 :])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--cpu", action="store_true")
    chosen = parser.parse_args()
    clock = time.process_time if chosen.cpu else time.perf_counter
    torch.set_num_threads(chosen.threads)
    torch.manual_seed(0)
    pixels = torch.randint(0, 256, (50_000, 3, 32, 32), dtype=torch.uint8)
    images = from_arrays(pixels, torch.arange(50_000) % 10)
    print(f"{chosen.threads} threads, batches of {chosen.batch_size}, medians of {chosen.batches} batches")
    for augment in AUGMENTS:
        load, train = seconds(images, chosen.batch_size, chosen.batches, augment, clock)
        times = f"load {load * 1e3:6.2f} ms   train {train * 1e3:6.2f} ms"
        print(f"{' '.join(augment) or 'nothing':28} {times}   share {load / (load + train):6.1%}")


if __name__ == "__main__":
    main()
