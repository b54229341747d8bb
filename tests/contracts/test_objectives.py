"""What every objective promises, in one table."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.contracts import objective_table as table
from tests.contracts.objective_table import OBJECTIVES, STEPS, images, recipe, tiny, weights
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trimtab import models, norm, rng, train
from trimtab.data.loader import Loader
from trimtab.types import BadInput

every_objective = pytest.mark.parametrize("name", OBJECTIVES)


def batch(n: int = 8) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return images().take(torch.arange(n))


@every_objective
def test_it_adds_to_the_gradients_that_are_there(name: str) -> None:
    objective, (x, y, ids) = OBJECTIVES[name], batch()
    model = objective.prepare(tiny().double()).train()
    kept = norm.snapshot(model)
    objective(model, x.double(), y, seed=3, ids=ids)
    once = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    assert once
    norm.restore(model, kept)
    objective(model, x.double(), y, seed=3, ids=ids)
    for n, p in model.named_parameters():
        if n in once:
            torch.testing.assert_close(p.grad, 2 * once[n], msg=n)


@every_objective
def test_it_runs_its_backward_passes_through_the_caller_and_says_which_is_last(name: str) -> None:
    objective, (x, y, ids) = OBJECTIVES[name], batch()
    model = objective.prepare(tiny()).train()
    asked: list[bool] = []

    def backward(loss: torch.Tensor, last: bool) -> None:
        asked.append(last)
        loss.backward()

    parts = objective(model, x, y, backward, seed=3, ids=ids)
    assert asked == [False] * (len(asked) - 1) + [True]
    assert (len(asked) > 1) == objective.reads_gradients
    assert all(value.dim() == 0 and not value.requires_grad for value in parts.values())
    assert "loss" in parts


@every_objective
def test_it_leaves_modes_kinds_and_settings_as_they_were(name: str) -> None:
    objective, (x, y, ids) = OBJECTIVES[name], batch()
    model = objective.prepare(tiny()).train()
    model.pool.eval()
    kinds = [type(m) for m in model.modules()]
    before = [m.training for m in model.modules()], [layer.setting for layer in norm.layers(model).values()]
    frozen = [p.requires_grad for p in model.parameters()]
    objective(model, x, y, ids=ids)
    assert kinds == [type(m) for m in model.modules()]
    assert before == (
        [m.training for m in model.modules()],
        [layer.setting for layer in norm.layers(model).values()],
    )
    assert frozen == [p.requires_grad for p in model.parameters()]


def test_apart_asks_for_batch_statistics() -> None:
    x, y, ids = batch()
    with pytest.raises(BadInput, match="eval mode"):
        train.APART()(tiny().eval(), x, y, ids=ids)


@every_objective
def test_mixed_labels_are_taken(name: str) -> None:
    objective, (x, y, ids) = OBJECTIVES[name], batch()
    soft = torch.nn.functional.one_hot(y, table.CLASSES).float()
    hard_loss, soft_loss = (
        objective(objective.prepare(tiny()).train(), x, labels, seed=1, ids=ids)["loss"]
        for labels in (y, soft)
    )
    torch.testing.assert_close(hard_loss, soft_loss)


@every_objective
def test_a_users_ten_line_loop_and_ours_give_the_same_weights(name: str, tmp_path: Path) -> None:
    objective, how = OBJECTIVES[name], recipe(OBJECTIVES[name])
    ours = train.fit(tiny(), images(), how, tmp_path / "run").model

    model = objective.prepare(tiny().to(memory_format=torch.channels_last)).train()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, 0.05, momentum=0.9, weight_decay=5e-4)
    loader = Loader(images(), how.batch_size, augment=("flip",), seed=0)
    for step, (x, y, ids) in enumerate(loader):
        optimizer.zero_grad()
        objective(model, x, y, seed=rng.key(0, step), ids=ids)
        optimizer.step()

    found, wanted = weights(ours), weights(model)  # type: ignore[arg-type]
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        assert torch.equal(found[key], value), key


@every_objective
def test_it_trains_in_bf16(name: str, tmp_path: Path) -> None:
    run = train.fit(tiny(), images(), recipe(OBJECTIVES[name], precision="bf16-mixed"), tmp_path / "run")
    narrow, wide = (
        run.metrics()[0],
        train.fit(tiny(), images(), recipe(OBJECTIVES[name]), tmp_path / "wide").metrics()[0],
    )
    assert narrow["loss"] != wide["loss"]
    assert narrow["loss"] == pytest.approx(wide["loss"], rel=0.05)


@every_objective
@pytest.mark.parametrize("source", ["torchvision:resnet18", "timm:resnet10t"])
def test_it_trains_networks_of_torchvision_and_timm(source: str, name: str) -> None:
    objective = OBJECTIVES[name]
    if isinstance(objective, train.AdvBN):
        objective = train.AdvBN(cut="layer2", steps=1, attack=objective.attack)
    model = objective.prepare(models.load(source, classes=4)).train()
    x, y, ids = images(8, size=32).take(torch.arange(8))
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 1e-3)
    before = weights(model)
    for step in range(2):
        optimizer.zero_grad()
        parts = objective(model, x, y, seed=step, ids=ids)
        assert all(bool(value.isfinite()) for value in parts.values())
        optimizer.step()
    changed = [key for key, value in weights(model).items() if not torch.equal(value, before[key])]
    assert any(key.endswith("fc.weight") for key in changed)


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    store = f"file://{tmp_path_factory.mktemp('group') / 'store'}"
    torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@every_objective
def test_a_model_in_ddp_gets_the_same_gradients_or_a_clear_word(name: str, group: None) -> None:
    objective, (x, y, ids) = OBJECTIVES[name], batch()
    bare = objective.prepare(tiny().double()).train()
    wrapped = DistributedDataParallel(objective.prepare(tiny().double()).train())
    if isinstance(objective, train.AdvBN):
        with pytest.raises(ValueError, match="DistributedDataParallel does not see"):
            objective(wrapped, x.double(), y, ids=ids)
        return
    for model in (bare, wrapped):
        objective(model, x.double(), y, seed=3, ids=ids)
    for p, q in zip(bare.parameters(), wrapped.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)


# ---- two processes ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where two processes left the weights that each objective ended with."""
    folder = tmp_path_factory.mktemp("pair")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    _run([*launch, table.__file__, str(folder)])
    return folder


