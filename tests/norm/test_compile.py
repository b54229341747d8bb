"""Under torch.compile: the same numbers, one graph, and no recompilation when a value changes."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nets import images, small, state
from trimtab import norm


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


class Counting:
    """A backend that runs the graph as it is, and counts how often it was asked to compile."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self, graph: Any, example: Any) -> Any:
        self.times += 1
        return graph.forward


def step(model: nn.Module, run: Any, x: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    logits = run(x)
    logits.pow(2).sum().backward()
    return {"logits": logits.detach()} | state(model)


def steered() -> nn.Module:
    return norm.add_branch(norm.steer(small()), "adv")


def compiled(model: nn.Module, backend: Any = "eager") -> Any:
    return torch.compile(model, backend=backend, fullgraph=True)


def close(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    assert one.keys() == other.keys()
    return all(torch.allclose(one[name], other[name]) for name in one)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_a_neutral_model_is_the_stock_one(training: bool) -> None:
    x = images(4, 2, 5, 5)
    stock, model = small().train(training), norm.steer(small()).train(training)
    assert close(step(stock, stock, x), step(model, compiled(model, "aot_eager"), x))


DELTA = torch.tensor([0.1, -0.2, 0.3, 0.0], dtype=torch.float64)


@pytest.mark.parametrize(
    "knobs",
    [
        {"groups": 2},
        {"branch": [("adv", 1), ("main", 3)]},
        {"source": "blend", "rho": 0.3},
        {"shift": {"bn1": norm.Shift(DELTA, -DELTA)}, "groups": 2, "update": False},
        {"source": "running", "update": "average"},
    ],
    ids=["groups", "route", "blend", "shift", "running"],
)
def test_a_steered_pass_compiles_to_one_graph_of_the_same_numbers(knobs: dict[str, Any]) -> None:
    x = images(4, 2, 5, 5)
    plain = steered()
    model = copy.deepcopy(plain)
    with norm.use(plain, **knobs), norm.use(model, **knobs):
        assert close(step(plain, plain, x), step(model, compiled(model, "aot_eager"), x))


def test_changing_rho_does_not_compile_each_time() -> None:
    x, count = images(4, 2, 5, 5), Counting()
    model, plain = steered(), steered()
    run = compiled(model, count)
    for rho in (0.1, 0.3, 0.5, 0.7, 0.9):
        knobs: dict[str, Any] = {"source": "blend", "rho": rho, "update": False}
        with norm.use(model, **knobs), norm.use(plain, **knobs):
            assert torch.allclose(run(x), plain(x))
    assert count.times <= 2


def test_changing_a_shift_does_not_compile_each_time() -> None:
    x, count = images(4, 2, 5, 5), Counting()
    model, plain = steered(), steered()
    run = compiled(model, count)
    for scale in (0.1, 0.2, 0.3, 0.4, 0.5):
        shift = {name: norm.Shift(scale * DELTA, scale * DELTA) for name in ("bn1", "bn2")}
        with norm.use(model, shift=shift, update=False), norm.use(plain, shift=shift, update=False):
            assert torch.allclose(run(x), plain(x))
    assert count.times <= 2


def test_leaving_use_brings_the_neutral_graph_back() -> None:
    x, count = images(4, 2, 5, 5), Counting()
    model = steered().eval()
    run = compiled(model, count)
    for _ in range(4):
        plain = run(x)
        with norm.use(model, groups=2, source="batch", update=False):
            grouped = run(x)
        assert torch.allclose(plain, model(x))
        assert not torch.allclose(plain, grouped)
    assert count.times == 2
