"""Per-batch statistics against hand computations on stock layers; the source model is never touched."""

import copy
import hashlib

import pytest
import torch
from tests.adapt.networks import draw, net
from torch import nn

from trimtab import adapt, norm
from trimtab.types import BadInput


def by_hand(model: nn.Module, x, rho: float, of: str):
    """The network layer by layer, with blended statistics written out."""
    for layer in model:
        if isinstance(layer, nn.BatchNorm2d):
            mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0)
            mixed = rho * mean + (1 - rho) * layer.running_mean
            if of == "std":
                s = rho * (var + layer.eps).sqrt() + (1 - rho) * (layer.running_var + layer.eps).sqrt()
            else:
                s = (rho * var + (1 - rho) * layer.running_var + layer.eps).sqrt()
            shape = (1, -1, 1, 1)
            x = (x - mixed.view(shape)) / s.view(shape) * layer.weight.view(shape) + layer.bias.view(shape)
        else:
            x = layer(x)
    return x


def digest(model: nn.Module) -> str:
    found = hashlib.sha256()
    for key, value in model.state_dict().items():
        found.update(key.encode() + value.numpy().tobytes())
    return found.hexdigest() + str([(type(m), m.training) for m in model.modules()])


@pytest.mark.parametrize("rho", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("of", ["std", "var"])
def test_per_batch_and_frozen_equal_the_formula(rho, of):
    model, x = net(), draw(16, 100, shift=0.2)
    wanted = by_hand(model, x, rho, of)
    torch.testing.assert_close(adapt.per_batch(model, rho, of)(x), wanted, atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(adapt.frozen(model, x, rho, of)(x), wanted, atol=1e-10, rtol=1e-10)


def test_rho_zero_is_the_model_bit_for_bit():
    model, x = net().float(), draw(16, 100, shift=0.2).float()
    assert torch.equal(adapt.per_batch(model, 0.0)(x), model(x))
    assert torch.equal(adapt.frozen(model, x, 0.0)(x), model(x))


@pytest.mark.parametrize("make", [
    lambda m, x: adapt.per_batch(m, 0.5), lambda m, x: adapt.frozen(m, x), lambda m, x: adapt.stream(m),
    lambda m, x: adapt.per_batch(m, estimator="median"),
])  # fmt: skip
def test_the_source_is_never_touched(make):
    model, x = net().train(), draw(16, 100)
    before = digest(model)
    adapted = make(model, x)
    for _ in range(3):
        adapted(x)
    adapted.train()
    adapted(x)
    assert digest(model) == before


def test_adaptation_survives_train_eval_copies_and_a_state_dict_round_trip():
    model, x = net(), draw(16, 100, shift=0.2)
    adapted = adapt.per_batch(model)
    wanted = adapted(x)
    assert torch.equal(adapted.train().eval()(x), wanted)
    assert torch.equal(copy.deepcopy(adapted)(x), wanted)
    other = adapt.per_batch(net())
    other.load_state_dict(adapted.state_dict())
    assert torch.equal(other(x), wanted)


def test_medians_hold_where_a_few_hostile_images_move_means():
    model, x = net(), draw(40, 100)
    hostile = x.clone()
    hostile[:4] = (torch.arange(12) % 2).double()  # stripes of black and white
    moved = {
        name: (adapted(hostile)[4:] - adapted(x)[4:]).abs().mean()
        for name, adapted in (
            ("mean", adapt.per_batch(model)),
            ("median", adapt.per_batch(model, estimator="median")),
        )
    }
    assert moved["median"] < moved["mean"]


def test_bad_input_is_told_in_one_sentence():
    model = net()
    with pytest.raises(BadInput, match=r"rho must lie in \[0, 1\]"):
        adapt.per_batch(model, rho=1.5)
    with pytest.raises(BadInput, match="no batch-norm layer"):
        adapt.per_batch(nn.Linear(2, 2))
    with pytest.raises(BadInput, match="at least one image"):
        adapt.frozen(model, torch.zeros(0, 3, 12, 12))
    with pytest.raises(BadInput, match=r"floating-point pixels, found torch\.uint8"):
        adapt.frozen_under_noise(model, torch.zeros(8, 3, 12, 12, dtype=torch.uint8), 0.1)
    with pytest.raises(BadInput, match="NaN"):
        adapt.frozen(model, torch.full((2, 3, 12, 12), float("nan")))
    with pytest.raises(BadInput, match="prior"):
        adapt.stream(model, prior=-1)
    with pytest.raises(BadInput, match="estimator"):
        adapt.per_batch(model, estimator="mode")


def test_one_value_per_channel_is_told_to_have_no_deviation():
    features = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).eval()
    with pytest.raises(BadInput, match=r"no std.*larger batch.*source") as told:
        adapt.per_batch(features)(torch.rand(1, 4))
    assert "\n" not in str(told.value)
    assert adapt.per_batch(features, rho=0.5)(torch.rand(1, 4)).shape == (1, 3)
    assert adapt.per_batch(features)(torch.rand(2, 4)).shape == (2, 3)


def test_under_a_branch_it_is_that_branch_that_adapts() -> None:
    torch.manual_seed(0)
    net = norm.add_branch(norm.steer(nn.Sequential(nn.BatchNorm2d(3), nn.Flatten()).double().eval()), "adv")
    with torch.no_grad():
        layer = norm.layers(net)["0"]
        layer.holder("adv").running_mean.add_(1)
    x = 3 + 2 * torch.randn(16, 3, 4, 4, dtype=torch.float64)
    with norm.use(net, branch="adv"):
        frozen, wanted = adapt.frozen(net, x, rho=0.6), adapt.per_batch(net, rho=0.6)(x)
        assert torch.allclose(frozen(x), wanted)
    assert not torch.allclose(frozen(x), net(x))
    assert norm.branches(frozen) == ("main",)  # so that it stays what it is, wherever it is measured or saved
    with norm.use(frozen, branch="main"):
        assert torch.allclose(frozen(x), wanted)


@pytest.mark.parametrize("bad", [float("nan"), -1.0])
def test_replacing_statistics_mends_broken_ones(bad):
    model = net()
    model[1].running_var[0] = bad
    assert adapt.frozen(model, draw(16, 1))(draw(4, 2)).isfinite().all()
    steered = norm.recalibrate(norm.steer(model), [draw(16, 1)])
    mended = norm.recalibrate(norm.steer(net()), [draw(16, 1)])
    torch.testing.assert_close(steered[1].running_var, mended[1].running_var)
