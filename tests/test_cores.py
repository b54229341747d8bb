"""Threads side by side: the same results as one after the other, and nothing left behind."""

from __future__ import annotations

import copy
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from trimtab import cores, norm
from trimtab.attacks import APGD, CW, PGD, Attack, Linf, Square
from trimtab.straight import Straight

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
        time.sleep(0.001)  # another thread has time to put its own features in place
        z: Tensor = self.last(self.seen)
        return z


class Random(Keeping):
    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = super().forward(x)
        return z + torch.rand_like(z)


class Counting(Keeping):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1  # type: ignore[operator]
        return super().forward(x)


class Tossing(Keeping):
    """Random by way of another library."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * float(np.random.rand())  # noqa: NPY002


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
    PGD(EPS, steps=5, score="any", restarts=2),
    CW(EPS, steps=5, targeted=True),
    APGD(EPS, steps=8),
    Square(EPS, queries=20),
]


@pytest.mark.parametrize("attack", ATTACKS, ids=str)
def test_an_attack_on_two_threads_finds_what_it_finds_on_one(
    attack: Attack, batch: tuple[Tensor, Tensor]
) -> None:
    net = Keeping().double().eval()
    torch.set_num_threads(2 * Straight.cores_each)
    two = attack.outcome(net, *batch, seed=5)
    torch.set_num_threads(1)
    one = attack.outcome(net, *batch, seed=5)
    torch.testing.assert_close(two.x, one.x, atol=1e-12, rtol=0)
    assert torch.equal(two.broken, one.broken)
    assert torch.equal(two.broken_at, one.broken_at)
    assert len(two.broken.unique()) == 2  # some are broken, some stand: there is something to confuse


def test_threads_work_at_the_same_time_with_a_network_each() -> None:
    net, meet = Keeping(), threading.Barrier(2, timeout=30)

    def run(own: nn.Module, item: int) -> tuple[int, int]:
        meet.wait()  # passes only if the other thread is here, too
        return id(own), item

    found = cores.spread(run, net, [0, 1], workers=2)
    assert [item for _, item in found] == [0, 1]
    assert len({own for own, _ in found}) == 2


def test_a_twin_shares_parameters_and_nothing_else() -> None:
    net = Keeping()
    own = cores.twin(net)
    assert all(a is b for a, b in zip(net.parameters(), own.parameters(), strict=True))
    assert not any(a is b for a, b in zip(net.buffers(), own.buffers(), strict=True))


def test_networks_that_could_go_wrong_side_by_side_are_taken_one_after_the_other() -> None:
    x = torch.rand(64, 3, 8, 8)
    assert cores.workers_for(Keeping().eval(), x) == 2
    assert cores.workers_for(Keeping().eval(), x[:20]) == 1
    for kind in (Random, Counting, Tossing):
        assert cores.workers_for(kind().eval(), x) == 1
    hooked = Keeping().eval()
    hooked.first.register_forward_hook(lambda *_: None)
    assert cores.workers_for(hooked, x) == 1
    assert cores.workers_for(torch.compile(Keeping().eval(), backend="eager"), x) == 1  # type: ignore[arg-type]
    torch.set_num_threads(1)
    assert cores.workers_for(Keeping().eval(), x) == 1


def test_networks_whose_passes_are_worth_more_than_one_core_get_fewer_threads() -> None:
    net, x = Keeping().eval(), torch.rand(64, 3, 8, 8)
    torch.set_num_threads(4)
    assert cores.workers_for(net, x) == 4
    net.cores_each = 2
    assert cores.workers_for(net, x) == 2
    torch.set_num_threads(2)
    assert cores.workers_for(net, x) == 1


def test_threads_compute_in_the_precision_in_force_and_leave_the_number_of_cores() -> None:
    a = torch.rand(4, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16), cores.side_by_side(2) as pool:
        seen = list(pool.map(lambda _: ((a @ a).dtype, torch.get_num_threads()), range(4)))
    assert set(seen) == {(torch.bfloat16, 1)}
    later: list[int] = []
    thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert torch.get_num_threads() == later[0] == 2


def test_asking_draws_nothing() -> None:
    net, x = Random().eval(), torch.rand(64, 3, 8, 8)
    before = torch.get_rng_state()
    assert cores.workers_for(net, x) == 1
    assert torch.equal(before, torch.get_rng_state())


def test_every_thread_attacks_the_branch_in_use(batch: tuple[Tensor, Tensor]) -> None:
    """Behind a sum nothing can be folded: the layer is still there, and must still be on its branch."""
    torch.manual_seed(3)
    first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.BatchNorm2d(8))
    net = nn.Sequential(first, nn.Conv2d(8, 8, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    branched = norm.add_branch(norm.steer(net.double().eval()), "adv")
    with torch.no_grad():
        for layer in norm.layers(branched).values():
            layer.holder("adv").weight.mul_(-2)
    plain = norm.release(copy.deepcopy(branched), branch="adv")
    with norm.use(branched, branch="adv"):
        found = PGD(EPS, steps=5)(branched, *batch)
    torch.testing.assert_close(found, PGD(EPS, steps=5)(plain, *batch), atol=1e-12, rtol=0)


def test_the_others_end_at_their_next_pass_once_one_fails() -> None:
    net, passes = Keeping().eval(), []
    x = torch.rand(2, 3, 8, 8)

    def run(own: nn.Module, item: int) -> None:
        if item == 0:
            raise KeyboardInterrupt
        for _ in range(10_000):  # 10 s and more
            own(x)
            passes.append(item)

    with pytest.raises(KeyboardInterrupt):
        cores.spread(run, net, [0, 1], workers=2)
    assert len(passes) < 1_000
    assert not net._forward_pre_hooks


def test_an_error_in_a_thread_reaches_the_caller() -> None:
    def fail(net: nn.Module, item: int) -> None:
        raise ValueError(f"item {item}")

    with pytest.raises(ValueError, match="item 0"):
        cores.spread(fail, Keeping(), [0, 1, 2], workers=2)
    assert torch.get_num_threads() == 2


FETCHED = """
import resource, sys, torch
from trimtab import attacks, models
if sys.argv[1] == "without":
    attacks.base.keep_features = lambda: None
torch.manual_seed(0), torch.set_num_threads(1)
model, attack = models.build("resnet8", classes=10, width=16).eval(), attacks.PGD(attacks.Linf(0.01), steps=3)
x, y = torch.rand(32, 3, 32, 32), torch.arange(32) % 10
taken = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def several():
    before = taken()
    for _ in range(5): attack(model, x, y)
    return taken() - before
several()
print(several())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is glibc that learns")
def test_later_attacks_find_the_memory_of_those_before() -> None:
    kept, given_back = (
        int(subprocess.check_output([sys.executable, "-c", FETCHED, how])) for how in ("with", "without")
    )
    if given_back < 1_000:
        pytest.skip(f"this system hands memory out in large pages ({given_back} of them)")
    assert kept < given_back / 10
