"""On linear classifiers the best attack is known: the margin falls by eps times the dual norm of w."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from trimtab.attacks import APGD, EOT, FGSM, L2, PGD, CurvePGD, Linf, curve
from trimtab.attacks.eot import MeanProbability
from trimtab.attacks.losses import cw, dlr, dlr_targeted, other_class


class Linear(nn.Module):
    """Two classes: logits (0, w . (x - 1/2))."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.w = nn.Parameter(
            torch.randn(48, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        )

    def forward(self, x):
        z = (x.flatten(1) - 0.5) @ self.w
        return torch.stack([torch.zeros_like(z), z], 1)


def inner_images(n=20):
    g = torch.Generator().manual_seed(1)
    return 0.5 + 0.1 * (2 * torch.rand(n, 3, 4, 4, generator=g, dtype=torch.float64) - 1)  # far from the box


LINEAR = [
    PGD(Linf(0.02), steps=40),
    PGD(Linf(0.02), steps=40, loss="cw"),
    PGD(Linf(0.02), steps=40, targeted=True),  # of two classes the other is the only target
    PGD(Linf(0.02), steps=40, loss="cw", targeted=True),
    FGSM(Linf(0.02)),
    APGD(Linf(0.02), steps=40),
    PGD(L2(0.05), steps=40, random_start=False),  # a random start approaches the optimum only in the limit
    PGD(L2(0.05), steps=40, loss="cw", random_start=False),
]


@pytest.mark.parametrize("attack", LINEAR, ids=str)
def test_the_optimal_attack_on_a_linear_model_is_reached(attack):
    model, x = Linear(), inner_images()
    y, best = optimum(model, x, attack.budget)
    reached = (2 * y - 1) * model(attack(model, x, y))[:, 1]
    stands = best > 0
    assert 0 < int(stands.sum()) < len(x)
    assert torch.equal(reached > 0, stands)
    # Auto-PGD stops at the first misclassified image, plain PGD goes on to the optimum.
    compared = stands if isinstance(attack, APGD) else slice(None)
    torch.testing.assert_close(reached[compared], best[compared], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(
    "attack", [PGD(L2(0.05), steps=100, step_size=0.02), APGD(L2(0.05), steps=100)], ids=str
)
def test_l2_attacks_from_a_random_start_come_close_to_the_optimum(attack):
    model, x = Linear(), inner_images()
    y, best = optimum(model, x, attack.budget)
    reached = (2 * y - 1) * model(attack(model, x, y))[:, 1]
    stands = best > 0
    assert bool(stands.any())
    torch.testing.assert_close(reached[stands], best[stands], atol=5e-3, rtol=0)


def optimum(model, x, budget):
    """Labels by the model itself, and the smallest margin that any attack within the budget can reach."""
    z = model(x)[:, 1].detach()
    dual = model.w.detach().abs().sum() if isinstance(budget, Linf) else model.w.detach().norm()
    return (z > 0).long(), z.abs() - budget.radius * dual


@pytest.mark.parametrize("early_stop", [False, True])
def test_of_several_restarts_a_robust_image_keeps_the_one_with_the_smallest_margin(early_stop):
    model, x = Linear(), inner_images()
    y = optimum(model, x, Linf(0.02))[0]
    once, often = (
        PGD(Linf(0.02), steps=1, step_size=0.001, restarts=n, early_stop=early_stop) for n in (1, 5)
    )
    first, best = ((2 * y - 1) * model(attack(model, x, y))[:, 1] for attack in (once, often))
    robust = best > 0
    assert int(robust.sum()) > 10
    assert bool((best <= first)[robust].all())
    assert int((best < first)[robust].sum()) > 5


def test_cw_margin_is_the_gap_to_the_best_other_class():
    z, y = torch.tensor([[3.0, 1.0, 2.5], [0.0, 4.0, 1.0]]), torch.tensor([0, 2])
    assert torch.equal(cw(z, y), torch.tensor([-0.5, 3.0]))


def test_dlr_is_the_published_formula():
    z = torch.tensor([[4.0, 3.0, 1.0, 0.0]])
    y, t = torch.tensor([0]), torch.tensor([2])
    assert float(dlr(z, y)) == pytest.approx(-(4 - 3) / (4 - 1))
    assert float(dlr_targeted(z, y, t)) == pytest.approx(-(4 - 1) / (4 - 0.5 * (1 + 0)))


def test_targets_are_uniform_over_the_other_classes():
    y = torch.zeros(6000, dtype=torch.long)
    counts = torch.bincount(other_class(y, 4, seed=3, ids=range(6000)), minlength=4)
    assert counts[0] == 0
    assert (counts[1:] - 2000).abs().max() < 5 * math.sqrt(6000 * (1 / 3) * (2 / 3))


def test_eot_climbs_minus_the_logarithm_of_the_mean_probability():
    models = [Linear(s) for s in range(3)]
    x, y = inner_images(4).requires_grad_(True), torch.tensor([0, 1, 0, 1])
    mixed = F.cross_entropy(MeanProbability(models)(x), y, reduction="sum")
    mean = torch.stack([m(x).softmax(1) for m in models]).mean(0)
    explicit = -mean.gather(1, y[:, None]).log().sum()
    torch.testing.assert_close(mixed, explicit)
    torch.testing.assert_close(torch.autograd.grad(mixed, x)[0], torch.autograd.grad(explicit, x)[0])


def test_eot_over_a_set_of_linear_models_moves_every_pixel_against_all():
    models = [Linear(s) for s in range(3)]
    x = inner_images(6)
    y = torch.zeros(6, dtype=torch.long)
    adv = EOT(PGD(Linf(0.05), steps=20, random_start=False), sampler=models)(models[0], x, y)
    before = torch.stack([m(x).softmax(1) for m in models]).mean(0)[:, 0]
    after = torch.stack([m(adv).softmax(1) for m in models]).mean(0)[:, 0]
    assert (after < before).all()


def test_a_curve_tells_what_separate_runs_of_that_length_give(model, images):
    x, y = (part[:32] for part in images)
    attack = PGD(Linf("4/255"), step_size="0.5/255")
    stands = curve(attack, model, x, y, marks=(1, 5, 12))
    for mark, found in stands.items():
        alone = PGD(Linf("4/255"), steps=mark, step_size="0.5/255")(model, x, y)
        with torch.no_grad():
            assert torch.equal(found, model(alone).argmax(1) == y)


def test_a_curve_that_scores_any_iterate_never_rises(model, images):
    x, y = images
    outcome = CurvePGD(Linf("4/255"), steps=20, early_stop=True, marks=(0, 3, 8, 20)).outcome(model, x, y)
    counts = [int(outcome.marks[m].sum()) for m in (0, 3, 8, 20)]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1] == int(outcome.success.sum())
