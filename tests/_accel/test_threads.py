"""Threads: the number of cores does not change an attack, and a pool leaves nothing as it was not."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from trimtab import _accel
from trimtab.attacks import APGD, CW, PGD, Attack, Linf, Square

EPS = Linf("8/255")


class Keeping(nn.Module):
    """A network that keeps its features on itself between two layers, as many do."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.last = nn.Linear(8, 4)
        self.seen = torch.zeros(0)

    def forward(self, x: Tensor) -> Tensor:
        self.seen = self.first(x).mean((2, 3))
        z: Tensor = self.last(self.seen)
        return z


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(1)
    x = torch.rand(70, 3, 8, 8, generator=source, dtype=torch.float64)
    return x, torch.randint(0, 4, (70,), generator=source)


ATTACKS: list[Attack] = [
    PGD(EPS, steps=5),
    PGD(EPS, steps=5, early_stop=True, restarts=2),
    CW(EPS, steps=5, targeted=True),
    APGD(EPS, steps=8),
    Square(EPS, queries=20),
]


@pytest.mark.parametrize("attack", ATTACKS, ids=str)
def test_an_attack_on_two_cores_finds_what_it_finds_on_one(
    attack: Attack, batch: tuple[Tensor, Tensor]
) -> None:
    net = Keeping().double().eval()
    torch.set_num_threads(2)
    two = attack.outcome(net, *batch, seed=5)
    torch.set_num_threads(1)
    one = attack.outcome(net, *batch, seed=5)
    torch.testing.assert_close(two.x, one.x, atol=1e-12, rtol=0)
    assert torch.equal(two.success, one.success)
    assert torch.equal(two.success_at, one.success_at)
    assert len(two.success.unique()) == 2  # some succeed, some fail: there is something to confuse


def test_threads_compute_in_the_precision_in_force_and_leave_the_number_of_cores() -> None:
    a = torch.rand(4, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16), _accel.thread_pool(2) as pool:
        seen = list(pool.map(lambda _: ((a @ a).dtype, torch.get_num_threads()), range(4)))
    assert set(seen) == {(torch.bfloat16, 1)}
    later: list[int] = []
    thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert torch.get_num_threads() == later[0] == 2
