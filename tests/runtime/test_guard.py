"""Inside the guard nothing is learned, whatever the caller has steered.

Also tests _mode.
"""

from __future__ import annotations

import pytest
import torch

from nets import images, small, state
from trimtab import norm
from trimtab.runtime import guard


@pytest.mark.parametrize("running", [True, False])
@pytest.mark.parametrize("update", [True, 0.3, "average"])
def test_an_outer_update_is_off_inside_the_guard(running: bool, update: bool | float | str) -> None:
    model, x = norm.steer(small()), images(8, 2, 5, 5)
    before = state(model)
    with norm.use(model, update=update):
        with guard(model, running), torch.no_grad():
            first, second = model(x), model(x)
            inside = state(model)  # not only restored afterwards
        assert torch.equal(first, second)
        assert all(torch.equal(inside[name], value) for name, value in before.items())
        model(x)
    assert any(not torch.equal(state(model)[name], value) for name, value in before.items())


def test_gradients_that_the_block_clears_are_restored() -> None:
    model, x = small(), images(4, 2, 5, 5)
    model(x).sum().backward()
    before = {name: p.grad for name, p in model.named_parameters()}
    values = {name: grad.clone() for name, grad in before.items() if grad is not None}
    with guard(model):
        model.zero_grad()
        assert all(p.grad is None for p in model.parameters())
    for name, parameter in model.named_parameters():
        assert parameter.grad is before[name]
        assert torch.equal(parameter.grad, values[name])


def test_the_guard_ends_an_outer_source_groups_and_shift_unless_they_are_asked_for() -> None:
    model, x = norm.steer(small()).eval(), images(8, 2, 5, 5)
    plain = model(x).detach()
    name, layer = next(iter(norm.layers(model).items()))
    shift = {name: norm.Shift(mu=torch.full_like(layer.running_mean, 0.5))}
    for setting in ({"shift": shift}, {"source": "batch"}, {"source": "batch", "groups": 2}):
        with norm.use(model, **setting):
            outer = model(x).detach()
            with guard(model), torch.no_grad():
                assert torch.equal(model(x), plain)
            with guard(model, running=False), torch.no_grad():
                torch.testing.assert_close(model(x), outer)
        assert not torch.allclose(outer, plain)
