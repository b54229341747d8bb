"""Objectives in people's own loops: what used to fail without a word is an error, a warning or a default."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tests.train import by_hand
from tests.train.by_hand import CLASSES, OBJECTIVES, batch, net
from torch import Tensor, nn

from trimtab import train
from trimtab.attacks import PGD, Linf
from trimtab.types import BadInput

ATTACK = PGD(Linf("8/255"), steps=2)
EVERY: dict[str, train.Objective] = {
    "standard": train.Standard(),
    "gaussian": train.Gaussian(0.1),
    "adversarial": train.Adversarial(ATTACK, clean=0.5, alp=0.5),
    "mixture": train.Mixture(ATTACK, alpha=0.3),
    "advbn": train.AdvBN(cut="2", steps=1),
    "apart": train.APART(eps="0.1", samples=4),
    "sam": train.SAM(rho="1/10"),
    "sam adversarial": train.SAM(inner=train.Adversarial(ATTACK)),
    "ligs": train.LIGS(size="1/100"),
}
every_objective = pytest.mark.parametrize("name", EVERY)


# ---- several processes, gradients averaged by hand ---------------------------------------------------


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("by_hand")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    done = subprocess.run(
        [*launch, by_hand.__file__, str(folder)], capture_output=True, text=True, timeout=280,
        env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.mark.parametrize("name", OBJECTIVES)
def test_gradients_averaged_by_hand_without_ids_are_those_of_one_process(name: str, pair: Path) -> None:
    alone = by_hand.gradients(OBJECTIVES[name], *batch(8))
    two = torch.load(pair / f"{name}.pt", weights_only=True)
    for key, value in alone.items():
        torch.testing.assert_close(two[key], value, rtol=0, atol=1e-8, msg=f"{key} differs")


# ---- modes, seeds, numbers ----------------------------------------------------------------------------


@every_objective
def test_a_model_in_eval_mode_is_an_error_or_a_warning(name: str) -> None:
    model, (x, y) = EVERY[name].prepare(net()).eval(), batch(8)
    if name == "apart":
        with pytest.raises(BadInput, match="eval mode"):
            EVERY[name](model, x, y)
    else:
        with pytest.warns(UserWarning, match=r"eval mode.*model\.train\(\)"):
            EVERY[name](model, x, y)


def test_a_seed_that_is_left_out_is_another_one_every_step() -> None:
    objective, (x, y) = train.Gaussian(0.5), batch(8)
    model = net().train()
    torch.manual_seed(4)
    losses = [float(objective(model, x, y)["loss"]) for _ in range(3)]
    assert len(set(losses)) == 3
    torch.manual_seed(4)
    assert [float(objective(model, x, y)["loss"]) for _ in range(3)] == losses


def test_numbers_may_be_words() -> None:
    assert train.APART(eps="1/10", sam_rho="0.2") == train.APART(eps=0.1, sam_rho=0.2)
    assert train.AdvBN(eps="1.1", step_size="1/5") == train.AdvBN(eps=1.1, step_size=0.2)
    for kind, key in ((train.APART, "eps"), (train.SAM, "rho"), (train.AdvBN, "eps"), (train.LIGS, "size")):
        with pytest.raises(BadInput, match="'much' is not a number"):
            kind(**{key: "much"})


def test_advbn_says_that_a_compiled_model_runs_uncompiled() -> None:
    objective, (x, y) = train.AdvBN(cut="2", steps=1), batch(8)
    model = objective.prepare(net()).train()
    model.compile(backend="eager")
    with pytest.warns(UserWarning, match="runs uncompiled"):
        objective(model, x, y)


def test_ligs_names_what_torch_cannot_differentiate_twice() -> None:
    model, (x, y) = net(), batch(8)
    model[2] = nn.Hardsigmoid()
    with pytest.raises(BadInput, match=r"second derivative of .*hardsigmoid.*; replace that layer"):
        train.LIGS()(model.train(), x, y)


# ---- a loss of one's own, logits, what was descended, an optimizer ------------------------------------


def brier(logits: Tensor, y: Tensor) -> Tensor:
    return (logits.softmax(1) - F.one_hot(y, CLASSES)).square().sum(1).mean()


@every_objective
def test_a_loss_of_ones_own_takes_the_place_of_the_cross_entropy(name: str) -> None:
    (x, y), objective = batch(8), EVERY[name]
    usual, own = (
        objective(objective.prepare(net()).train(), x, y, seed=1, loss=loss)
        for loss in (lambda z, t: F.cross_entropy(z, t), brier)
    )
    plain = objective(objective.prepare(net()).train(), x, y, seed=1)
    assert usual == plain
    assert all(own[key] != plain[key] for key in ("loss",))


def test_a_loss_of_ones_own_that_is_no_mean_is_refused() -> None:
    x, y = batch(8)
    with pytest.raises(BadInput, match="the mean over the batch"):
        train.Standard()(net().train(), x, y, loss=lambda z, t: F.cross_entropy(z, t, reduction="none"))
    with pytest.raises(BadInput, match="label_smoothing"):
        train.Standard(label_smoothing=0.1)(net().train(), x, y, loss=brier)


@every_objective
def test_logits_come_with_the_losses(name: str) -> None:
    (x, y), objective = batch(8), EVERY[name]
    parts = objective(objective.prepare(net()).train(), x, y, seed=1)
    assert parts.logits is not None
    assert parts.logits.shape == (8, CLASSES)
    assert not parts.logits.requires_grad
    if name in ("standard", "apart", "sam", "ligs"):
        torch.testing.assert_close(parts.logits, net().train()(x))


@every_objective
def test_the_descended_loss_is_the_sum_of_what_was_backpropagated(name: str) -> None:
    (x, y), objective = batch(8), EVERY[name]
    backpropagated: list[Tensor] = []

    def backward(loss: Tensor, last: bool) -> None:
        loss.backward()
        if last or name == "apart":  # SAM's first gradient only moves the weights
            backpropagated.append(loss.detach())

    parts = objective(objective.prepare(net()).train(), x, y, backward, seed=1)
    descended = sum(weight * parts[part] for part, weight in parts.loss_weights.items())
    torch.testing.assert_close(descended, sum(backpropagated))
    with pytest.warns(DeprecationWarning, match="loss_weights"):
        assert parts.descended == parts.loss_weights


def test_prepare_adds_new_parameters_to_the_group_of_their_layer() -> None:
    model = net()
    norms, rest = (
        [p for p in model.parameters() if p.dim() == 1],
        [p for p in model.parameters() if p.dim() > 1],
    )
    optimizer = torch.optim.SGD(
        [{"params": rest, "weight_decay": 0.1}, {"params": norms, "weight_decay": 0.0}], lr=0.1, momentum=0.9
    )
    objective = train.Mixture(ATTACK)
    objective.prepare(model, optimizer)
    held = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert held.keys() == {id(p) for p in model.parameters()}
    branches = [p for key, p in model.named_parameters() if ".branches." in key]
    assert branches
    assert all(held[id(p)] == 0.0 for p in branches)
    before = [p.detach().clone() for p in branches]
    objective(model.train(), *batch(8), seed=0)
    optimizer.step()
    assert not any(torch.equal(a, b) for a, b in zip(before, branches, strict=True))
    objective.prepare(model, optimizer)
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(list(model.parameters()))
