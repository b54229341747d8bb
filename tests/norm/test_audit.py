"""The audit finds the fault that was planted, says what to do, and finds none where there is none."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from nets import Small, differing, images, public, small, state
from trimtab import norm
from trimtab.types import BadInput


@pytest.fixture(params=["stock", "steered"])
def model(request: pytest.FixtureRequest) -> Small:
    sound = small()
    sound.bn1.num_batches_tracked.fill_(10)
    sound.bn2.num_batches_tracked.fill_(10)
    return norm.steer(sound) if request.param == "steered" else sound


def warnings_of(audit: norm.Audit) -> dict[str, list[str]]:
    return {row.name: [warning.what for warning in row.warnings] for row in audit.layers}


def test_a_sound_model_has_no_warnings(model: Small) -> None:
    audit = norm.audit(model)
    assert audit.sound
    assert warnings_of(audit) == {"bn1": [], "bn2": []}
    assert "no warnings" in str(audit)
    row = audit.layers[0]
    assert (row.kind, row.channels, row.branches, row.momentum) == ("batch", 4, ("main",), 0.1)
    assert (row.batches_seen, row.training, row.drift_mean) == (10, True, None)


PLANTED: dict[str, tuple[Any, str]] = {
    "never trained": (lambda bn: bn.reset_running_stats(), "never trained"),
    "dead channel": (lambda bn: bn.running_var[2:].zero_(), "2 of 4 channels are dead"),
    "negative variance": (lambda bn: bn.running_var[0].fill_(-1.0), "negative variance"),
    "NaN in the mean": (lambda bn: bn.running_mean[1].fill_(float("nan")), "non-finite running"),
    "infinite variance": (lambda bn: bn.running_var[1].fill_(float("inf")), "non-finite running"),
    "NaN in the gain": (lambda bn: bn.weight.data[1].fill_(float("nan")), "non-finite gain"),
    "momentum 0": (lambda bn: setattr(bn, "momentum", 0.0), "momentum 0"),
    "momentum 1": (lambda bn: setattr(bn, "momentum", 1.0), "momentum 1"),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_planted_fault_is_found_in_its_layer_only(model: Small, planted: str) -> None:
    plant, words = PLANTED[planted]
    plant(model.bn2)
    audit = norm.audit(model)
    found = warnings_of(audit)
    assert found["bn1"] == []
    assert len(found["bn2"]) == 1
    assert words in found["bn2"][0]
    assert audit.layers[1].warnings[0].advice in str(audit)
    assert not audit.sound


def test_statistics_of_another_domain_show_on_data(model: Small) -> None:
    x = images(64, 2, 8, 8)
    home = norm.recalibrate(norm.steer(copy.deepcopy(model)).eval(), [x])
    assert norm.audit(home, [x]).sound
    assert any("stds off" in what for what in warnings_of(norm.audit(home, [x + 5]))["bn1"])
    assert any("stds off" in what for what in warnings_of(norm.audit(home, [4 * x]))["bn1"])


def test_drift_is_measured_in_running_stds() -> None:
    model = nn.Sequential(nn.BatchNorm2d(3, eps=0.0)).double()
    model[0].running_mean.fill_(1.0)
    model[0].running_var.fill_(4.0)
    x = images(8, 3, 4, 4)
    x = (x - x.mean((0, 2, 3), keepdim=True)) / x.std((0, 2, 3), keepdim=True, correction=0)
    row = norm.audit(model, [3 * x + 1.5]).layers[0]  # mean 1.5, deviation 3
    assert row.drift_mean == pytest.approx(0.25)
    assert row.drift_std == pytest.approx(1.5)


def test_data_is_judged_as_a_whole_however_it_is_cut(model: Small) -> None:
    x = images(12, 2, 8, 8)
    whole = norm.audit(model, [x]).layers
    for row, other in zip(
        whole, norm.audit(model, [(x[:5], "labels"), (x[5:], "labels")]).layers, strict=True
    ):
        assert row.drift_mean == pytest.approx(other.drift_mean)
        assert row.drift_std == pytest.approx(other.drift_std)


def test_the_audit_touches_nothing(model: Small) -> None:
    before = state(model)
    norm.audit(model, [images(4, 2, 8, 8)])
    assert differing(before, state(model)) == []
    assert model.training
    assert not model.bn1._forward_pre_hooks


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
def test_a_model_that_keeps_a_tensor_of_a_pass_is_audited_on_data() -> None:
    model = nn.Sequential(torch.nn.utils.weight_norm(nn.Conv2d(2, 3, 1)), nn.BatchNorm2d(3)).double()
    x = images(8, 2, 4, 4)
    seen = model[0](x).mean((0, 2, 3)).detach()
    row = norm.audit(model, [x]).layers[0]
    assert row.drift_mean == pytest.approx(float(seen.abs().mean()), rel=1e-4)  # from mean 0, deviation 1


@pytest.mark.parametrize("lazy", [nn.LazyBatchNorm2d, nn.LazyInstanceNorm2d])
def test_a_lazy_layer_is_audited_once_it_knows_its_channels(lazy: Any) -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 1), lazy(affine=True))
    x = images(4, 2, 4, 4, dtype=torch.float32)
    for batches in (None, [x]):
        with pytest.raises(BadInput, match="cannot audit 1 yet"):
            norm.audit(model, batches)
    model(x)
    assert norm.audit(model, [x]).layers[0].channels == 3


def test_a_warning_in_a_branch_names_the_branch() -> None:
    model: Any = norm.add_branch(norm.steer(small()), "adv")
    model.bn1.holder("adv").running_mean.fill_(float("nan"))
    audit = norm.audit(model)
    assert audit.layers[0].branches == ("main", "adv")
    assert warnings_of(audit)["bn1"] == ["branch adv: non-finite running statistics"]


def test_a_layer_without_running_statistics_is_told() -> None:
    audit = norm.audit(nn.Sequential(nn.BatchNorm2d(3, track_running_stats=False)))
    assert warnings_of(audit) == {"0": ["keeps no running statistics"]}
    assert audit.layers[0].batches_seen is None


def test_other_kinds_are_listed_with_their_parameters_checked() -> None:
    model = nn.Sequential(nn.GroupNorm(2, 4), nn.LayerNorm(5), nn.InstanceNorm2d(3), nn.InstanceNorm2d(3))
    model[0].weight.data.fill_(float("inf"))
    audit = norm.audit(model)
    assert [(row.kind, row.channels) for row in audit.layers] == [
        ("group", 4),
        ("layer", 5),
        ("instance", 3),
        ("instance", 3),
    ]
    assert warnings_of(audit)["0"] == ["non-finite gain or bias"]
    assert warnings_of(audit)["1"] == []


def test_a_frozen_batch_norm_of_torchvision_is_listed() -> None:
    from torchvision.ops import FrozenBatchNorm2d

    layer = FrozenBatchNorm2d(3)
    layer.running_mean.fill_(0.5)
    row = norm.audit(nn.Sequential(layer)).layers[0]
    assert (row.kind, row.channels, row.momentum, row.warnings) == ("batch", 3, None, ())


def test_a_fresh_public_network_is_told_that_it_was_never_trained() -> None:
    model = public("timm regnety_002")
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
    audit = norm.audit(model)
    assert len(audit.layers) > 20
    assert all("never trained" in what for found in warnings_of(audit).values() for what in found)
    assert not audit.sound
