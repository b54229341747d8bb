"""Keeping, restoring, re-estimating and freezing the state of all norm layers at once."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nets import Small, differing, images, small, state
from trimtab import norm
from trimtab.types import BadInput


@pytest.fixture
def model() -> Small:
    return norm.add_branch(norm.steer(small()), "adv")


@pytest.fixture
def x() -> Tensor:
    return images(12, 2, 5, 5)


# ---- snapshot and restore -------------------------------------------------------------------------------


def test_restore_puts_back_every_bit_into_the_same_tensors(model: Small, x: Tensor) -> None:
    kept, before = norm.snapshot(model), state(model)
    held = {name: value.data_ptr() for name, value in model.state_dict().items()}
    with norm.use(model, branch=[("main", 6), ("adv", 6)]):
        model(x).sum().backward()
    for parameter in norm.affine_parameters(model):
        parameter.data.add_(1)
    assert differing(before, state(model)) != []
    norm.restore(model, kept)
    model.zero_grad()
    assert differing(before, state(model)) == []
    assert {name: value.data_ptr() for name, value in model.state_dict().items()} == held


def test_a_snapshot_is_a_copy(model: Small, x: Tensor) -> None:
    kept = norm.snapshot(model)
    mean = kept["bn1"]["running_mean"].clone()
    model(x)
    assert torch.equal(kept["bn1"]["running_mean"], mean)


def test_a_snapshot_is_compared_where_the_model_has_moved_to(
    model: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Devices refuse to compare across; "meta", which every machine has, holds no values to compare."""
    compared: list[tuple[torch.device, torch.device]] = []

    def equal(one: Tensor, other: Tensor) -> bool:
        compared.append((one.device, other.device))
        return False

    kept = norm.snapshot(model)
    monkeypatch.setattr(torch, "equal", equal)
    norm.restore(model.to("meta"), kept)
    assert set(compared) == {(torch.device("meta"), torch.device("meta"))}


def test_a_snapshot_of_another_model_is_refused(model: Small) -> None:
    with pytest.raises(BadInput, match="other layers"):
        norm.restore(model, {})
    kept = norm.snapshot(norm.steer(small()))
    with pytest.raises(BadInput, match="other branches"):
        norm.restore(model, kept)


# ---- recalibrate and adopt ------------------------------------------------------------------------------


def test_recalibrating_estimates_over_all_images_however_they_are_cut(x: Tensor) -> None:
    model = norm.steer(small())
    received = model.conv1(x).detach()
    for batches in ([x], [x[:3], x[3:8], x[8:]], ((part, "label") for part in x.split(5))):
        one = copy.deepcopy(model)
        norm.recalibrate(one, batches)
        assert torch.allclose(one.bn1.running_mean, received.mean((0, 2, 3)))
        assert torch.allclose(
            one.bn1.running_var,
            received.var((0, 2, 3)),
        )


def test_recalibrating_a_network_in_train_mode_sees_what_evaluation_sees() -> None:
    """Dropout is off while moments are taken, and the modes stay as they are."""
    received = images(32, 3, 6, 6)
    layer = nn.BatchNorm2d(3, dtype=received.dtype)
    model = norm.steer(nn.Sequential(nn.Dropout(0.5), layer).train())
    norm.recalibrate(model, received.split(16))
    torch.testing.assert_close(layer.running_mean, received.mean((0, 2, 3)))
    torch.testing.assert_close(layer.running_var, received.var((0, 2, 3)))
    assert all(module.training for module in model.modules())


def test_recalibrating_pools_what_deeper_layers_see_behind_batch_statistics(x: Tensor) -> None:
    model = norm.steer(small())
    parts = [x[:4], x[4:]]
    seen = []
    for part in parts:  # by hand: the first layer normalizes by this very batch
        h = model.conv1(part)
        h = nn.functional.batch_norm(h, None, None, model.bn1.weight, model.bn1.bias, True)
        seen.append(model.conv2(torch.relu(h)).detach())
    everything = torch.cat(seen)
    norm.recalibrate(model, parts)
    assert torch.allclose(model.bn2.running_mean, everything.mean((0, 2, 3)))
    assert torch.allclose(model.bn2.running_var, everything.var((0, 2, 3)))


def test_recalibrating_touches_one_branch_and_nothing_else(model: Small, x: Tensor) -> None:
    model.bn2.eval()  # modes may be mixed
    modes = {name: module.training for name, module in model.named_modules()}
    before = state(model)
    norm.recalibrate(model, [x], branch="adv")
    changed = differing(before, state(model))
    assert {name.rsplit(".", 1)[0] for name in changed} == {"bn1.branches.adv", "bn2.branches.adv"}
    assert {name.rsplit(".", 1)[1] for name in changed} <= {
        "running_mean",
        "running_var",
        "num_batches_tracked",
    }
    assert {name: module.training for name, module in model.named_modules()} == modes


def test_recalibrating_that_fails_changes_nothing(model: Small, x: Tensor) -> None:
    def broken() -> Any:
        yield x
        raise OSError("the disk is gone")

    model.train()
    before = state(model)
    with pytest.raises(OSError, match="disk"):
        norm.recalibrate(model, broken())
    assert differing(before, state(model)) == []
    assert model.training
    with pytest.raises(BadInput, match="at least one batch"):
        norm.recalibrate(model, [])