@every_objective
def test_two_processes_equal_one_with_the_whole_batch(name: str, pair: Path, tmp_path: Path) -> None:
    one = train.fit(tiny().double(), images(), recipe(OBJECTIVES[name]), tmp_path / "one")
    assert len(one.metrics()) == 1
    assert one.metrics()[0]["step"] == STEPS
    two = torch.load(pair / f"{name}.pt", weights_only=True)
    for key, value in weights(one.model).items():  # type: ignore[arg-type]
        torch.testing.assert_close(two[key], value, rtol=0, atol=1e-8, msg=f"{key} differs")


# ---- kill -9 ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kill")
    _run([sys.executable, table.__file__, "kill", str(folder)])
    return folder


@every_objective
def test_a_killed_run_ends_with_the_weights_of_one_left_in_peace(name: str, killed: Path) -> None:
    peace, hurt = (
        torch.load(killed / kind / name / "end.pt", weights_only=True) for kind in ("peace", "killed")
    )
    assert peace.keys() == hurt.keys()
    assert all(torch.equal(hurt[key], value) for key, value in peace.items())
    lines = [(killed / kind / name / "metrics.jsonl").read_text() for kind in ("peace", "killed")]
    assert lines[0] == lines[1]


def _run(command: list[str]) -> None:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=280, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_the_table_holds_every_objective() -> None:
    from trimtab.train.reader import OBJECTIVES as shipped

    assert set(shipped.values()) == {type(objective) for objective in OBJECTIVES.values()}


def test_fixup_free_networks_without_norm_layers_train_where_that_makes_sense() -> None:
    x, y, ids = batch()
    bare = nn.Sequential(nn.Flatten(), nn.Linear(192, table.CLASSES))
    for objective in (train.Standard(), train.SAM(), train.Adversarial(table.ATTACK), train.LIGS()):
        assert bool(objective(bare, x, y, ids=ids)["loss"].isfinite())
    with pytest.raises(ValueError, match="no batch-norm layer"):
        train.APART()(bare, x, y)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_call_does_not_change_the_digest_of_its_recipe(name):
    objective = OBJECTIVES[name]
    before = recipe(objective).digest
    net = tiny().train()
    objective.prepare(net)
    objective(net, torch.rand(table.BATCH, 3, 8, 8), torch.arange(table.BATCH) % table.CLASSES, seed=0)
    assert recipe(objective).digest == before
