"""Test-time statistics against hand computations on stock layers; the source model is never touched."""

import copy
import hashlib

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from trimtab import adapt, norm
from trimtab.types import BadInput


def net() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(),
        nn.Conv2d(6, 6, 3, stride=2), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 5 * 5, 4),
    ).double()  # fmt: skip
    for seed in range(20):
        model(draw(32, seed))
    return model.eval()


def draw(n: int, seed: int, shift: float = 0.0):
    g = torch.Generator().manual_seed(seed)
    return (0.5 + 0.2 * torch.randn(n, 3, 12, 12, generator=g, dtype=torch.float64) + shift).clamp(0, 1)


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


def test_a_stream_without_prior_is_the_pooled_estimate_of_all_it_saw():
    model = nn.Sequential(nn.BatchNorm2d(3)).double().eval()
    online = adapt.stream(model, prior=0)
    parts = [draw(n, seed, shift=0.1 * seed) for seed, n in enumerate((5, 1, 10))]
    for part in parts:
        online(part)
    together = torch.cat(parts)
    (layer,) = norm.layers(online.model).values()
    torch.testing.assert_close(layer.running_mean, together.mean((0, 2, 3)))
    torch.testing.assert_close(layer.running_var, together.var((0, 2, 3), correction=0))
    assert online.seen == 16


def test_a_streams_prior_weighs_the_source_as_so_many_images():
    model = nn.Sequential(nn.BatchNorm2d(3)).double().eval()
    online = adapt.stream(model, prior=12)
    x = draw(4, 0)
    online(x)
    (layer,) = norm.layers(online.model).values()
    torch.testing.assert_close(layer.running_mean, 0.25 * x.mean((0, 2, 3)))


def test_single_images_do_not_throw_a_stream_off():
    model, task = net().train(), torch.rand(4, 3, 12, 12, generator=torch.Generator().manual_seed(9)).double()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, 0.9)
    for seed in range(30):
        y = torch.arange(64) % 4
        x = (draw(64, seed) * 0.5 + 0.5 * task[y]).clamp(0, 1)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    model.eval()
    y = torch.arange(200) % 4
    x = (draw(200, 500) * 0.5 + 0.5 * task[y]).clamp(0, 1)
    online = adapt.stream(model, prior=16)
    together = torch.cat([online(one[None]) for one in x])
    source = (model(x).argmax(1) == y).double().mean()
    assert source > 0.95
    assert (together.argmax(1) == y).double().mean() > source - 0.03
    assert online.alarm is None


def test_reset_and_rollback_restore_exactly():
    model, x = net(), draw(16, 100)
    online = adapt.stream(model)
    first = online(x)
    mark = online.snapshot()
    second = online(draw(16, 101, shift=0.3))
    online.rollback(mark)
    assert torch.equal(online(draw(16, 101, shift=0.3)), second)
    online.reset()
    assert online.seen == 0
    assert torch.equal(online(x), first)


def test_a_stream_of_one_class_raises_the_alarm_and_a_mixed_one_does_not():
    model = nn.Sequential(nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(3 * 4, 3)).eval()
    with torch.no_grad():
        model[2].weight.copy_(torch.eye(3).repeat_interleave(4, 1) * 5)
        model[2].bias.zero_()
    mixed = torch.eye(3).repeat(30, 1)[:, :, None, None].expand(-1, -1, 2, 2)
    online = adapt.stream(model)
    online(mixed)
    assert online.alarm is None
    constant = adapt.stream(nn.Sequential(model, Always(1)))
    constant(mixed)
    assert "class 1" in constant.alarm


class Always(nn.Module):
    """A head that has collapsed."""

    def __init__(self, winner: int) -> None:
        super().__init__()
        self.winner = winner

    def forward(self, z):
        return z * 0 + 10 * F.one_hot(torch.tensor(self.winner), z.shape[1])


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


