"""FAB finds the nearest misclassified image: closed forms, SciPy's solvers, and its authors' package."""

import math

import pytest
import torch
from scipy.optimize import linprog, minimize
from tests.attacks.linear import inner_images
from torch import nn

from trimtab.attacks import FAB, L2, PGD, Linf
from trimtab.attacks.fab import to_hyperplane
from trimtab.types import BadInput

BUDGETS = pytest.mark.parametrize("budget", [Linf("4/255"), L2(0.3)], ids=str)


class Linear(nn.Module):
    """Logits W (x - 1/2), in double precision."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(3)
        self.w = nn.Parameter(torch.randn(classes, 48, generator=g, dtype=torch.float64))

    def forward(self, x):
        return (x.flatten(1) - 0.5) @ self.w.T


@BUDGETS
@pytest.mark.parametrize("targets", [0, 3], ids=["untargeted", "targeted"])
def test_on_a_linear_model_the_distance_is_that_of_the_nearest_hyperplane(budget, targets):
    model, x = Linear(4), inner_images()
    with torch.no_grad():
        z = model(x)
        y = z.argmax(1)
        across = model.w[y, None] - model.w  # (N, classes, pixels)
        dual = across.norm(1 if isinstance(budget, Linf) else 2, dim=2)
        nearest = ((z.gather(1, y[:, None]) - z) / dual).nan_to_num(torch.inf).amin(1)
    found = FAB(budget, steps=20, targets=targets).distances(model, x, y)
    torch.testing.assert_close(found, nearest, rtol=1e-4, atol=0)
    assert (found >= nearest * (1 - 1e-9)).all()


def test_a_misclassified_image_has_distance_zero_and_a_constant_model_infinity():
    model, x = Linear(4), inner_images(4)
    wrong = (model(x).argmax(1) + 1) % 4
    assert torch.equal(FAB(steps=2).distances(model, x, wrong), torch.zeros(4, dtype=torch.float64))

    class Constant(nn.Module):
        def forward(self, x):
            return torch.tensor([[1.0, 0.0, 0.0]]).to(x).repeat(len(x), 1)

    outcome = FAB(steps=2).outcome(Constant(), x, torch.zeros(4, dtype=torch.long))
    assert not outcome.success.any()
    assert torch.equal(outcome.x, x)
    assert FAB(steps=2).distances(Constant(), x, torch.zeros(4, dtype=torch.long)).isinf().all()


@BUDGETS
@pytest.mark.parametrize("value", [-0.5, 3.0, -8.0, 11.0])
def test_the_step_to_a_hyperplane_in_the_box_is_that_of_scipy(budget, value):
    g = torch.Generator().manual_seed(0)
    x, w = torch.rand(12, generator=g, dtype=torch.float64), torch.randn(12, generator=g, dtype=torch.float64)
    x[:2] = torch.tensor([0.0, 1.0])
    (d,) = to_hyperplane(x[None], torch.tensor([value], dtype=torch.float64), w[None], budget)
    box = list(zip((-x).tolist(), (1 - x).tolist(), strict=True))
    reach = linprog((math.copysign(1, value) * w).tolist(), bounds=box)
    assert float(w @ d) == pytest.approx(-math.copysign(min(abs(value), -reach.fun), value))
    assert ((x + d >= -1e-12) & (x + d <= 1 + 1e-12)).all()
    if abs(value) > -reach.fun:
        return
    if isinstance(budget, Linf):  # the variables are d and its largest component
        rows = [[*(sign * e).tolist(), -1.0] for e in torch.eye(12) for sign in (1, -1)]
        solved = linprog(
            [0.0] * 12 + [1.0], rows, [0.0] * 24, [[*w.tolist(), 0.0]], [-value], [*box, (0, None)]
        )
        assert float(d.abs().max()) == pytest.approx(solved.fun)
    else:
        on_plane = {"type": "eq", "fun": lambda d: value + w.numpy() @ d}
        solved = minimize(
            lambda d: d @ d, [0.0] * 12, bounds=box, constraints=on_plane, options={"ftol": 1e-12}
        )
        assert float(d @ d) == pytest.approx(solved.fun, rel=1e-4)


@pytest.mark.filterwarnings("ignore")
@BUDGETS
@pytest.mark.parametrize("targets", [0, 4], ids=["untargeted", "targeted"])
def test_distances_are_those_of_the_authors_package_or_shorter(model, images, budget, targets):
    from pyautoattack.fab_pt import FABAttack_PT

    x, y = (part[:48] for part in images)
    ours = FAB(budget, steps=30, targets=targets).distances(model, x, y)
    linf = isinstance(budget, Linf)
    attack = FABAttack_PT(
        model, norm="Linf" if linf else "L2", n_restarts=1, n_iter=30, eps=10.0, seed=0, verbose=False,
        device="cpu",
    )  # fmt: skip
    attack.targeted, attack.n_target_classes = targets > 0, targets
    delta = (attack.perturb(x, y) - x).flatten(1)
    theirs = delta.abs().amax(1) if linf else delta.norm(dim=1)
    attacked = theirs > 0
    assert attacked.sum() > 20
    assert (ours[attacked] <= theirs[attacked] * 1.01).double().mean() > 0.95
    assert (ours / theirs)[attacked].median() > 0.97


@BUDGETS
def test_one_run_gives_a_curve_that_no_other_attack_contradicts(model, images, budget):
    x, y = images
    found = FAB(budget, steps=50, targets=4).distances(model, x, y)
    for part in (0.5, 1.0):
        smaller = type(budget)(part * budget.radius)
        robust = ~PGD(smaller, steps=50, early_stop=True).outcome(model, x, y).success
        by_fab = found > smaller.radius
        assert 0 < int(robust.sum()) < len(x)
        assert abs(int(by_fab.sum()) - int(robust.sum())) <= 2


@BUDGETS
def test_early_stopping_finds_the_images_whose_distance_lies_in_the_budget(model, images, budget):
    x, y = images
    distances = FAB(budget, steps=30, targets=4).distances(model, x, y)
    outcome = FAB(budget, steps=30, targets=4).outcome(model, x, y)
    assert torch.equal(model(outcome.x).argmax(1) != y, outcome.success)
    assert torch.equal(outcome.success_at >= 0, outcome.success)
    assert (outcome.success != (distances <= budget.radius)).sum() <= 1  # the final search is not run
    assert torch.equal(outcome.x[~outcome.success], x[~outcome.success])


def test_restarts_only_come_nearer(model, images):
    x, y = (part[:32] for part in images)
    once, twice = (FAB(L2(0.3), 10, 1, restarts).distances(model, x, y) for restarts in (1, 3))
    assert (twice <= once * 1.005).all()  # the final search approaches, it does not arrive
    assert (twice < once * 0.995).any()


def test_what_would_try_nothing_is_refused():
    for numbers in ({"steps": 0}, {"restarts": 0}, {"targets": -1}):
        with pytest.raises(BadInput, match=r"FAB needs \w+ >= \d, found"):
            FAB(**numbers)
    with pytest.raises(BadInput, match="early_stop is True or False"):
        FAB(early_stop="any")
