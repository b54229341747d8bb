"""Copies: as `copy.deepcopy` makes them, also where it refuses, and nothing shared that should not be."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from trimtab import norm
from trimtab._clone import deep_clone, restored_attributes, shallow_clone
from trimtab.models import build

NETS = ["resnet8", "resnet20", "vgg11", "wrn16_2"]


def parts(net: nn.Module) -> list[tuple[str, type, list[str]]]:
    return [(name, type(module), list(vars(module))) for name, module in net.named_modules()]


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("steered", [False, True])
def test_a_clone_is_what_deepcopy_makes(name: str, steered: bool) -> None:
    net = build(name, classes=10)
    if steered:
        norm.add_branch(norm.steer(net), "other")
    ours, plain = deep_clone(net), copy.deepcopy(net)
    assert parts(ours) == parts(plain)
    for (name, one), (_, other) in zip(ours.state_dict().items(), plain.state_dict().items(), strict=True):
        assert torch.equal(one, other), name
    x = torch.rand(2, 3, 32, 32)
    assert torch.equal(ours.eval()(x), net.eval()(x))


def test_nothing_of_a_clone_is_the_originals() -> None:
    net = build("resnet8", classes=10)
    mine = {id(thing) for thing in held(net)}
    assert not mine & {id(thing) for thing in held(deep_clone(net))}
    before = {name: value.clone() for name, value in net.state_dict().items()}
    for value in deep_clone(net).state_dict().values():
        value.zero_()
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def held(net: nn.Module) -> list[Any]:
    """Whatever can be written to."""
    inner = [value for module in net.modules() for value in vars(module).values()]
    return [
        *net.modules(),
        *net.parameters(),
        *net.buffers(),
        *(v for v in inner if isinstance(v, dict | set)),
    ]


class Knot(nn.Module):
    """Ties, references that are not registered, and a cache that two modules share."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.again = self.first
        self.unregistered = [self.first]
        self.first.cache = self.second.cache = {}
        self.offset = torch.zeros(4)

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.second(self.again(x)) + self.offset
        return z


class OwnCopy(nn.Linear):
    def __deepcopy__(self, memo: dict[int, Any]) -> OwnCopy:
        made = OwnCopy(self.in_features, self.out_features)
        memo[id(self)] = made
        made.weight.data.fill_(7.0)
        return made


def test_ties_and_references_stay_ties_and_references() -> None:
    knot: Any = deep_clone(Knot())
    assert knot.second.weight is knot.first.weight
    assert knot.again is knot.first
    assert knot.unregistered[0] is knot.first
    assert knot.first.cache is knot.second.cache
    original = Knot()
    assert deep_clone(original).offset is not original.offset


def test_a_module_that_copies_itself_in_its_own_way_may_do_so() -> None:
    net = nn.Sequential(nn.Linear(4, 4), OwnCopy(4, 4))
    assert bool((deep_clone(net)[1].weight == 7).all())  # type: ignore[index]


def test_a_traced_network_is_copied_with_what_it_calls() -> None:
    traced = fx.symbolic_trace(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval())
    x = torch.rand(2, 3, 8, 8)
    for net in (traced, nn.Sequential(traced, nn.Flatten())):
        made = deep_clone(net)
        assert torch.equal(made(x), net(x))
        assert not any(a is b for a, b in zip(net.parameters(), made.parameters(), strict=True))


def test_what_runs_untouched_leaves_attributes_and_buffers_as_they_were() -> None:
    net: Any = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
    net.note, mean = "mine", net[1].running_mean
    before = parts(net)
    with restored_attributes(net):
        mean.add_(1)
        net.note, net[0].more = "theirs", 1
        net[1].running_mean = torch.ones(4)
        net[1].register_buffer("extra", torch.ones(1))
    assert (net.note, parts(net)) == ("mine", before)
    assert net[1].running_mean is mean
    assert not mean.any()
    assert "extra" not in net.state_dict()


def test_a_shallow_clone_shares_parameters_only() -> None:
    net = build("resnet8", classes=10)
    other = shallow_clone(net)
    assert all(a is b for a, b in zip(net.parameters(), other.parameters(), strict=True))
    assert not any(a is b for a, b in zip(net.buffers(), other.buffers(), strict=True))
    assert not any(a is b for a, b in zip(net.modules(), other.modules(), strict=True))


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated")
def test_features_stored_by_a_forward_pass_are_copied() -> None:
    class Keeping(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.kept = super().forward(x)
            self.all = [self.kept, (self.kept, 1), {"h": self.kept}]
            return self.kept

    net = nn.Sequential(Keeping(3, 3), torch.nn.utils.weight_norm(nn.Linear(3, 3)))
    net(torch.rand(2, 3))
    copied = deep_clone(net)
    assert torch.equal(copied[0].kept, net[0].kept)
    assert copied[0].kept is copied[0].all[0] is copied[0].all[1][0] is copied[0].all[2]["h"]
    assert copied[0].kept is not net[0].kept
    x = torch.rand(2, 3)
    assert torch.equal(copied(x), net(x))


def test_a_list_that_modules_share_is_shared_by_their_copies() -> None:
    class Tap(nn.Module):
        def __init__(self, taps: list[torch.Tensor]) -> None:
            super().__init__()
            self.taps = taps

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.taps.append(x)
            return x

    class Tapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.taps: list[torch.Tensor] = [torch.ones(2)]  # not empty when it is copied
            self.tap = Tap(self.taps)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            del self.taps[1:]
            self.tap(x)
            return x + self.taps[-1]

    net = Tapped()
    x = torch.rand(2)
    assert torch.equal(deep_clone(net)(x), net(x))
    net.taps.append(net.taps)  # type: ignore[arg-type]  # a list that holds itself
    copied = deep_clone(net)
    assert copied.taps[-1] is copied.taps is copied.tap.taps
