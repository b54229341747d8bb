"""Gaussian noise is N(0, sigma^2 I) as the papers and certificates define it; clipping is an option."""

import pytest
import torch

import trimtab
from nets import trained
from trimtab import data
from trimtab.data import Batch
from trimtab.data.embedded import sample
from trimtab.evaluate import Noise, Store, run

FIRST = 256


def noisy(x: torch.Tensor, image: int, sigma: float, seed: int = 0) -> torch.Tensor:
    """Add the noise of (seed, image, purpose 11), mixed by splitmix64 in plain Python, to one image."""
    mask, state = 2**64 - 1, 0x9E3779B97F4A7C15
    for part in (seed, image, 11):
        state = (state ^ part) * 0xBF58476D1CE4E5B9 & mask
        state = (state ^ (state >> 30)) * 0x94D049BB133111EB & mask
        state = (state ^ (state >> 27)) + 0x9E3779B97F4A7C15 & mask
        state ^= state >> 31
    generator = torch.Generator().manual_seed(state)
    return x + sigma * torch.empty(x.shape).normal_(generator=generator)


@pytest.mark.skipif(not data.available().get("cifar10"), reason="needs `trimtab data fetch cifar10`")
def test_noise_on_cifar10_equals_an_independent_loop_image_for_image(store: Store) -> None:
    model, images = trimtab.load("zoo:cifar10-noise").eval(), data.load("cifar10", "test")
    x, y, _ = images.take(torch.arange(FIRST))
    with torch.no_grad():
        plain = torch.cat([model(noisy(x[i], i, 0.5)[None]).argmax(1) for i in range(FIRST)]) == y
        clipped = (
            torch.cat([model(noisy(x[i], i, 0.5).clamp(0, 1)[None]).argmax(1) for i in range(FIRST)]) == y
        )
    rows = run(model, images, [Noise(0.5), Noise(0.5, clip=True)], store, limit=FIRST, examine=False).rows
    for row, expected in zip(rows, (plain, clipped), strict=True):
        (file,) = store.chunks(row.key).values()
        columns = store.read(file)
        assert columns is not None
        assert torch.equal(columns["correct"], expected)
    assert int((plain != clipped).sum()) > 10  # the two are different measurements
    assert [row.condition.clip for row in rows] == [False, True]
    assert str(rows[0].condition) == "Gaussian noise, sigma 0.5, unclipped"


def test_noise_leaves_the_pixel_range_unless_it_is_clipped() -> None:
    x = torch.rand(4, 1, 64, 64, generator=torch.Generator().manual_seed(0))
    batch = Batch(x, torch.zeros(4).long(), torch.arange(4))
    free, clipped = Noise("0.5").shown(batch, seed=3), Noise("0.5", clip=True).shown(batch, seed=3)
    assert float((free - x).std()) == pytest.approx(0.5, rel=0.02)
    assert float(free.min()) < -0.5
    assert float(free.max()) > 1.5
    assert torch.equal(clipped, free.clamp(0, 1))
    assert torch.equal(free[2], noisy(x[2], 2, 0.5, seed=3))


def test_clipped_and_unclipped_noise_are_cells_of_their_own(store: Store) -> None:
    rows = run(trained(), sample(), [Noise(0.5), Noise(0.5, clip=True)], store, limit=8, examine=False).rows
    assert len({row.key for row in rows}) == 2
    assert Noise.version == 2  # version 1 always clipped
