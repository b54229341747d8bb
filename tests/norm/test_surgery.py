"""Steering and releasing, branches, their keys, and the kinds of normalization.

Also tests norm.kinds.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from nets import differing, images, public, season, small, state
from trimtab import norm
from trimtab.types import BadInput


def test_steering_twice_is_steering_once() -> None:
    model = norm.steer(small())
    types = [type(layer) for layer in norm.layers(model).values()]
    assert norm.steer(model) is model
    assert [type(layer) for layer in norm.layers(model).values()] == types


def test_a_steered_layer_is_still_an_instance_of_its_class() -> None:
    for kind in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm):
        layer = norm.steer(kind(3))
        assert isinstance(layer, kind)
        assert isinstance(layer, norm.Steered)


def test_a_subclass_that_keeps_the_forward_pass_is_steered() -> None:
    class Named(nn.BatchNorm2d):
        note = "mine"

    layer: Any = norm.steer(Named(3))
    assert layer.note == "mine"
    assert type(norm.release(layer)) is Named


def test_a_block_that_is_merely_named_after_batch_norm_is_no_layer() -> None:
    class ConvBatchNorm(nn.Sequential):
        pass

    model = norm.steer(ConvBatchNorm(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3)))
    assert list(norm.layers(model)) == ["1"]


def test_synchronized_batch_norm_runs_on_a_cpu() -> None:
    x = images(4, 3, 2, 2, dtype=torch.float32)
    layer, plain = norm.steer(nn.SyncBatchNorm(3)), nn.BatchNorm2d(3)
    assert torch.allclose(layer(x), plain(x), atol=1e-6)
    assert torch.allclose(layer.eval()(x), plain.eval()(x), atol=1e-6)


# ---- branches -------------------------------------------------------------------------------------------


def test_a_branch_adds_keys_under_its_layer_and_touches_no_other() -> None:
    stock = small()
    model = norm.add_branch(norm.steer(copy.deepcopy(stock)), "adv")
    before, after = state(stock), state(model)
    assert differing(before, {name: after[name] for name in before}) == []
    added = {f"{layer}.branches.adv.{half}" for layer in ("bn1", "bn2") for half in state(nn.BatchNorm2d(1))}
    assert after.keys() - before.keys() == added
    for name in added:
        assert torch.equal(after[name], after[name.replace("branches.adv.", "")])


@pytest.mark.parametrize(
    ("halves", "kept"),
    [
        ({"statistics": False}, {"weight", "bias"}),
        ({"affine": False}, {"running_mean", "running_var", "num_batches_tracked"}),
    ],
)
def test_a_half_that_a_branch_shares_is_absent(halves: dict[str, bool], kept: set[str]) -> None:
    model = norm.add_branch(norm.steer(nn.BatchNorm2d(3)), "adv", **halves)
    own = {name.split(".")[-1] for name in model.state_dict() if name.startswith("branches.adv.")}
    assert own == kept


def test_a_branch_may_copy_another() -> None:
    model: Any = norm.add_branch(norm.steer(season(nn.BatchNorm2d(3))), "one")
    model.holder("one").weight.data.fill_(5.0)
    norm.add_branch(model, "two", copy_of="one")
    norm.add_branch(model, "three", copy_of="one", affine=False)
    assert torch.equal(model.holder("two").weight, torch.full((3,), 5.0))
    assert model.affine_holder("three") is model.holder("one")
    assert model.holder("two").weight is not model.holder("one").weight


def test_branches_copy_whether_parameters_train() -> None:
    model: Any = norm.steer(nn.BatchNorm2d(3))
    model.weight.requires_grad_(False)
    norm.add_branch(model, "adv")
    assert not model.holder("adv").weight.requires_grad
    assert model.holder("adv").bias.requires_grad


def test_release_of_a_branch_keeps_its_values_under_stock_keys() -> None:
    stock = small()
    model = norm.add_branch(norm.steer(copy.deepcopy(stock)), "adv")
    x = images(4, 2, 5, 5)
    with norm.use(model, branch="adv"):
        for _ in range(3):
            model(x)
        model.eval()
        wanted = model(x)
    released = norm.release(copy.deepcopy(model), branch="adv")
    assert released.state_dict().keys() == stock.state_dict().keys()
    assert torch.equal(released(x), wanted)
    assert differing(state(stock), state(norm.release(model))) == []


def test_release_of_a_branch_that_shares_a_half_takes_the_shared_one() -> None:
    model: Any = norm.add_branch(norm.steer(season(nn.BatchNorm2d(3))), "adv", statistics=False)
    model.holder("adv").weight.data.fill_(2.0)
    mean = model.running_mean.clone()
    released: Any = norm.release(model, "adv")
    assert torch.equal(released.weight, torch.full((3,), 2.0))
    assert torch.equal(released.running_mean, mean)


def test_a_plan_rebuilds_the_branches_that_a_state_dict_needs() -> None:
    model = norm.add_branch(norm.steer(small()), "one")
    norm.add_branch(model, "two", copy_of="one", affine=False)
    norm.add_branch(model.bn2, "tail", statistics=False)
    for value in model.state_dict().values():
        value.copy_(value * 1.5)
    again = norm.rebuild(small(seed=5), norm.branch_spec(model))
    again.load_state_dict(model.state_dict(), strict=True)
    x = images(4, 2, 5, 5)
    for branch in ("main", "one", "two", "tail"):
        with norm.use(model, branch=branch), norm.use(again, branch=branch):
            assert torch.equal(model.eval()(x), again.eval()(x))


# ---- kinds ----------------------------------------------------------------------------------------------

FRESH = {
    "bn": nn.BatchNorm2d,
    "gn": nn.GroupNorm,
    "in": nn.InstanceNorm2d,
    "ln": nn.GroupNorm,
    "none": nn.Identity,
}


@pytest.mark.parametrize("kind", norm.KINDS)
@pytest.mark.parametrize("name", ["torchvision resnet18", "timm efficientnet_b0"])
def test_every_batch_norm_layer_is_swapped_for_another_kind(name: str, kind: str) -> None:
    model = public(name).eval()
    bare = copy.deepcopy(model)
    places = [at for at, module in model.named_modules() if isinstance(module, nn.BatchNorm2d)]
    norm.swap(model, kind)
    for at in places:
        old, new = bare.get_submodule(at), model.get_submodule(at)
        tail = [*new][1:] if isinstance(new, nn.Sequential) else []
        core = new[0] if isinstance(new, nn.Sequential) else new
        assert type(core) is FRESH[kind]
        assert [type(module) for module in tail] == [
            type(m) for m in (*old.children(),)
        ]  # drop-out, activation
        if kind != "none":
            assert torch.equal(core.weight, torch.ones_like(core.weight))
            assert torch.equal(core.bias, torch.zeros_like(core.bias))
        if kind == "ln":
            assert core.num_groups == 1
    x = images(2, 3, 64, 64, dtype=torch.float32)
    assert model(x).shape == (2, 10)


def test_without_normalization_only_the_activation_is_left_and_works_on_a_copy() -> None:
    """timm's fused layers act in place: fine on what they normalized, not on what they were given."""
    model = public("timm efficientnet_b0").eval()
    x = images(2, 32, 4, 4, dtype=torch.float32)
    wanted, kept = type(model.bn1.act)()(x), x.clone()
    norm.swap(model, "none")
    assert torch.equal(model.bn1(x), wanted)
    assert torch.equal(x, kept)


