"""`use` turns knobs for as long as its block lasts, nests, and leaves nothing behind."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nets import Small, differing, images, small, state
from trimtab import norm
from trimtab.types import BadInput


@pytest.fixture
def model() -> Small:
    return norm.add_branch(norm.steer(small()), "adv")


def settings(model: nn.Module) -> list[norm.Setting]:
    return [layer.setting for layer in norm.layers(model).values()]


def test_an_omitted_knob_inherits_and_none_is_stock(model: Small) -> None:
    x = images(4, 2, 5, 5)
    with norm.use(model, source="batch", update=False):
        grouped_alone = torch.cat([model(x[:2]), model(x[2:])])
        with norm.use(model, groups=2):
            assert torch.allclose(model(x), grouped_alone)
            with norm.use(model, groups=None):
                assert torch.equal(model(x), model(x))
                whole = model(x)
        assert torch.equal(model(x), whole)
    assert model.bn1.num_batches_tracked == 0  # update=False was inherited throughout
    assert torch.allclose(whole, norm.release(copy.deepcopy(model))(x))


def test_another_source_forgets_the_weight_of_an_outer_blend(model: Small) -> None:
    x = images(4, 2, 5, 5)
    with norm.use(model, update=False, source="batch"):
        batch = model(x)
    with norm.use(model, update=False, source="blend", rho=0.5), norm.use(model, source="batch"):
        assert torch.equal(model(x), batch)
        with pytest.raises(BadInput, match="rho"), norm.use(model, source="blend"):
            pass


def test_a_part_of_a_network_is_steered_alone(model: Small) -> None:
    x = images(4, 2, 5, 5)
    model.eval()
    with norm.use(model.bn2, source="batch", update=False):
        got = model(x)
        assert [setting == norm.Setting() for setting in settings(model)] == [True, False]
    stock = norm.release(copy.deepcopy(model))
    stock.bn2.train()
    assert torch.allclose(got, stock(x))


def test_everything_is_back_after_an_exception(model: Small) -> None:
    before = settings(model)
    kept = state(model)
    with pytest.raises(ZeroDivisionError), norm.use(model, groups=2, branch="adv"), norm.observe(model):
        raise ZeroDivisionError
    assert settings(model) == before
    assert differing(kept, state(model)) == []


def test_a_refused_use_changes_nothing(model: Small) -> None:
    before = settings(model)
    with pytest.raises(BadInput), norm.use(model, groups=2, shift={"bn1": norm.Shift(torch.zeros(99))}):
        pass
    assert settings(model) == before


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_copy_made_inside_starts_neutral_and_is_apart(model: Small, duplicate: Any) -> None:
    x = images(4, 2, 5, 5)
    wanted = copy.deepcopy(model)(x)
    with norm.use(model, groups=2, branch="adv", source="blend", rho=0.3):
        copied = duplicate(model)
    assert all(setting == norm.Setting() for setting in settings(copied))
    assert torch.equal(copied(x), wanted)
    with norm.use(copied, groups=4):
        assert all(setting == norm.Setting() for setting in settings(model))


def test_steering_survives_a_change_of_mode_inside(model: Small) -> None:
    x = images(4, 2, 5, 5)
    with norm.use(model, source="running", update=False):
        evaluated = model.eval()(x)
        assert torch.equal(model.train()(x), evaluated)


def test_observe_collects_what_each_layer_received(model: Small) -> None:
    x = images(4, 2, 5, 5)
    with norm.observe(model) as seen:
        model(x)
    received = model.conv1(x)
    assert list(seen) == ["bn1", "bn2"]
    assert torch.allclose(seen["bn1"].mean, received.mean((0, 2, 3)))
    assert torch.allclose(seen["bn1"].var, received.var((0, 2, 3), correction=0))
    assert all(setting == norm.Setting() for setting in settings(model))


def test_names_are_relative_to_what_a_wrapper_wraps(model: Small) -> None:
    wrapped = torch.compile(model, backend="eager")
    assert list(norm.layers(wrapped)) == ["bn1", "bn2"]
    assert list(norm.layers(model.bn1)) == [""]
    with norm.use(wrapped, shift={"bn1": norm.Shift(torch.ones(4))}):
        assert [setting.shift is not None for setting in settings(model)] == [True, False]


def test_a_child_that_is_called_module_keeps_its_name() -> None:
    model = nn.ModuleDict({"module": nn.BatchNorm2d(2), "bn": nn.BatchNorm2d(2)})
    assert list(norm.layers(norm.steer(model))) == ["module", "bn"]


def test_a_layer_used_twice_is_one_layer() -> None:
    shared = nn.BatchNorm2d(2)
    model = norm.steer(nn.Sequential(shared, nn.ReLU(), shared))
    assert list(norm.layers(model)) == ["0"]
    model(images(4, 2, 3, 3, dtype=torch.float32))
    assert shared.num_batches_tracked == 2


def test_zero_shifts_fit_every_layer(model: Small) -> None:
    shifts = norm.zero_shifts(model, requires_grad=True)
    assert list(shifts) == ["bn1", "bn2"]
    for shift in shifts.values():
        for delta in (shift.mu, shift.sigma):
            assert delta is not None
            assert (delta.shape, delta.dtype, delta.requires_grad) == ((4,), torch.float64, True)
            assert not delta.any()


def test_observe_pools_what_a_layer_sees_in_several_calls() -> None:
    """A layer that is called twice in a pass learns from both calls, and so does `recalibrate`."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm2d(3, momentum=None)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.norm(x) * 10 + 50)

    x = images(8, 3, 5, 5)
    stock = Twice().double().train()
    stock(x)
    model = norm.recalibrate(norm.steer(Twice().double()), [x])
    torch.testing.assert_close(model.norm.running_mean, stock.norm.running_mean)
    with norm.observe(model) as seen:
        model.norm(x[:4]), model.norm(x[4:])
    torch.testing.assert_close(seen["norm"].var, x.var((0, 2, 3), correction=0))


def test_a_rho_that_nothing_blends_by_is_refused(model: Small) -> None:
    for knobs in ({"source": "batch", "rho": 0.3}, {"rho": 0.3}, {"source": "running", "rho": 0.5}):
        with pytest.raises(BadInput, match='goes with source="blend"'), norm.use(model, **knobs):
            pass
    with (
        norm.use(model, source="blend", rho=0.3),
        norm.use(model, rho=0.5),
        norm.use(model, source="batch", rho=1),
    ):
        pass
