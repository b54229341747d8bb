"""The templates of docs/architecture.md: attack, objective, BN mode and corruption, one file each."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import trimtab
from trimtab import data, evaluate
from trimtab.attacks import Linf

FOLDER = Path(__file__).parents[1] / "docs" / "templates"


def template(name: str):
    """The class that a template file defines, imported as a user's own module."""
    spec = importlib.util.spec_from_file_location(f"template_{name}", FOLDER / f"{name}.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (made,) = (v for v in vars(module).values() if isinstance(v, type) and v.__module__ == spec.name)
    return made


@pytest.fixture
def model():
    return trimtab.load("zoo:sample-standard")


@pytest.fixture
def images():
    return data.load("sample", "test").subset(slice(0, 64))


@pytest.mark.parametrize("name", ["attack", "objective", "bn_mode", "corruption"])
def test_a_template_is_one_file_of_fewer_than_forty_lines(name):
    assert len((FOLDER / f"{name}.py").read_text().splitlines()) < 40


def test_an_attack_of_ones_own_keeps_its_budget_and_lowers_the_accuracy(model, images):
    attack = template("attack")(Linf("16/255"), tries=20)
    batch = next(iter(images.batches(64)))
    adversarial = attack(model, batch.x, batch.y)
    assert float((adversarial - batch.x).abs().max()) <= 16 / 255 + 1e-6
    loss = [F.cross_entropy(model(x), batch.y).item() for x in (batch.x, adversarial)]
    assert loss[1] > loss[0]
    card = evaluate.run(model, images, suite=[attack])
    assert len(card.rows) == 1


def test_an_objective_of_ones_own_adds_the_gradient_of_its_loss(model):
    objective = template("objective")()
    x, y = torch.rand(8, 1, 28, 28), torch.arange(8) % 10
    model.train()
    parts = objective(model, x, y, seed=0)
    z = parts.logits
    lead = 1 - z.gather(1, y[:, None]) + z
    hinges = [lead[i, c].clamp(min=0) ** 2 for i in range(8) for c in range(10) if c != int(y[i])]
    torch.testing.assert_close(parts["loss"], torch.stack(hinges).mean())
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)


def test_a_bn_mode_of_ones_own_is_measured_as_adapt_per_batch_would(model, images):
    mode = template("bn_mode")()
    modes = [mode, evaluate.PerBatchMode(0.5)]
    card = evaluate.run(model, images, suite=[evaluate.Clean()], bn_modes=modes, chunk=64)
    first, second = card.rows
    assert first.accuracy == second.accuracy


def test_a_corruption_of_ones_own_is_a_row_of_the_card(model, images):
    corruption = template("corruption")(0.25)
    batch = next(iter(images.batches(64)))
    dark = (corruption.shown(batch, 0).amax(1) == 0).float().mean() - (batch.x.amax(1) == 0).float().mean()
    assert float(dark) > 0
    (row,) = evaluate.run(model, images, suite=[corruption]).rows
    assert str(row.condition) == "dead pixels 25%"
