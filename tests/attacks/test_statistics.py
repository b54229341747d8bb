"""Shifts of statistics, against formulas written with stock layers.

Also tests attacks.feature.
"""

import copy
import math

import pytest
import torch
import torch.nn.functional as F

from trimtab import norm
from trimtab.attacks import Ascent, RandomSign, RandomUniform, Scaled, SignStep
from trimtab.attacks.feature import ascend, perturbed


@pytest.fixture
def steered(model):
    return norm.steer(copy.deepcopy(model).double())


@pytest.fixture
def batch(images):
    return images[0][:32].double(), images[1][:32]


def loss_under(model, x, y, shift):
    with torch.no_grad(), norm.use(model, source="batch", update=False, shift=shift):
        return float(F.cross_entropy(model(x), y))


def test_the_sign_step_goes_where_finite_differences_point(steered, batch):
    found = SignStep(0.1)(steered, *batch)
    h = 1e-5
    for name, shift in found.items():
        for channel in (0, 3):
            for half in ("mu", "sigma"):
                nudge = torch.zeros(8, dtype=torch.float64)
                nudge[channel] = h
                up = loss_under(steered, *batch, {name: norm.Shift(**{half: nudge})})
                down = loss_under(steered, *batch, {name: norm.Shift(**{half: -nudge})})
                slope = (up - down) / (2 * h)
                assert float(getattr(shift, half)[channel]) == pytest.approx(0.1 * math.copysign(1, slope))


def test_adversarial_shifts_hurt_more_than_random_ones(steered, batch):
    clean = loss_under(steered, *batch, None)
    random = max(loss_under(steered, *batch, RandomSign(0.1)(steered, seed=s)) for s in range(5))
    one = loss_under(steered, *batch, SignStep(0.1)(steered, *batch))
    several = loss_under(steered, *batch, Ascent(0.1, steps=10)(steered, *batch))
    assert clean < one
    assert random < one
    assert one <= several + 1e-9


def test_every_delta_stays_in_its_cube(steered, batch):
    for attack in (SignStep(0.1), Ascent(0.1, steps=3), RandomUniform(0.1), RandomSign(0.1)):
        for shift in attack(steered, *batch).values():
            for delta in (shift.mu, shift.sigma):
                assert float(delta.abs().max()) <= 0.1 + 1e-12


def test_ascent_at_one_layer_leaves_the_others_alone(steered, batch):
    assert list(Ascent(0.1, layers=("4",))(steered, *batch)) == ["4"]


def test_a_scaled_sigma_divides_by_one_plus_eps_v(steered, batch):
    x, _ = batch
    shifts = Scaled(0.3, "sigma")(steered, seed=2)
    layer, stock = steered[1], torch.nn.functional.batch_norm
    v = (1 / (1 + shifts["1"].sigma) - 1) / 0.3
    assert set(v.abs().round(decimals=9).tolist()) == {1.0}
    z = steered[0](x).detach()
    mean, var = z.mean((0, 2, 3)), z.var((0, 2, 3), correction=0)
    by_hand = stock(
        z, mean, (1 + 0.3 * v) ** 2 * (var + layer.eps), layer.weight, layer.bias, False, 0.0, 0.0 + 1e-300
    )
    with norm.use(steered, source="batch", update=False, shift=shifts):
        torch.testing.assert_close(layer(z), by_hand)


def test_statistics_attacks_leave_the_model_untouched(steered, batch):
    before = {k: v.clone() for k, v in steered.state_dict().items()}
    steered.train()
    Ascent(0.1)(steered, *batch)
    assert steered.training
    assert all(torch.equal(v, before[k]) for k, v in steered.state_dict().items())
    assert all(p.requires_grad and p.grad is None for p in steered.parameters())


def test_advbn_ascent_reaches_the_corner_where_the_loss_is_monotone():
    # The tail sums channel 0 and negates channel 1, features are positive: the corner is known.
    z = torch.rand(8, 2, 3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 1.0
    y = torch.zeros(8, dtype=torch.long)

    def tail(f):
        score = f[:, 0].mean((1, 2)) - f[:, 1].mean((1, 2))
        return torch.stack([score, torch.zeros_like(score)], 1)

    d_mu, _ = ascend(tail, z, y, eps=0.5, steps=6, step=0.2, rectify=False)
    assert torch.allclose(d_mu, torch.tensor([-0.5, 0.5], dtype=torch.float64))
    corners = {}
    for a in (-0.5, 0.5):
        for b in (-0.5, 0.5):
            d = torch.tensor([a, b], dtype=torch.float64)
            corners[a, b] = float(F.cross_entropy(tail(perturbed(z, d, torch.zeros(2).double(), False)), y))
    assert max(corners, key=corners.get) == (-0.5, 0.5)
