"""The running estimate over a stream: closed forms, alarms, and what it never learns from."""

import copy

import pytest
import torch
import torch.nn.functional as F
from tests.adapt.networks import draw, net
from torch import nn

from trimtab import adapt, norm
from trimtab.types import BadInput


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


def test_a_stream_does_not_learn_from_images_beyond_all_numbers():
    stream = adapt.stream(net().float())
    x = torch.rand(4, 3, 12, 12)
    wanted = copy.deepcopy(stream)(x)
    huge = x.clone()
    huge[0, 0, 0, 0] = 1e25
    with pytest.raises(BadInput, match="NaN or infinite statistics; the stream was not updated"):
        stream(huge)
    assert torch.equal(stream(x), wanted)


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