def test_a_later_pass_with_adopted_statistics_reproduces_the_blend(x: Tensor) -> None:
    for of in ("std", "var", "pooled"):
        model = norm.steer(small()).eval()
        steering = norm.use(model, source="blend", rho=0.3, blend_of=of, update=False)
        with steering, norm.observe(model) as seen:
            wanted = model(x)
        norm.set_statistics(model, seen, rho=0.3, blend_of=of)
        assert torch.allclose(model(x), wanted)


# ---- freeze and thaw ------------------------------------------------------------------------------------


def test_frozen_layers_are_in_eval_mode_whatever_the_mode(model: Small, x: Tensor) -> None:
    wanted = norm.release(copy.deepcopy(model)).eval()(x)
    norm.freeze(model).train()
    before = state(model)
    got = model(x)
    got.sum().backward()
    assert torch.equal(got, wanted)
    model.zero_grad()
    assert differing(before, state(model)) == []
    assert not any(p.requires_grad for p in norm.affine_parameters(model))
    assert model.conv1.weight.requires_grad


def test_a_copy_of_a_frozen_model_is_frozen_and_thawing_undoes_it(model: Small, x: Tensor) -> None:
    wanted = copy.deepcopy(model)(x)
    frozen = copy.deepcopy(norm.freeze(model))
    assert torch.equal(frozen(x), model.eval()(x))
    norm.thaw(frozen)
    assert torch.equal(frozen.train()(x), wanted)
    assert all(p.requires_grad for p in norm.affine_parameters(frozen))


def test_a_knob_may_override_a_frozen_layer_for_a_while(model: Small, x: Tensor) -> None:
    wanted = copy.deepcopy(model)(x)
    norm.freeze(model)
    with norm.use(model, source=None, update=None):
        assert torch.equal(model(x), wanted)


def test_freezing_a_branch_stops_its_parameters_only(model: Small) -> None:
    norm.freeze(model, branch="adv")
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    assert frozen == {f"bn{i}.branches.adv.{half}" for i in (1, 2) for half in ("weight", "bias")}
    assert all(layer.setting == norm.Setting() for layer in norm.layers(model).values())


def test_freezing_inside_use_is_refused_and_does_nothing(model: Small) -> None:
    for change in (norm.freeze, norm.thaw, norm.release):
        with norm.use(model, groups=2), pytest.raises(BadInput, match="inside a use"):
            change(model)
        assert all(p.requires_grad for p in model.parameters())
        assert len(norm.layers(model)) == 2


def test_affine_parameters_are_those_of_all_branches_or_of_one(model: Small) -> None:
    names = {id(p): name for name, p in model.named_parameters()}
    everything = {names[id(p)] for p in norm.affine_parameters(model)}
    assert everything == {name for name in names.values() if name.startswith("bn")}
    adv = {names[id(p)] for p in norm.affine_parameters(model, "adv")}
    assert adv == {name for name in everything if "adv" in name}


def test_synchronizing_changes_nothing_in_one_process(model: Small, x: Tensor) -> None:
    wanted = copy.deepcopy(model)(x)
    assert torch.equal(norm.synchronize(model)(x), wanted)


# ---- shift gradients --------------------------------------------------------------------------------------


def by_zero_shift(model: nn.Module, x: Tensor) -> dict[str, norm.Shift]:
    zero = norm.zero_shifts(model, requires_grad=True)
    with norm.use(model, shift=zero):
        model(x).square().sum().backward()
    return {name: norm.Shift(shift.mu.grad, shift.sigma.grad) for name, shift in zero.items()}


@pytest.mark.parametrize("branch", ["main", "adv"])
def test_shift_gradients_are_those_of_the_branch_in_force(model: Small, x: Tensor, branch: str) -> None:
    for layer in norm.layers(model).values():
        layer.branches.adv.weight.data.mul_(-2)
    model(x).square().sum().backward()  # gradients of both branches are there
    with norm.use(model, branch="adv", update=False):
        model(x).square().sum().backward()
    model.zero_grad(set_to_none=False)
    with norm.use(model, branch=branch, update=False):
        with norm.observe(model) as seen:
            model(x).square().sum().backward()
        read = norm.shift_gradients(model, seen, {p: p.grad for p in model.parameters()})
        for name, wanted in by_zero_shift(model, x).items():
            assert torch.allclose(read[name].mu, wanted.mu)
            assert torch.allclose(read[name].sigma, wanted.sigma)


def test_shift_gradients_of_a_layer_that_ran_twice_are_refused(x: Tensor) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bn = nn.BatchNorm2d(2).double()

        def forward(self, x: Tensor) -> Tensor:
            return self.bn(3 - self.bn(x))

    twice = norm.steer(Twice())
    with norm.observe(twice) as seen:
        twice(x).square().sum().backward()
    with pytest.raises(BadInput, match="bn normalized 2 times"):
        norm.shift_gradients(twice, seen, {p: p.grad for p in twice.parameters()})


def test_freezing_leaves_layers_without_statistics_as_they_are(x: Tensor) -> None:
    mixed = nn.Sequential(nn.BatchNorm2d(2), nn.BatchNorm2d(2, track_running_stats=False)).double()
    before = norm.steer(mixed).eval()(x)
    norm.freeze(mixed)
    assert torch.equal(mixed.train()(x), before)
