"""A network written out as a straight line, against the network itself, whose gradients are autograd's."""

from __future__ import annotations

import copy
import random
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trimtab import models, norm
from trimtab.attacks import PGD, Linf, Square, climbing
from trimtab.copies import twin
from trimtab.straight import Straight, operations, pulled, straightened
from trimtab.straight.operations import Row


def images(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    drawn = torch.rand(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return drawn.to(dtype).contiguous(memory_format=torch.channels_last)


def frozen(net: nn.Module) -> nn.Module:
    return net.eval().requires_grad_(False)


def line_of(net: nn.Module, x: Tensor) -> nn.Module:
    """What becomes of a network whose norm layers are folded."""
    copied, trace = norm.folded(net)
    return straightened(copied, trace, x)


def by_autograd(net: nn.Module, x: Tensor, slope: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """What a network says, a direction, and the gradient along it."""
    x = x.detach().requires_grad_(True)
    z = net(x)
    slope = torch.randn(z.shape, generator=torch.Generator().manual_seed(2)).to(z) if slope is None else slope
    return z.detach(), slope, torch.autograd.grad(z, x, slope)[0]


def assert_same(line: nn.Module, net: nn.Module, x: Tensor) -> None:
    z, slope, grad = by_autograd(net, x)
    said, back = pulled(line, x)
    with torch.no_grad():
        assert torch.equal(line(x), z)
    assert torch.equal(said, z)
    assert torch.equal(back(slope), grad)
    assert torch.equal(back(slope), grad)  # a second time
    assert torch.equal(by_autograd(line, x, slope)[2], grad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["resnet8", "resnet20", "preact18", "wrn16_2", "vgg11", "resnet18"])
def test_the_papers_networks_are_straight_and_equal_to_the_bit(name, dtype):
    torch.manual_seed(0)
    net = frozen(models.build(name, classes=10, width=4)).to(dtype).to(memory_format=torch.channels_last)
    x = images(5, 3, 32, 32, dtype=dtype)
    line = line_of(net, x)
    assert isinstance(line, Straight)
    assert_same(line, line.net, x)
    _, slope, grad = by_autograd(net, x)
    torch.testing.assert_close(by_autograd(line, x, slope)[2], grad, atol=1e-4, rtol=1e-3)


class Net(nn.Module):
    """A first and a last layer, and what the others do between them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.act, self.idle, self.fc = nn.ReLU(), nn.Identity(), nn.Linear(8, 4)

    def between(self, z: Tensor) -> Tensor:
        return self.act(self.second(z))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.between(self.act(self.first(x))).mean((2, 3)))


class ReadTwice(Net):
    def between(self, z: Tensor) -> Tensor:
        given = self.second(z)
        return self.act(given) + given * 0.5


class OnItself(Net):
    def between(self, z: Tensor) -> Tensor:
        made = self.second(z)
        return self.act(made + made)


class SumReadTwice(Net):
    def between(self, z: Tensor) -> Tensor:
        total = self.second(z) + z
        return self.act(total) - 0.1 + torch.tanh(total)


class SharedLayer(Net):
    def between(self, z: Tensor) -> Tensor:
        return self.act(self.second(self.act(self.second(z)) + z))


class Rows(Net):
    def between(self, z: Tensor) -> Tensor:
        a, b = self.second(z).chunk(2, 1)
        mixed = torch.cat([F.silu(a), torch.sigmoid(b) * a], 1)
        return F.max_pool2d(self.act(self.second(mixed)) + mixed, 2)


class Resized(Net):
    def between(self, z: Tensor) -> Tensor:
        n, c, h, w = z.shape
        return self.act(self.second(z.reshape(n, c, h * w).view(n, c, h, w)))


class Scaled(Net):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(8, 1, 1))
        self.register_buffer("offset", torch.rand(8, 1, 1))

    def between(self, z: Tensor) -> Tensor:
        return self.act((self.second(z) * self.scale - self.offset) / 2 + 1)


class Ends(Net):
    """In an activation: what it says is also what its gradient needs."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(super().forward(x))


class Unused(Net):
    def between(self, z: Tensor) -> Tensor:
        torch.exp(self.second(z))
        return z


class Overwriting(Net):
    """What nobody else reads."""

    def between(self, z: Tensor) -> Tensor:
        made = self.second(z)
        made += z
        made *= 0.5
        return F.relu(F.gelu(F.relu(made, inplace=True)), inplace=True)


class Dropping(Net):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def between(self, z: Tensor) -> Tensor:
        return self.drop(self.act(self.drop(self.second(z))))


STRAIGHT = [
    Net,
    ReadTwice,
    OnItself,
    SumReadTwice,
    SharedLayer,
    Rows,
    Resized,
    Scaled,
    Ends,
    Unused,
    Dropping,
    Overwriting,
]


@pytest.mark.parametrize("kind", STRAIGHT)
def test_whatever_is_read_twice_or_has_no_rule_the_line_is_equal_to_the_bit(kind):
    net, x = frozen(kind()), images(5, 3, 8, 8)
    line = line_of(net, x)
    assert isinstance(line, Straight)
    assert_same(line, net, x)


@pytest.mark.parametrize("seed", range(60))
def test_random_networks_are_equal(seed):
    """Twelve operations each, on any of the features made before."""
    chance = random.Random(seed)
    plan = [(chance.choice("cccrrr++-*/tmd"), chance.randrange(99), chance.randrange(99)) for _ in range(12)]

    class Drawn(Net):
        def between(self, z: Tensor) -> Tensor:
            made = [z]
            for what, i, j in plan:
                a, b = made[-1 - i % min(3, len(made))], made[-1 - j % len(made)]
                made.append(
                    {
                        "c": lambda a, b: self.second(a),
                        "r": lambda a, b: self.act(a),
                        "+": lambda a, b: a + b,
                        "-": lambda a, b: a - 0.25,
                        "*": lambda a, b: a * 0.5,
                        "/": lambda a, b: a / 1.5,
                        "t": lambda a, b: torch.tanh(a),
                        "m": lambda a, b: a * torch.sigmoid(b),
                        "d": lambda a, b: self.idle(a),
                    }[what](a, b)
                )
            return made[-1]

    net, x = frozen(Drawn()).double(), images(3, 3, 6, 6, dtype=torch.float64)
    line = line_of(net, x)
    assert isinstance(line, Straight)
    z, slope, grad = by_autograd(net, x)
    said, back = pulled(line, x)
    torch.testing.assert_close(said, z, atol=0, rtol=1e-12)
    torch.testing.assert_close(back(slope), grad, atol=1e-12, rtol=1e-9)  # several gradients of one feature


def test_a_line_overwrites_features_and_gradients_but_not_what_it_was_given():
    net, x = frozen(models.build("resnet8", classes=10, width=4)), images(4, 3, 32, 32)
    line = line_of(net, x)
    assert isinstance(line, Straight)
    before = x.clone()
    z, back = pulled(line, x)
    slope = torch.ones_like(z)
    back(slope)
    assert torch.equal(x, before)
    assert torch.equal(slope, torch.ones_like(z))
    assert "relu_()" in line.text
    assert ".add_(" in line.text
    assert "threshold_backward_into" in line.text


class Blind(Net):
    def between(self, z: Tensor) -> Tensor:
        with torch.no_grad():
            w = F.relu(z - 9)
        return self.second(z) + w


class SeesWhetherGradientsAreTaken(Net):
    def between(self, z: Tensor) -> Tensor:
        return self.second(z) if torch.is_grad_enabled() else z


class Random(Net):
    def between(self, z: Tensor) -> Tensor:
        return z.flip(3) if random.random() < 0.5 else z


class Tosses(Net):
    def between(self, z: Tensor) -> Tensor:
        return z.flip(3) if bool(torch.rand(()) < 0.5) else z


class Counts(Net):
    passes = 0

    def between(self, z: Tensor) -> Tensor:
        self.passes += 1
        return z * (1 + self.passes // 1000)


class CountsInABox(Net):
    def __init__(self) -> None:
        super().__init__()
        self.box = {"passes": 0}

    def between(self, z: Tensor) -> Tensor:
        self.box["passes"] += 1
        return z * (1 + self.box["passes"] // 1000)


class DrawsForItself(Net):
    def __init__(self) -> None:
        super().__init__()
        self.chance = random.Random(0)

    def between(self, z: Tensor) -> Tensor:
        return z.flip(3) if self.chance.random() < 1e-3 else z


class CallsItself(Net):
    def __call__(self, x: Tensor) -> Tensor:
        return super().__call__(x.clamp(-9, 9))


class Makes(Net):
    def between(self, z: Tensor) -> Tensor:
        return z + torch.ones(8, 1, 1).cumsum(0)


class WritesOver(Net):
    def between(self, z: Tensor) -> Tensor:
        made = self.second(z)
        also = made
        also += F.relu(z - 9)
        return self.act(made)


class ActsOver(Net):
    def between(self, z: Tensor) -> Tensor:
        made = self.second(z) + 9
        F.relu(made, inplace=True)
        return made


class ClampsOver(Net):
    def between(self, z: Tensor) -> Tensor:
        made = self.second(z)
        made.clamp_(-9, 9)
        return self.act(made)


class ActsOverAView(Net):
    def between(self, z: Tensor) -> Tensor:
        made = self.second(z) + 9
        F.relu(made.view(made.shape), inplace=True)
        return made


class ActsOverData(Net):
    def between(self, z: Tensor) -> Tensor:
        made = self.second(z)
        made.data.clamp_(-9, 9)
        return self.act(made)


class OwnGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clamp(-9, 9)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0]


class BringsItsOwnGradient(Net):
    def between(self, z: Tensor) -> Tensor:
        return OwnGradient.apply(self.second(z))


class Narrow(Net):
    def between(self, z: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.second(z).float()


class Decides(Net):
    def between(self, z: Tensor) -> Tensor:
        return self.second(z) if z.mean() > 0 else z


class Asks(Net):
    """And takes no answer for one."""

    def between(self, z: Tensor) -> Tensor:
        try:
            return self.second(z) if float(z.max()) > 9e9 else z
        except TypeError:
            return z


class Broadcasts(Net):
    def between(self, z: Tensor) -> Tensor:
        return z + F.relu(z + self.second(z).mean((2, 3), keepdim=True) - 9)


class Offset(Net):
    """A row that reads nothing."""

    def between(self, z: Tensor) -> Tensor:
        return self.act(self.second(z) + self.second.bias.view(1, -1, 1, 1))


class HandsOnTuples(Net):
    def between(self, z: Tensor) -> Tensor:
        parts = torch.tanh(z).chunk(2, 1)
        made = self.second(z)
        return torch.tanh(made) + F.relu(torch.cat(parts, 1) - 9)


class LooksAtNothing(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc.weight.sum(1)[None] + 0 * self.fc.bias


class TakesAny(Net):
    def forward(self, *xs: Tensor) -> Tensor:
        return super().forward(xs[0])


class HandsOnNothing(Net):
    def between(self, z: Tensor) -> Tensor:
        self.idle(None)
        return torch.cat(self.idle([z, z]), 1)[:, :8]


UNCLEAR = [
    Blind, SeesWhetherGradientsAreTaken, Random, Tosses, Counts, CountsInABox, DrawsForItself, CallsItself,
    Makes, WritesOver, ActsOver, ClampsOver, ActsOverAView, ActsOverData, BringsItsOwnGradient, Narrow,
    Decides, Asks, Broadcasts, Offset, HandsOnTuples, LooksAtNothing, TakesAny,
]  # fmt: skip
"""What some of them do beyond 9 happens on no image: it must be noticed all the same."""


@pytest.mark.parametrize("kind", UNCLEAR)
def test_what_a_trace_does_not_tell_is_left_as_it_is(kind):
    net, x = frozen(kind()), images(5, 3, 8, 8)
    assert not isinstance(line_of(net, x), Straight)


@pytest.mark.parametrize("kind", [HandsOnNothing, Offset, TakesAny, HandsOnTuples])
def test_whatever_a_network_hands_on_it_is_attacked_as_it_is(kind):
    net, x = frozen(kind()), images(5, 3, 8, 8)
    z, slope, grad = by_autograd(net, x)
    said, back = pulled(line_of(net, x), x)
    assert torch.equal(said, z)
    assert torch.equal(back(slope), grad)


def test_a_network_whose_gradient_fails_is_attacked_without():
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Tensor:
            raise ValueError("no")

    class Failing(Net):
        def between(self, z: Tensor) -> Tensor:
            return Fails.apply(z)

    net, x = frozen(Failing()), images(20, 3, 8, 8)
    found = Square(Linf("8/255"), queries=3)(net, x, net(x).argmax(1))
    assert found.shape == x.shape


def test_a_network_that_names_its_precision_is_attacked_in_another():
    class Names(Net):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.to(self.fc.weight.dtype))

    net, x = frozen(Names()), images(5, 3, 8, 8)
    y = net(x).argmax(1)
    rough = PGD(Linf("8/255"), steps=3, precision="bfloat16")(net, x, y)
    assert 0 < float((rough - x).abs().max()) <= 8 / 255 + 1e-6


def test_a_pass_that_was_put_into_a_network_is_its_pass():
    net, x = frozen(Net()), images(5, 3, 8, 8)
    net.forward = lambda x: Net.forward(net, x.clamp(-9, 9))
    assert not isinstance(line_of(net, x), Straight)


def test_a_batch_of_one_is_the_networks_own_business():
    class Squeezes(Net):
        def forward(self, x: Tensor) -> Tensor:
            z = self.act(self.first(x)).mean((2, 3), keepdim=True)
            return self.fc(z.squeeze()) + self.fc(z.flatten(1))

    net, x = frozen(Squeezes()), images(6, 3, 8, 8)
    line = line_of(net, x)
    assert isinstance(line, Straight)
    assert torch.equal(line(x[:1]), net(x[:1]))
    for attack in (PGD(Linf("8/255"), steps=2), Square(Linf("8/255"), queries=3)):
        assert attack(net, x[:1], torch.zeros(1).long()).shape == (1, 3, 8, 8)


def test_a_trial_leaves_all_generators_where_they_were():
    class Noisy(Net):
        def between(self, z: Tensor) -> Tensor:
            return z + 0.1 * torch.randn_like(z) * random.random() * float(np.random.rand())  # noqa: NPY002

    net, x = frozen(Noisy()), images(5, 3, 8, 8)
    before = torch.get_rng_state()
    assert not isinstance(line_of(net, x), Straight)
    assert torch.equal(before, torch.get_rng_state())


def test_what_was_folded_away_is_called_no_more():
    class Shares(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()
            self.act = self.net.act

        def forward(self, x: Tensor) -> Tensor:
            return self.act(self.net(x))

    net, x = frozen(Shares()), images(5, 3, 8, 8)
    copied, trace = norm.folded(net)
    del copied.net.act
    assert straightened(copied, trace, x) is copied


def test_rows_keep_nothing_of_a_look():
    class Long(Net):
        def between(self, z: Tensor) -> Tensor:
            for _ in range(6):
                z = F.gelu(self.second(z))
            return z

    net, x = frozen(Long()), images(5, 3, 8, 8)
    line = line_of(net, x)
    assert isinstance(line, Straight)
    look, _, _ = line.text.partition("def ahead")
    assert ":=" not in look
    row = next(one for one in line.constants if isinstance(one, Row))
    kept = operations.Kept(False)
    row.ahead(kept, torch.rand(2, 8, 8, 8))
    assert vars(kept) == {"graded": False}


def test_a_network_that_somebody_listens_to_is_left_as_it_is():
    net, x = frozen(Net()), images(5, 3, 8, 8)
    seen = []
    net.act.register_forward_hook(lambda *_: seen.append(1))
    assert not isinstance(line_of(net, x), Straight)


def test_a_gradient_that_a_network_stops_stays_stopped():
    class Stops(Net):
        def between(self, z: Tensor) -> Tensor:
            return self.second(z.detach())

    net, x = frozen(Stops()), images(5, 3, 8, 8)
    line = line_of(net, x)
    assert isinstance(line, Straight)
    _, back = pulled(line, x)
    assert not bool(back(torch.ones(5, 4)).any())


def test_a_twin_shares_its_weights_and_a_copy_follows_its_own():
    net, x = frozen(models.build("resnet8", classes=10, width=4)), images(4, 3, 32, 32)
    line = line_of(net, x)
    assert isinstance(line, Straight)
    other = twin(line)
    assert {p.data_ptr() for p in other.parameters()} == {p.data_ptr() for p in line.parameters()}
    assert torch.equal(other(x), line(x))
    rough = copy.deepcopy(line).to(torch.bfloat16)
    assert rough(x.bfloat16()).dtype == torch.bfloat16
    with torch.no_grad():
        for weight in rough.parameters():
            weight.zero_()
    assert not bool(rough(x.bfloat16()).any())
    assert_same(line, line.net, x)


def test_where_operations_mean_something_else_the_network_itself_answers():
    net, x = frozen(Net()), images(4, 3, 8, 8)
    line = line_of(net, x)
    assert isinstance(line, Straight)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(line(x), net(x))
        assert line(x).dtype == torch.bfloat16
    each = torch.func.vmap(lambda one: line(one[None])[0])(x)
    torch.testing.assert_close(each, net(x))
    found, wanted = (torch.func.grad(lambda x, one=one: one(x).sum())(x) for one in (line, net))
    torch.testing.assert_close(found, wanted)


def test_its_gradient_has_no_gradient_and_says_so():
    line, x = line_of(frozen(Net()), images(4, 3, 8, 8)), images(4, 3, 8, 8).requires_grad_(True)
    assert isinstance(line, Straight)
    (grad,) = torch.autograd.grad(line(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.square().sum().backward()


@pytest.mark.parametrize("kind", [Net, Ends, Rows])
def test_what_a_pass_keeps_goes_with_its_result(kind):
    net, x = frozen(kind()), images(4, 3, 8, 8).requires_grad_(True)
    line = line_of(net, x.detach())
    assert isinstance(line, Straight)
    z = line(x)
    gone = weakref.ref(z.grad_fn)
    del z
    assert gone() is None


def test_an_attack_runs_on_the_line(monkeypatch):
    net, x = models.build("resnet8", classes=10, width=4).eval(), images(4, 3, 32, 32)
    attacked = []
    monkeypatch.setattr(climbing, "pulled", lambda net, x: attacked.append(type(net)) or pulled(net, x))
    PGD(Linf("8/255"), steps=2)(net, x, torch.arange(4))
    assert attacked == [Straight, Straight]


@pytest.mark.parametrize("name", ["resnet8", "preact18"])
def test_a_steered_network_is_straight(name):
    net = frozen(norm.steer(models.build(name, classes=10, width=4)))
    x = images(4, 3, 32, 32)
    line = line_of(net, x)
    assert isinstance(line, Straight)
    assert_same(twin(line), line.net, x)
