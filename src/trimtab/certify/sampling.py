"""Classify noisy copies of images in batches, with noise that depends on the image, not on the batch.

**Noise.** The samples of an image come in blocks of `BLOCK`; each block has its own generator, seeded by
(seed, id, block number). So a sample does not depend on the batch size, the order of the images or the
number of threads, and any part of a run can be reproduced by itself. All samples of an image are
independent: its blocks have distinct seeds by construction (torch's generator uses 32 bits of a seed; if the
block number were hashed, two blocks of an image could collide). Sharing noise *between* images would be
cheaper and each certificate would still be sound, but their errors would be correlated; with antithetic or
otherwise balanced samples the counts would not be binomial. Neither is done.

**Speed.** Noise is sampled into contiguous (N, H, W, C) tensors and viewed as channels-last (N, C, H, W):
sampling into a channels-last tensor directly takes ten times as long. Sampling uses one core only, so two
threads run in parallel with half of the cores each. Each has its own copy of the network (folded,
channels-last), since a forward pass may store values on its modules. Blocks of several images share a
batch; predictions are copied from the device once per round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from queue import SimpleQueue
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trimtab import rng
from trimtab._accel import accelerate, thread_pool
from trimtab._clone import shallow_clone
from trimtab.attacks.base import LARGE, MEMORY
from trimtab.certify.independence import require_independent
from trimtab.runtime import (
    check_images,
    images_within,
    is_out_of_memory,
    require_usable,
    retry_halved,
    unwrap,
)
from trimtab.types import BadInput, counts

BLOCK = 50
"""Samples that share a generator."""
THREADS = 2
"""Networks that run in parallel."""
BATCH_ON_CPU, BATCH_ELSEWHERE = 50, 1000
"""Default batch sizes. Larger batches are slower on a CPU, which then allocates new memory pages."""

SampleProgress: TypeAlias = Callable[[str, int, int], None]
"""Called with the name of the phase, the number of samples done (or skipped), and their total."""
Piece: TypeAlias = tuple[int, int, int]
"""An image (its position in the call), a block number, and the number of samples to take from the block."""


@dataclass(frozen=True)
class Sampler:
    """Classify noisy copies of `images`, in batches and in parallel."""

    images: Tensor
    """(N, H, W, C): channels last, any number of dimensions in between."""
    ids: Sequence[int]
    sigma: float
    seed: int
    classes: int
    batch_size: int
    networks: SimpleQueue[nn.Module]
    pool: ThreadPoolExecutor
    advance: Callable[[int], None]
    """Called with the number of samples done since the last call."""

    def count(self, positions: NDArray[np.int64], first_block: int, n: int) -> NDArray[np.int64]:
        """Return how often each class is predicted for n samples of each image: (images, classes).

        Args:
            positions: Positions of the images in `images`.
            first_block: The block that the samples start with.
            n: Samples per image.
        """
        predicted = []
        for classes in self.pool.map(self._classify, self._batches(positions, first_block, n)):
            predicted.append(classes)
            self.advance(len(classes))
        rows = torch.arange(len(positions), device="cpu").repeat_interleave(n)
        cells = rows * self.classes + torch.cat(predicted).cpu()
        return cells.bincount(minlength=len(positions) * self.classes).view(-1, self.classes).numpy()

    def _batches(self, positions: NDArray[np.int64], first_block: int, n: int) -> Iterator[list[Piece]]:
        pieces = (
            (image, first_block + done // BLOCK, min(BLOCK, n - done))
            for image in positions.tolist()
            for done in range(0, n, BLOCK)
        )
        while batch := list(islice(pieces, max(1, self.batch_size // BLOCK))):
            yield batch

    @torch.no_grad()
    def _classify(self, batch: list[Piece]) -> Tensor:
        noisy = [self._noisy(*piece) for piece in batch]
        x = (noisy[0] if len(noisy) == 1 else torch.cat(noisy)).movedim(-1, 1)  # (n, C, H, W)
        network = self.networks.get()
        try:
            return retry_halved(
                lambda size: torch.cat([_predictions(network, part) for part in x.split(size)]),
                self.batch_size,
            )
        finally:
            self.networks.put(network)

    def _noisy(self, image: int, block: int, n: int) -> Tensor:
        clean = self.images[image]
        noise = gaussian((BLOCK, *clean.shape), self.sigma, self.seed, self.ids[image], block, clean.dtype)
        return noise[:n].to(clean.device).add_(clean)


def gaussian(
    shape: Sequence[int], sigma: float, seed: int, id: int, block: int, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Return one block of an image's noise; block numbers may be negative."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    generator = rng.seeded((rng.key(seed, id) + block) % 2**32)
    return torch.empty(*shape, dtype=wide, device="cpu").normal_(0, sigma, generator=generator).to(dtype)


def _predictions(network: nn.Module, x: Tensor) -> Tensor:
    # For a single image BLAS uses another kernel, which rounds differently; so a single image is doubled.
    logits: Tensor = network(torch.cat([x, x]) if len(x) == 1 else x)
    return logits.argmax(1)[: len(x)]


@contextmanager
def sampler(
    model: nn.Module,
    x: Tensor,
    ids: Sequence[int],
    sigma: float,
    seed: int,
    batch_size: int | None,
    progress: SampleProgress | None,
    total: int,
) -> Iterator[Sampler]:
    """Yield a sampler of `total` samples of the images x (N, C, H, W); it runs copies of the model.

    Args:
        model: The base classifier.
        x: The images.
        ids: Their indices in their set.
        sigma: Std of the noise.
        seed: Seed of the noise.
        batch_size: Noisy images per forward pass; None for the default of the device.
        progress: Called as samples are classified.
        total: Samples of all images together.
    """
    check_images(x, torch.zeros(len(x), dtype=torch.long))  # labels do not matter here
    if len(x) == 0:
        raise BadInput("there are no images to certify")
    if batch_size is not None:
        counts(batch_size=batch_size)
    # The probe is independent of x: how the networks are built must not depend on the images.
    generator = rng.seeded(0)
    probe = torch.rand(4, *x.shape[1:], generator=generator, device="cpu")
    probe = (probe + sigma * torch.randn(probe.shape, generator=generator, device="cpu")).to(x)
    require_usable(model, probe)
    networks: SimpleQueue[nn.Module] = SimpleQueue()
    try:
        network = accelerate(unwrap(model), probe)
        networks.put(network)
        if batch_size is None:
            batch_size = _fitting(network, probe)
        for _ in range(THREADS - 1):
            networks.put(shallow_clone(network))
        classes = require_independent(network, probe)
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        reason = str(error).splitlines()[0]
        raise BadInput(f"the model cannot take images of shape {tuple(x.shape[1:])}: {reason}") from error
    images = x.detach().movedim(1, -1).contiguous()
    with thread_pool(THREADS) as pool:
        advance = _counter(progress, total)
        yield Sampler(images, ids, sigma, seed, classes, batch_size, networks, pool, advance)


def _fitting(network: nn.Module, x: Tensor) -> int:
    """Return the default batch size; on a CPU, large images of all threads together stay within 2 GB."""
    if x.device.type != "cpu":
        return BATCH_ELSEWHERE
    if x[:1].numel() <= LARGE:
        return BATCH_ON_CPU
    with suppress(RuntimeError):  # of a model that takes no image with a gradient
        both = images_within(MEMORY, network, x, gradients=False, most=THREADS * BATCH_ON_CPU)
        return max(1, both // THREADS)
    return BATCH_ON_CPU


def _counter(progress: SampleProgress | None, total: int) -> Callable[[int], None]:
    done = 0

    def advance(samples: int) -> None:
        """Report that more samples are done."""
        nonlocal done
        done += samples
        if progress is not None:
            progress("sampling", done, total)

    return advance
