"""On linear classifiers the best attack is known: the margin falls by eps times the dual norm of w."""

import pytest
import torch
from tests.attacks.linear import Linear, inner_images

from trimtab.attacks import APGD, FGSM, L2, PGD, Linf

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
