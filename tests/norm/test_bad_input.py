"""Every mistake is told in one sentence: what was wrong, what was found, what to do. Nothing is half done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nets import Small, differing, images, small, state
from trimtab import norm
from trimtab.types import BadInput


class OwnForward(nn.BatchNorm2d):
    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


def using(model: Small, **knobs: Any) -> None:
    with norm.use(model, **knobs):
        model(images(6, 2, 5, 5))


def unseen(model: Small) -> None:
    norm.shift_gradients(model, {}, {})


MISTAKES: dict[str, tuple[Callable[[Small], Any], str]] = {
    "a source that is none": (lambda m: using(m, source="train"), "source must be.*'train'"),
    "a blend without weight": (lambda m: using(m, source="blend"), "needs rho"),
    "rho below 0": (lambda m: using(m, source="blend", rho=-0.1), r"\[0, 1\].*-0.1"),
    "rho above 1": (lambda m: using(m, source="blend", rho=1.5), r"\[0, 1\].*1.5"),
    "rho not a number": (lambda m: using(m, source="blend", rho=float("nan")), r"\[0, 1\].*nan"),
    "a blend of something else": (
        lambda m: using(m, source="blend", rho=0.5, blend_of="median"),
        "blend_of must be.*'median'",
    ),
    "an update that is none": (lambda m: using(m, update="always"), "update must be.*'always'"),
    "a momentum above 1": (lambda m: using(m, update=1.5), r"momentum.*1.5"),
    "a whole momentum above 1": (lambda m: using(m, update=2), r"momentum.*2"),
    "no groups": (lambda m: using(m, groups=0), "groups must be a whole number.*0"),
    "half a group": (lambda m: using(m, groups=2.5), "groups must be a whole number.*2.5"),
    "indivisible groups": (lambda m: using(m, groups=4), "6 images cannot be split into 4"),
    "groups that do not divide a part": (
        lambda m: using(m, branch=[("main", 3), ("adv", 3)], groups=2),
        "3 images cannot be split into 2",
    ),
    "groups of one value": (
        lambda m: using_layer(nn.BatchNorm1d(3), images(4, 3), groups=4),
        "one value has no std",
    ),
    "an unknown branch": (lambda m: using(m, branch="avd"), "no branch 'avd'; this model has main, adv"),
    "an unknown branch in a route": (
        lambda m: using(m, branch=[("main", 3), ("avd", 3)]),
        "no branch 'avd'; this model has main, adv",
    ),
    "a route that names a branch twice": (
        lambda m: using(m, branch=[("main", 3), ("main", 3)]),
        "each branch once, found main, main",
    ),
    "an empty route": (lambda m: using(m, branch=[]), "each branch once, found none"),
    "a route of negative length": (lambda m: using(m, branch=[("main", 9), ("adv", -3)]), "counts images"),
    "a route that misses images": (
        lambda m: using(m, branch=[("main", 3), ("adv", 2)]),
        r"3 \+ 2 does not add up to the batch of 6",
    ),
    "a shift of the wrong length": (
        lambda m: using(m, shift={"bn1": norm.Shift(mu=torch.zeros(5))}),
        r"'bn1' needs 4 values, found shape \(5,\)",
    ),
    "a shift of the wrong shape": (
        lambda m: using(m, shift={"bn1": norm.Shift(sigma=torch.zeros(4, 1))}),
        r"'bn1' needs 4 values, found shape \(4, 1\)",
    ),
    "a shift of an unknown layer": (
        lambda m: using(m, shift={"bn9": norm.Shift()}),
        "no steered layer 'bn9'",
    ),
    "use without steering": (lambda m: using(small()), "no steered layer"),
    "observing without steering": (lambda m: norm.observe(small()).__enter__(), "no steered layer"),
    "a snapshot without steering": (lambda m: norm.snapshot(small()), "no steered layer"),
    "recalibrating without steering": (
        lambda m: norm.recalibrate(small(), [images(4, 2, 5, 5)]),
        "no steered layer",
    ),
    "a branch without steering": (lambda m: norm.add_branch(small(), "adv"), "no steered layer"),
    "a branch that exists": (lambda m: norm.add_branch(m, "adv"), "'adv' already, at bn1"),
    "a branch called main": (lambda m: norm.add_branch(m, "main"), "'main' cannot name a branch"),
    "a branch that is no word": (lambda m: norm.add_branch(m, "a.b"), "'a.b' cannot name a branch"),
    "a branch that hides a method": (lambda m: norm.add_branch(m, "items"), "'items' cannot name a branch"),
    "a branch that hides the mode": (lambda m: norm.add_branch(m, "training"), "'training' cannot name"),
    "a branch of nothing": (
        lambda m: norm.add_branch(m, "new", affine=False, statistics=False),
        "share everything",
    ),
    "a copy of an unknown branch": (lambda m: norm.add_branch(m, "new", copy_of="avd"), "no branch 'avd'"),
    "release of an unknown branch": (lambda m: norm.release(m, branch="avd"), "no branch 'avd'"),
    "freezing an unknown branch": (lambda m: norm.freeze(m, branch="avd"), "branch 'avd'"),
    "a forward pass of its own": (
        lambda m: norm.steer(nn.Sequential(nn.BatchNorm2d(2), OwnForward(2))),
        "cannot steer 1: OwnForward has a forward pass",
    ),
    "a lazy layer": (lambda m: norm.steer(nn.Sequential(nn.LazyBatchNorm2d())), "cannot steer 0 yet"),
    "no running statistics to read": (
        lambda m: using_layer(nn.BatchNorm1d(3, track_running_stats=False), images(4, 3), source="running"),
        "keeps no running statistics",
    ),
    "no running statistics to teach": (
        lambda m: using_layer(nn.BatchNorm1d(3, track_running_stats=False), images(4, 3), update=True),
        "keeps no running statistics",
    ),
    "an average over batches that nobody counts": (
        lambda m: using_layer(uncounted(), images(4, 3), update="average"),
        "counts no batches",
    ),
    "no momentum and nobody who counts": (
        lambda m: using_layer(uncounted(momentum=None), images(4, 3), update=True),
        "counts no batches",
    ),
    "a plan for another model": (
        lambda m: norm.rebuild(nn.Sequential(nn.BatchNorm2d(4)), norm.branch_spec(m)),
        "branch at 'bn1'",
    ),
    "shift gradients without affine ones": (unseen, "bn1 has no affine gradient"),
    "an unknown kind": (lambda m: norm.swap(m, "batch"), "'batch' is no kind.*bn, gn, in, ln, none"),
    "a kind for a bare layer": (lambda m: norm.swap(nn.BatchNorm2d(2), "gn"), "itself a batch-norm layer"),
    "instances without positions": (lambda m: norm.make("in", 4, dims=0), "needs features with positions"),
}


def uncounted(**options: Any) -> nn.Module:
    layer = nn.BatchNorm1d(3, **options)
    layer.num_batches_tracked = None
    return layer


def using_layer(layer: nn.Module, x: Tensor, **knobs: Any) -> None:
    with norm.use(norm.steer(layer.double()), **knobs):
        layer(x)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_in_one_sentence_and_changes_nothing(mistake: str) -> None:
    commit, words = MISTAKES[mistake]
    model: Any = norm.add_branch(norm.steer(small()), "adv")
    before = state(model)
    with pytest.raises(BadInput, match=words) as told:
        commit(model)
    assert "\n" not in str(told.value)
    assert len(str(told.value)) < 200
    assert differing(before, state(model)) == []
    assert all(layer.setting == norm.Setting() for layer in norm.layers(model).values())


def test_a_refused_model_is_left_stock() -> None:
    model = nn.Sequential(nn.BatchNorm2d(2), OwnForward(2))
    with pytest.raises(BadInput):
        norm.steer(model)
    assert type(model[0]) is nn.BatchNorm2d


def test_input_of_the_wrong_rank_is_told_as_stock_does() -> None:
    layer = norm.steer(nn.BatchNorm2d(3))
    with norm.use(layer, groups=2), pytest.raises(ValueError, match="expected 4D input"):
        layer(torch.zeros(4, 3))
