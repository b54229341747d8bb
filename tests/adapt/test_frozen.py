"""Statistics that are estimated once and then fixed."""

import copy

import pytest
import torch
from tests.adapt.networks import draw, net
from torch import nn

from trimtab import adapt, norm
from trimtab.types import BadInput


def test_a_frozen_model_exports_as_a_stock_one():
    model, x = net(), draw(64, 100, shift=0.2)
    frozen = adapt.frozen(model, x, provenance="noisy training images")
    assert frozen.provenance == "frozen on 64 noisy training images (rho=1)"
    assert not hasattr(norm.recalibrate(frozen, [x]), "provenance")  # these are other images' statistics
    wanted = frozen(x[:5])
    stock = net()
    stock.load_state_dict(norm.release(frozen).state_dict())
    assert torch.equal(stock(x[:5]), wanted)
    assert [type(m) for m in frozen.modules()] == [type(m) for m in stock.modules()]


def test_a_frozen_model_treats_each_image_alone():
    frozen, x = adapt.frozen(net(), draw(64, 100, shift=0.2)), draw(8, 200)
    torch.testing.assert_close(frozen(x), torch.cat([frozen(one[None]) for one in x]))


def test_nothing_is_frozen_on_one_value_per_channel():
    features = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).eval()
    with pytest.raises(BadInput, match=r"no std.*more images.*rho below 1") as told:
        adapt.frozen(features, torch.rand(1, 4))
    assert "\n" not in str(told.value)
    assert float(adapt.frozen(features, torch.rand(1, 4), rho=0.5)[1].running_var.min()) > 0
    assert float(adapt.frozen(features, torch.rand(2, 4))[1].running_var.min()) > 0


def test_noise_may_be_written_as_a_fraction():
    model, x = net().float(), torch.rand(8, 3, 12, 12)
    one, other = (adapt.frozen_under_noise(model, x, sigma) for sigma in ("1/4", 0.25))
    assert torch.equal(one(x), other(x))


def test_a_model_that_adapts_can_be_frozen_as_the_model_inside():
    x = draw(16, 1, 0.2)
    for adapting in (adapt.per_batch(net()), adapt.stream(net())):
        torch.testing.assert_close(adapt.frozen(adapting, x)(x), adapt.frozen(net(), x)(x))
    with pytest.raises(BadInput, match="a submodule of this model is adapted already"):
        adapt.frozen(nn.Sequential(adapt.per_batch(net())), x)


def test_freezing_gives_statistics_to_layers_that_kept_none():
    x = draw(16, 1)
    model = net()
    plain = copy.deepcopy(model)
    plain[1] = nn.BatchNorm2d(6, track_running_stats=False).double().eval()
    plain[1].load_state_dict(model[1].state_dict(), strict=False)
    fixed = adapt.frozen(plain, x)
    torch.testing.assert_close(fixed(x), adapt.frozen(model, x)(x))
    torch.testing.assert_close(fixed(x)[:1], fixed(x[:1]))


def test_noise_that_statistics_adapt_to_is_not_clipped_unless_asked():
    """On black images: the std of N(0, sigma^2), or of its positive part, sigma sqrt(1/2 - 1/(2 pi)).

    Pixels above 1, at four sigma, do not matter.
    """
    model, x, sigma = nn.Sequential(nn.BatchNorm2d(3)).eval(), torch.zeros(64, 3, 32, 32), 0.25
    plain, clipped = (adapt.frozen_under_noise(model, x, sigma, clip=clip) for clip in (False, True))
    for adapted, std in ((plain, sigma), (clipped, sigma * (0.5 - 0.5 / torch.pi) ** 0.5)):
        torch.testing.assert_close(adapted[0].running_var.sqrt(), torch.full((3,), std), rtol=0.02, atol=0)
    assert plain.provenance == "frozen on 64 noisy images (sigma 0.25, unclipped) (rho=1)"
    assert "clipped to [0, 1]" in clipped.provenance
