"""A steered model is the stock model, bit for bit, until a knob is turned: on the networks people use."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from nets import PUBLIC, differing, public, state
from trimtab import norm

LIGHT = ["torchvision mobilenet_v3_small", "timm efficientnet_b0", "timm regnety_002"]


@pytest.fixture(scope="module", params=PUBLIC)
def stock(request: pytest.FixtureRequest) -> nn.Module:
    return public(request.param)


def step(model: nn.Module, autocast: bool = False) -> dict[str, Tensor]:
    """What one forward and backward pass leaves: logits, all gradients, all buffers."""
    x = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(3))
    x = x.to(next(model.parameters()).dtype).requires_grad_()
    model.zero_grad()
    torch.manual_seed(4)  # drop-out and stochastic depth
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        logits = model(x)
    nn.functional.cross_entropy(logits.to(x.dtype), torch.tensor([1, 7])).backward()
    assert x.grad is not None
    return {"logits": logits.detach(), "x.grad": x.grad} | state(model)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_logits_gradients_statistics_and_keys_are_those_of_the_stock_model(
    stock: nn.Module, training: bool
) -> None:
    wanted = step(copy.deepcopy(stock).train(training))
    got = step(norm.steer(copy.deepcopy(stock)).train(training))
    assert differing(wanted, got) == []


def test_release_gives_back_the_stock_types_keys_and_values(stock: nn.Module) -> None:
    released = norm.release(norm.steer(copy.deepcopy(stock)))
    assert differing(state(stock), state(released)) == []
    before, after = dict(stock.named_modules()), dict(released.named_modules())
    assert before.keys() == after.keys()
    for name, module in before.items():
        assert type(module) is type(after[name])
        assert module.__dict__.keys() == after[name].__dict__.keys()


def test_running_statistics_on_the_steered_path_are_eval_bit_for_bit(stock: nn.Module) -> None:
    wanted = step(copy.deepcopy(stock).eval())
    steered = norm.steer(copy.deepcopy(stock)).eval()
    with norm.use(steered, source="running", update=False):
        got = step(steered)
    assert differing(wanted, got) == []


def test_a_zero_shift_in_training_changes_nothing_beyond_rounding(stock: nn.Module) -> None:
    """Every layer on the steered path, fused activations and drop-out included."""
    wanted = step(copy.deepcopy(stock).double().train())
    steered = norm.steer(copy.deepcopy(stock)).double().train()
    with norm.use(steered, shift=norm.zero_shifts(steered)):
        got = step(steered)
    assert wanted.keys() == got.keys()
    for name, value in wanted.items():
        assert torch.allclose(value, got[name], rtol=1e-6, atol=1e-9), name


@pytest.mark.parametrize("name", LIGHT)
def test_copies_and_pickles_of_a_steered_model_are_invisible_too(name: str) -> None:
    steered = norm.steer(public(name)).train()
    file = io.BytesIO()
    torch.save(steered, file)
    file.seek(0)
    copied, loaded = copy.deepcopy(steered), torch.load(file, weights_only=False)
    wanted = step(public(name).train())
    for again in (copied, loaded):
        assert norm.layers(again).keys() == norm.layers(steered).keys()
        assert differing(wanted, step(again)) == []


@pytest.mark.parametrize("name", LIGHT)
def test_autocast_makes_no_difference(name: str) -> None:
    wanted = step(public(name).train(), autocast=True)
    assert differing(wanted, step(norm.steer(public(name)).train(), autocast=True)) == []


class Recorder(TorchDispatchMode):
    """The operators that run, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.ran: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ran.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_a_steered_model_that_nobody_steers_runs_the_operators_of_the_stock_one(training: bool) -> None:
    with Recorder() as stock:
        step(public("timm regnety_002").train(training))
    with Recorder() as steered:
        step(norm.steer(public("timm regnety_002")).train(training))
    assert stock.ran == steered.ran


def test_a_synchronized_layer_of_one_process_is_invisible_on_a_cpu_too() -> None:
    stock = nn.SyncBatchNorm(4)
    steered = norm.steer(copy.deepcopy(stock))
    for draw in range(3):
        x = 3 * torch.randn(8, 4, 5, 5, generator=torch.Generator().manual_seed(draw)) + 1
        assert torch.equal(stock(x), steered(x))
    assert torch.equal(stock.running_mean, steered.running_mean)
    assert torch.equal(stock.running_var, steered.running_var)
