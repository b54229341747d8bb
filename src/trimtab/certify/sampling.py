"""Classify many noisy copies of many images, fast, with noise that belongs to the image and not to the batch.

**Noise.** The draws of an image come in blocks of `BLOCK`; a block is filled by a generator of its own,
seeded by (seed, id, number of the block). So a draw is the same whatever the batch size, the order of
the images and the number of threads, and any part of a run can be repeated alone. All draws of an image
are independent: its blocks have distinct seeds by construction (torch's generator keeps 32 bits of a
seed; mixing the block's number into a hash would let two blocks of an image collide now and then).
Sharing noise *between* images would be sound for each certificate and cheaper, but would make their
errors fall together; antithetic or otherwise balanced draws would break the binomial law. Neither is done.

**Speed.** Noise is filled into contiguous rows of (height, width, channel), which seen as (channel,
height, width) are channels-last: filling a channels-last tensor directly takes ten times as long. Drawing
keeps but one core busy, so two threads work side by side with half of the cores each. Each has its own
copy of the network (folded, channels-last), so that a forward pass may keep things on its modules. Blocks
of several images share a batch; classes leave the device once per round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from queue import SimpleQueue
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trimtab import draws
from trimtab.attacks.base import check_images
from trimtab.attacks.guard import fast
from trimtab.certify.independence import require_independent
from trimtab.cores import side_by_side
from trimtab.models.memory import halving
from trimtab.straight import Straight
from trimtab.types import BadInput

BLOCK = 50
"""Draws that share a generator."""
THREADS = 2
BATCH_ON_CPU, BATCH_ELSEWHERE = 50, 1000
"""Rows of a forward pass by default. On a CPU larger ones spend their time on fresh memory pages."""

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with what is being done, how many draws are done (or spared), and how many there are."""
Piece: TypeAlias = tuple[int, int, int]
"""An image (its position in the call), the number of a block, and how many draws of it are wanted."""


@dataclass(frozen=True)
class Sampler:
    """Noisy copies of `images` and what the network says to them."""

    images: Tensor
    """(N, H, W, C): channels at the end, whatever lies between."""
    ids: Sequence[int]
    sigma: float
    seed: int
    classes: int
    batch_size: int
    networks: SimpleQueue[nn.Module]
    pool: ThreadPoolExecutor
    advance: Callable[[int], None]
    """Called with the number of draws done since the last call."""

    def count(self, which: NDArray[np.int64], first_block: int, n: int) -> NDArray[np.int64]:
        """How often each class won n draws, from a block on, of each image: (len(which), classes)."""
        won = []
        for classes in self.pool.map(self._classify, self._batches(which, first_block, n)):
            won.append(classes)
            self.advance(len(classes))
        owners = torch.arange(len(which), device="cpu").repeat_interleave(n)
        cells = owners * self.classes + torch.cat(won).cpu()
        return cells.bincount(minlength=len(which) * self.classes).view(-1, self.classes).numpy()

    def _batches(self, which: NDArray[np.int64], first_block: int, n: int) -> Iterator[list[Piece]]:
        pieces = (
            (image, first_block + done // BLOCK, min(BLOCK, n - done))
            for image in which.tolist()
            for done in range(0, n, BLOCK)
        )
        while batch := list(islice(pieces, max(1, self.batch_size // BLOCK))):
            yield batch

    @torch.no_grad()
    def _classify(self, batch: list[Piece]) -> Tensor:
        noisy = [self._noisy(*piece) for piece in batch]
        rows = (noisy[0] if len(noisy) == 1 else torch.cat(noisy)).movedim(-1, 1)  # (n, C, H, W)
        network = self.networks.get()
        try:
            return halving(
                lambda size: torch.cat([_winners(network, part) for part in rows.split(size)]),
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
    """One block of an image's noise. Blocks may be numbered below zero."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    source = draws.seeded((draws.key(seed, id) + block) % 2**32)
    return torch.empty(*shape, dtype=wide, device="cpu").normal_(0, sigma, generator=source).to(dtype)


def _winners(network: nn.Module, rows: Tensor) -> Tensor:
    # For a single row BLAS takes another kernel, which rounds differently; it is never given one.
    alone = len(rows) == 1
    return network(torch.cat([rows, rows]) if alone else rows).argmax(1)[: len(rows)]


@contextmanager
def sampler(
    model: nn.Module,
    x: Tensor,
    ids: Sequence[int],
    sigma: float,
    seed: int,
    batch_size: int | None,
    progress: Progress | None,
    total: int,
) -> Iterator[Sampler]:
    """A sampler that will take `total` draws of the images x (N, C, H, W). The model itself never runs."""
    check_images(x, torch.zeros(len(x), dtype=torch.long))  # labels play no part here
    if len(x) == 0:
        raise BadInput("there are no images to certify")
    if batch_size is None:
        batch_size = BATCH_ON_CPU if x.device.type == "cpu" else BATCH_ELSEWHERE
    require_positive(batch_size=batch_size)
    # A probe that knows nothing of x: how the networks are built must not depend on the images.
    source = draws.seeded(0)
    probe = torch.rand(4, *x.shape[1:], generator=source, device="cpu")
    probe = (probe + sigma * torch.randn(probe.shape, generator=source, device="cpu")).to(x)
    networks: SimpleQueue[nn.Module] = SimpleQueue()
    try:
        for _ in range(THREADS):
            network = fast(model, probe)
            networks.put(network)
        # Of the network itself: a straight line of it does the same every time.
        plain = network.net if isinstance(network, Straight) else network
        classes = require_independent(plain, probe)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise BadInput(f"the model cannot take images of shape {tuple(x.shape[1:])}: {reason}") from error
    images = x.detach().movedim(1, -1).contiguous()
    with side_by_side(THREADS) as pool:
        advance = _counter(progress, total)
        yield Sampler(images, ids, sigma, seed, classes, batch_size, networks, pool, advance)


def require_positive(**counts: int) -> None:
    for name, value in counts.items():
        if not isinstance(value, int) or value < 1:
            raise BadInput(f"{name} must be a whole number from 1 on, found {value!r}")


def _counter(progress: Progress | None, total: int) -> Callable[[int], None]:
    done = 0

    def advance(draws: int) -> None:
        nonlocal done
        done += draws
        if progress is not None:
            progress("drawing", done, total)

    return advance
