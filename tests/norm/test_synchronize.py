"""Two processes (gloo, on the CPU) against one with the whole batch, and DistributedDataParallel."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, multiprocessing, nn

from nets import differing, images, small, state
from trimtab import norm

Results = dict[str, dict[str, Tensor]]

LABELS = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
KNOBS: dict[str, dict[str, Any]] = {
    "plain": {},
    "groups": {"groups": 4},
    "blend": {"source": "blend", "rho": 0.4},
    "shift": {"shift": True},
    "route": {"branch": True},
    "running": {"source": "running", "update": True},
}


def batch() -> Tensor:
    return images(8, 2, 5, 5)


def model() -> nn.Module:
    return norm.add_branch(norm.steer(small()), "adv")


def knobs(name: str, images: int) -> dict[str, Any]:
    chosen = dict(KNOBS[name])
    if "shift" in chosen:
        delta = torch.tensor([0.1, -0.2, 0.3, 0.0], dtype=torch.float64)
        chosen["shift"] = {"bn1": norm.Shift(delta, -delta)}
    if "branch" in chosen:
        chosen["branch"] = [("main", images // 2), ("adv", images - images // 2)]
    return chosen


def passes(net: nn.Module, x: Tensor, y: Tensor, name: str) -> dict[str, Tensor]:
    """Two training passes; the logits of the second, gradients and all buffers."""
    with norm.use(net, **knobs(name, len(x))):
        for _ in range(2):
            net.zero_grad()
            x = x.detach().requires_grad_()
            logits = net(x)
            F.cross_entropy(logits, y).backward()
    assert x.grad is not None
    return {"logits": logits.detach(), "x.grad": x.grad} | state(net)


def rank_passes(rank: int, share: list[int]) -> Results:
    x, y = batch().split(share)[rank], LABELS.split(share)[rank]
    found = {name: passes(norm.synchronize(model()), x, y, name) for name in KNOBS if share[0] == share[1]}
    if not found:
        found["uneven"] = passes(norm.synchronize(model()), x, y, "plain")
    return found


def distributed_data_parallel(rank: int) -> Results:
    """Several forward passes in one step: a stock and a steered network, wrapped alike."""
    x, y = batch().chunk(2)[rank], LABELS.chunk(2)[rank]
    found = {}
    for name, net in (("stock", small()), ("steered", norm.steer(small()))):
        wrapped = nn.parallel.DistributedDataParallel(net, broadcast_buffers=False)
        optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            (F.cross_entropy(wrapped(x), y) + F.cross_entropy(wrapped(2 * x), y)).backward()
            optimizer.step()
        found[name] = state(net)

    # A clean and a steered pass in one step, the unused branch frozen before wrapping.
    net = norm.add_branch(norm.steer(small()), "spare")
    norm.freeze(net, branch="spare")
    wrapped = nn.parallel.DistributedDataParallel(net, broadcast_buffers=False)
    clean = F.cross_entropy(wrapped(x), y)
    with norm.use(wrapped, groups=2, update=False):
        (clean + F.cross_entropy(wrapped(x), y)).backward()
    found["mixed"] = state(net)
    return found


def own_group(rank: int) -> Results:
    """A layer whose process group is this rank alone: there is nothing to pool."""
    groups = [dist.new_group([one]) for one in range(2)]
    layer = norm.steer(nn.SyncBatchNorm(2, process_group=groups[rank])).double()
    x = batch().chunk(2)[rank] + rank
    return {"own group": {"y": layer(x).detach(), "wanted": nn.BatchNorm2d(2).double()(x).detach()}}


def worker(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    try:
        found = rank_passes(rank, [4, 4]) | rank_passes(rank, [5, 3]) | distributed_data_parallel(rank)
        found |= own_group(rank)
        torch.save(found, f"{folder}/{rank}.pt")
    finally:
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Results]:
    folder = str(tmp_path_factory.mktemp("ranks"))
    multiprocessing.spawn(worker, (folder,), nprocs=2)
    return [torch.load(Path(folder) / f"{rank}.pt") for rank in range(2)]


def alone(name: str) -> dict[str, Tensor]:
    """One process with the whole batch; a route takes both ranks' first halves for main, then the rest."""
    x, y = batch(), LABELS
    if name == "route":
        order = torch.tensor([0, 1, 4, 5, 2, 3, 6, 7])
        found = passes(model(), x[order], y[order], name)
        back = order.argsort()
        return found | {"logits": found["logits"][back], "x.grad": found["x.grad"][back]}
    return passes(model(), x, y, "plain" if name == "uneven" else name)


@pytest.mark.parametrize("name", KNOBS)
def test_synchronized_statistics_equal_those_of_the_whole_batch(ranks: list[Results], name: str) -> None:
    wanted = alone(name)
    for key, value in wanted.items():
        parts = [rank[name][key] for rank in ranks]
        if key == "logits":
            got = torch.cat(parts)
        elif key == "x.grad":
            got = torch.cat(parts) / 2  # each rank's loss is the mean over its half
        elif key.endswith(".grad"):
            got = sum(parts) / 2  # what DDP would do
        else:
            assert torch.equal(*parts), key
            got = parts[0]
        assert torch.allclose(got, value, rtol=1e-9, atol=1e-12), key


def test_ranks_of_unequal_size_weigh_by_their_images(ranks: list[Results]) -> None:
    wanted = alone("uneven")
    assert torch.allclose(torch.cat([rank["uneven"]["logits"] for rank in ranks]), wanted["logits"])
    for key in ("bn1.running_mean", "bn1.running_var", "bn2.running_mean", "bn2.running_var"):
        for rank in ranks:
            assert torch.allclose(rank["uneven"][key], wanted[key])


def test_a_steered_network_in_ddp_is_the_stock_one(ranks: list[Results]) -> None:
    for rank in ranks:
        assert differing(rank["stock"], rank["steered"]) == []


def test_a_step_of_a_plain_and_a_grouped_pass_in_ddp_averages_gradients(ranks: list[Results]) -> None:
    each = []
    for x, y in zip(batch().chunk(2), LABELS.chunk(2), strict=True):
        net = small()
        halves = copy.deepcopy(net)
        loss = F.cross_entropy(net(x), y)
        with norm.use(norm.steer(halves), groups=2, update=False):
            loss = loss + F.cross_entropy(halves(x), y)
            loss.backward()
        one, other = state(net), state(halves)
        each.append({key: one[key] + other[key] for key in one if key.endswith(".grad")})
    for rank in ranks:
        for key in each[0]:
            assert torch.allclose(rank["mixed"][key], (each[0][key] + each[1][key]) / 2), key
        assert "bn1.branches.spare.weight.grad" not in rank["mixed"]


def test_a_layer_with_a_process_group_of_its_own_pools_within_it(ranks: list[Results]) -> None:
    for rank in ranks:
        torch.testing.assert_close(rank["own group"]["y"], rank["own group"]["wanted"])
