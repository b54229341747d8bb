"""What holds for any network, any branch and any sequence of uses."""

from __future__ import annotations

import copy
from contextlib import ExitStack
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from nets import differing, images, season, state
from trimtab import norm

quick = settings(deadline=None, max_examples=30, derandomize=True)
CHANNELS = 4


def two_layers() -> Any:
    return norm.steer(season(nn.Sequential(nn.BatchNorm2d(CHANNELS), nn.BatchNorm2d(CHANNELS)).double()))


@st.composite
def networks(draw: st.DrawFn) -> nn.Module:
    """A stack of convolutions and batch norms of every option, some shared, some nested, in any mode."""
    blocks: list[nn.Module] = []
    for index in range(draw(st.integers(1, 4))):
        bn = nn.BatchNorm2d(
            CHANNELS,
            eps=draw(st.sampled_from([1e-5, 1e-3])),
            momentum=draw(st.sampled_from([0.1, 0.9, None])),
            affine=draw(st.booleans()),
            track_running_stats=draw(st.booleans()),
        )
        bn.requires_grad_(draw(st.booleans()))
        conv = nn.Conv2d(CHANNELS, CHANNELS, 1, bias=draw(st.booleans()))
        block = nn.Sequential(conv, bn, nn.ReLU())
        blocks.append(block if draw(st.booleans()) else nn.Sequential(block))
        if draw(st.booleans()):
            blocks.append(blocks[draw(st.integers(0, index))])
        bn.train(draw(st.booleans()))
    torch.manual_seed(draw(st.integers(0, 5)))
    return season(nn.Sequential(*blocks).double(), draw(st.integers(0, 5)))


@quick
@given(networks())
def test_releasing_what_was_steered_is_the_identity(model: nn.Module) -> None:
    before = copy.deepcopy(model)
    assert norm.release(norm.steer(model)) is model
    assert differing(state(before), state(model)) == []
    for one, other in zip(before.modules(), model.modules(), strict=True):
        assert type(one) is type(other)
        assert one.__dict__.keys() == other.__dict__.keys()
        assert one.training == other.training
    for one, other in zip(before.parameters(), model.parameters(), strict=True):
        assert one.requires_grad == other.requires_grad
    x = images(4, CHANNELS, 3, 3)
    assert torch.equal(before(x), model(x))


@quick
@given(networks())
def test_a_steered_network_computes_and_learns_what_the_stock_one_does(model: nn.Module) -> None:
    steered = norm.steer(copy.deepcopy(model))
    x = images(4, CHANNELS, 3, 3)
    assert torch.equal(model(x), steered(x))
    assert differing(state(model), state(steered)) == []


NAMES = ("one", "two", "three")
BRANCHES = st.lists(
    st.tuples(st.sampled_from(NAMES), st.sampled_from(["both", "affine", "statistics"])),
    min_size=1,
    max_size=3,
    unique_by=lambda branch: branch[0],
)


@quick
@given(BRANCHES, st.data())
def test_a_pass_through_some_branches_leaves_all_others_alone(
    branches: list[tuple[str, str]], data: st.DataObject
) -> None:
    """Values, running statistics and gradients: only what a branch owns, or shares, is touched."""
    model: Any = norm.steer(
        season(nn.Sequential(nn.BatchNorm2d(CHANNELS), nn.BatchNorm2d(CHANNELS)).double())
    )
    for name, half in branches:
        norm.add_branch(model, name, affine=half != "statistics", statistics=half != "affine")
    known = ["main", *(name for name, _ in branches)]
    used = data.draw(st.lists(st.sampled_from(known), min_size=1, max_size=3, unique=True))
    sizes = [data.draw(st.integers(1, 4)) for _ in used]
    before = state(model)

    with norm.use(model, branch=list(zip(used, sizes, strict=True)), update=True):
        model(images(sum(sizes), CHANNELS, 3, 3)).pow(3).sum().backward()
    after = state(model)

    owns = {"main": "both"} | dict(branches)
    statistics = {name if owns[name] != "affine" else "main" for name in used}
    affine = {name if owns[name] != "statistics" else "main" for name in used}
    for at in ("0", "1"):
        for name in known:
            prefix = f"{at}." if name == "main" else f"{at}.branches.{name}."
            for half in ("running_mean", "running_var", "num_batches_tracked"):
                if prefix + half in before:
                    changed = not torch.equal(before[prefix + half], after[prefix + half])
                    assert changed == (name in statistics), (name, half)
            for half in ("weight", "bias"):
                if prefix + half in before:
                    assert torch.equal(before[prefix + half], after[prefix + half])
                    assert (f"{prefix}{half}.grad" in after) == (name in affine), (name, half)


KNOBS = st.fixed_dictionaries(
    {},
    optional={
        "branch": st.sampled_from([None, "main", "adv", (("main", 2), ("adv", 2))]),
        "source": st.sampled_from([None, "batch", "running"]),
        "update": st.sampled_from([None, True, False, 0.5, "average"]),
        "groups": st.sampled_from([None, 1, 2]),
        "shift": st.sampled_from([None, "zero"]),
    },
)


class Escape(Exception):
    pass


@quick
@given(
    st.lists(st.tuples(KNOBS, st.sampled_from(["all", "0", "1"])), max_size=5), st.booleans(), st.booleans()
)
def test_any_nest_of_uses_ends_where_it_began(
    nest: list[tuple[dict[str, Any], str]], escapes: bool, frozen: bool
) -> None:
    model: Any = norm.steer(
        season(nn.Sequential(nn.BatchNorm2d(CHANNELS), nn.BatchNorm2d(CHANNELS)).double())
    )
    norm.add_branch(model, "adv")
    if frozen:
        norm.freeze(model)
    x = images(4, CHANNELS, 3, 3)
    before = [layer.setting for layer in model]
    wanted = copy.deepcopy(model)(x)
    kept = norm.snapshot(model)
    try:
        with ExitStack() as stack:
            for knobs, where in nest:
                part = model if where == "all" else model[int(where)]
                if knobs.get("shift") == "zero":
                    knobs = knobs | {"shift": norm.zero_shifts(part)}
                stack.enter_context(norm.use(part, **knobs))
                model(x)
                copied = copy.deepcopy(model)
            if escapes:
                raise Escape
    except Escape:
        pass
    assert [layer.setting for layer in model] == before
    norm.restore(model, kept)
    assert torch.equal(model(x), wanted)
    if nest:
        assert all(layer.setting is layer.rest for layer in copied)
        assert torch.equal(norm.restore(copied, kept)(x), wanted)


@quick
@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=3),
    st.integers(1, 3),
    st.floats(-2, 2),
    st.sampled_from(["batch", "running"]),
)
def test_how_a_batch_is_cut_does_not_change_what_is_learnt(
    parts: list[int], groups: int, offset: float, source: str
) -> None:
    layer: Any = norm.steer(season(nn.BatchNorm2d(CHANNELS).double()))
    names = ["main", "one", "two"][: len(parts)]
    for name in names[1:]:
        norm.add_branch(layer, name, statistics=False)
    plain = norm.release(copy.deepcopy(layer))
    counts = [part * groups for part in parts]
    x = images(sum(counts), CHANNELS, 2, 2) + offset
    with norm.use(
        layer, branch=list(zip(names, counts, strict=True)), groups=groups, source=source, update=True
    ):
        layer(x)
    plain(x)
    assert torch.allclose(layer.running_mean, plain.running_mean, atol=1e-12)
    assert torch.allclose(layer.running_var, plain.running_var, atol=1e-12)
    assert layer.num_batches_tracked == plain.num_batches_tracked