def test_a_gain_that_starts_at_zero_on_purpose_stays_zero() -> None:
    model = small()
    nn.init.zeros_(model.bn2.weight)
    norm.swap(model, "gn")
    assert not model.bn2.weight.any()
    assert torch.equal(model.bn1.weight, torch.ones(4, dtype=torch.float64))


def test_swapping_keeps_mode_width_and_sharing() -> None:
    shared = nn.BatchNorm2d(4).double().eval()
    model = nn.ModuleDict({"a": shared, "b": nn.Sequential(shared), "c": shared})
    norm.swap(model, "gn")
    assert model["a"] is model["c"] is model["b"][0]
    assert model["a"].weight.dtype == torch.float64
    assert not model["a"].training


@pytest.mark.parametrize("training", [True, False])
def test_a_new_branch_is_in_the_mode_of_its_layer(training: bool) -> None:
    model = norm.add_branch(norm.steer(small().train(training)), "adv")
    assert {module.training for module in model.modules()} == {training}


def test_a_layer_without_parameters_or_statistics_is_swapped() -> None:
    model = nn.Sequential(nn.BatchNorm2d(4, affine=False, track_running_stats=False))
    assert type(norm.swap(model, "gn")[0]) is nn.GroupNorm


def test_group_normalization_takes_most_groups_that_leave_two_channels_in_each() -> None:
    for channels, groups in ((128, 32), (64, 32), (48, 24), (20, 10), (33, 11), (37, 1), (2, 1), (1, 1)):
        made: Any = norm.make("gn", channels)
        assert made.num_groups == groups


def test_made_layers_have_as_many_axes_as_asked() -> None:
    for dims, shape in ((1, (4, 6, 3)), (2, (4, 6, 3, 3)), (3, (4, 6, 2, 2, 2))):
        for kind in norm.KINDS:
            assert norm.make(kind, 6, dims)(images(*shape, dtype=torch.float32)).shape == shape


@pytest.mark.parametrize("count", [6, 4])
def test_instances_without_positions_are_refused_and_with_positions_normalized(count: int) -> None:
    model = norm.swap(nn.Sequential(nn.BatchNorm1d(4).double()), "in")
    with pytest.raises(BadInput, match="needs features with positions"):
        model(images(count, 4))
    x = images(count, 4, 7)
    wanted = (x - x.mean(2, keepdim=True)) / (x.var(2, keepdim=True, correction=0) + 1e-5).sqrt()
    assert torch.allclose(model(x), wanted)


def test_old_names_still_work_and_warn() -> None:
    model = norm.steer(small())
    with pytest.warns(DeprecationWarning, match=r"norm\.in_force is now norm\.active_branch"):
        old: Any = norm.in_force
    assert old(model) == norm.active_branch(model) == "main"
    norm.layers(model)["bn1"].reset_running_stats()
    with pytest.warns(DeprecationWarning, match="LayerAudit.warnings"):
        assert [warning.kind for warning in norm.audit(model).layers[0].trouble] == ["never trained"]
