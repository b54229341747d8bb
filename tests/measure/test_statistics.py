"""Views of the statistics: rows of branches and batches, and tolerance to perturbations."""

import pytest
import torch
import torch.nn.functional as F
from tests.measure.networks import points
from torch import nn

from trimtab import measure, norm
from trimtab.types import BadInput


def test_branch_statistics_are_those_in_the_state_dict(branched):
    held = branched.state_dict()
    rows = measure.branch_statistics(branched)
    assert len(rows) == 8
    for row in rows:
        prefix = "1." if row["branch"] == "main" else "1.branches.adv."
        assert row["mean"] == float(held[f"{prefix}running_mean"][row["channel"]])
        assert row["std"] ** 2 == pytest.approx(float(held[f"{prefix}running_var"][row["channel"]]))


def test_a_branch_that_shares_its_statistics_has_no_rows_of_its_own(branched):
    norm.add_branch(branched, "gains", copy_of="adv", statistics=False)
    assert {row["branch"] for row in measure.branch_statistics(branched)} == {"main", "adv"}


def test_batches_are_compared_with_the_branch_in_force():
    model = nn.Sequential(nn.BatchNorm2d(3), nn.BatchNorm2d(3), nn.BatchNorm2d(3)).double()
    norm.add_branch(norm.steer(model)[1:], "adv")
    for at in (1, 2):
        model.state_dict()[f"{at}.branches.adv.running_mean"].fill_(7.0)

    def means():
        return [row["running mean"] for row in measure.batch_against_running(model, points())[::3]]

    assert means() == [0.0, 0.0, 0.0]
    with norm.use(model, branch="adv"):
        assert means() == [0.0, 7.0, 7.0]  # the first layer never got the branch
    with norm.use(model[2:], branch="adv"):
        assert means() == [0.0, 0.0, 7.0]


def test_batch_statistics_are_those_of_the_layers_input(branched):
    x = points(16, seed=9)
    z = branched[0](x).detach()
    for row in measure.batch_against_running(branched, x):
        assert row["batch mean"] == pytest.approx(float(z[:, row["channel"]].mean()))
        assert row["batch variance"] == pytest.approx(float(z[:, row["channel"]].var(correction=0)))


def test_without_a_radius_every_statistics_attack_leaves_the_accuracy(branched):
    x, y = points(32, seed=3), torch.arange(32) % 2
    rows = measure.tolerance(branched, [(x, y)], eps=(0.0, 0.3))
    clean = float((branched(x).argmax(1) == y).double().mean())
    assert {row["accuracy"] for row in rows if row["eps"] == 0} == {clean}
    assert {row["attack"] for row in rows} == set(measure.statistics.ATTACKS)


def test_tolerance_tells_what_it_lacks(branched):
    with pytest.raises(BadInput, match="at least one batch"):
        measure.tolerance(branched, [])
    with pytest.raises(BadInput, match=r"attack must be one of sign step .*, found 'wind'"):
        measure.tolerance(branched, [(points(4), torch.arange(4) % 2)], attacks=["wind"])


def test_the_sign_step_of_figure_1_is_taken_without_groups_and_evaluated_with_them():
    """Algorithm 1 finds delta on the whole batch (line 4) and applies it in groups (line 6)."""
    torch.manual_seed(3)
    model = nn.Sequential(
        nn.Conv2d(3, 6, 2), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 5, 1), nn.BatchNorm2d(5), nn.ReLU(),
        nn.Flatten(), nn.Linear(5, 3),
    ).double()  # fmt: skip
    x, y = points(48, seed=5), torch.arange(48) % 3
    eps, n = 0.3, 4

    def forward(x, deltas):
        """Eq. 3 by hand: gamma (1 + d_sigma)(x - (1 + d_mu) mu) / sigma + beta of this batch."""
        shifts = iter(deltas)
        for layer in model:
            if not isinstance(layer, nn.BatchNorm2d):
                x = layer(x)
                continue
            d_mu, d_sigma = (next(shifts).view(1, -1, 1, 1) for _ in range(2))
            mu = x.mean((0, 2, 3), keepdim=True)
            sigma = (((x - mu) ** 2).mean((0, 2, 3), keepdim=True) + layer.eps).sqrt()
            gamma, beta = layer.weight.view(1, -1, 1, 1), layer.bias.view(1, -1, 1, 1)
            x = gamma * (1 + d_sigma) * (x - (1 + d_mu) * mu) / sigma + beta
        return x

    zero = [torch.zeros(c, dtype=torch.float64, requires_grad=True) for c in (6, 6, 5, 5)]

    def split(parts):
        return list(zip(x.chunk(parts), y.chunk(parts), strict=True))

    accuracies = {}
    for name, parts in {"ungrouped": 1, "grouped": n}.items():
        loss = sum(F.cross_entropy(forward(a, zero), b) for a, b in split(parts))
        corner = [eps * g.sign() for g in torch.autograd.grad(loss, zero)]
        accuracies[name] = sum(int((forward(a, corner).argmax(1) == b).sum()) for a, b in split(n)) / len(y)
    assert accuracies["ungrouped"] != accuracies["grouped"]  # else the test could not tell them apart
    norm.steer(model)
    (row,) = measure.tolerance(model, [(x, y)], (eps,), ("sign step (APART)",), source="batch", groups=n)
    assert row["accuracy"] == pytest.approx(accuracies["ungrouped"])