def test_nothing_is_frozen_on_one_value_per_channel():
    features = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).eval()
    with pytest.raises(BadInput, match=r"no std.*more images.*rho below 1") as told:
        adapt.frozen(features, torch.rand(1, 4))
    assert "\n" not in str(told.value)
    assert float(adapt.frozen(features, torch.rand(1, 4), rho=0.5)[1].running_var.min()) > 0
    assert float(adapt.frozen(features, torch.rand(2, 4))[1].running_var.min()) > 0


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


def test_a_stream_does_not_learn_from_images_beyond_all_numbers():
    stream = adapt.stream(net().float())
    x = torch.rand(4, 3, 12, 12)
    wanted = copy.deepcopy(stream)(x)
    huge = x.clone()
    huge[0, 0, 0, 0] = 1e25
    with pytest.raises(BadInput, match="NaN or infinite statistics; the stream was not updated"):
        stream(huge)
    assert torch.equal(stream(x), wanted)


def test_noise_may_be_written_as_a_fraction():
    model, x = net().float(), torch.rand(8, 3, 12, 12)
    one, other = (adapt.frozen_under_noise(model, x, sigma) for sigma in ("1/4", 0.25))
    assert torch.equal(one(x), other(x))


@pytest.mark.parametrize("bad", [float("nan"), -1.0])
def test_replacing_statistics_mends_broken_ones(bad):
    model = net()
    model[1].running_var[0] = bad
    assert adapt.frozen(model, draw(16, 1))(draw(4, 2)).isfinite().all()
    steered = norm.recalibrate(norm.steer(model), [draw(16, 1)])
    mended = norm.recalibrate(norm.steer(net()), [draw(16, 1)])
    torch.testing.assert_close(steered[1].running_var, mended[1].running_var)


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


def test_half_precision_streams_go_on_learning():
    images = [0.5 * draw(1, seed) + 3 for seed in range(400)]
    held = {}
    for dtype in (torch.float32, torch.bfloat16):
        model = nn.Sequential(nn.BatchNorm2d(3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        stream = adapt.stream(model.to(dtype))
        for x in images:
            assert stream(x.to(dtype)).dtype == dtype
        held[dtype] = torch.cat([stream.model[0].running_mean, stream.model[0].running_var])
        assert stream.model(images[0].to(dtype)).dtype == dtype
        assert adapt.frozen(stream, torch.cat(images[:9]).to(dtype))(images[0].to(dtype)).dtype == dtype
    torch.testing.assert_close(held[torch.bfloat16].float(), held[torch.float32], rtol=0.01, atol=0.01)


def test_a_streams_checkpoint_knows_how_much_it_saw():
    first, second = adapt.stream(net()), adapt.stream(net())
    for seed in range(5):
        first(draw(10, seed, 0.3))
    second.load_state_dict(first.state_dict())
    assert second.seen == 50
    assert torch.equal(first(draw(4, 9)), second(draw(4, 9)))


class Logits(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.bn = nn.BatchNorm1d(classes)

    def forward(self, x):
        return self.bn(x)


@pytest.mark.parametrize(("classes", "picks"), [(1000, [i % 10 for i in range(250)]), (20_000, range(32))])
def test_a_balanced_stream_over_few_of_many_classes_raises_no_alarm(classes, picks):
    stream = adapt.stream(Logits(classes).eval(), prior=1e6)
    x = torch.zeros(len(picks), classes)
    x[range(len(picks)), list(picks)] = 50.0
    stream(x)
    assert stream.alarm is None
    stream(x[:1].expand(250, -1))
    assert "98%" in stream.alarm


def test_a_stream_learns_nothing_from_what_it_cannot_use():
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net()

        def forward(self, x):
            return self.net(x), self.net(x)

    several = adapt.stream(Heads())
    with pytest.raises(BadInput, match="the stream was not updated"):
        several(draw(4, 0))
    alone = adapt.stream(Logits(4).eval(), prior=0)
    with pytest.raises(BadInput, match="no std"):
        alone(torch.rand(1, 4))
    assert several.seen == alone.seen == 0


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
