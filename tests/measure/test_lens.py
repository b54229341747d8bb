"""LIGS, landscape, spectra and statistics views against closed forms."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from trimtab import measure, norm
from trimtab.types import BadInput


class Quadratic(nn.Module):
    """Two logits (0, (x - c)' A (x - c) / 2): the input gradient of the loss is (p - y) A (x - c)."""

    def __init__(self) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(0)
        a = torch.randn(12, 12, generator=g, dtype=torch.float64)
        self.A = nn.Parameter(a + a.T)

    def forward(self, x):
        d = x.flatten(1) - 0.5
        q = 0.5 * ((d @ self.A) * d).sum(1)
        return torch.stack([torch.zeros_like(q), q], 1)


def points(n=10, seed=1):
    return torch.rand(n, 3, 2, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("probe", measure.PROBES)
def test_ligs_of_a_two_class_linear_softmax_is_one(probe):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 2)).double()
    found = measure.ligs(model, points(), torch.arange(10) % 2, probe=probe)
    torch.testing.assert_close(found, torch.ones(10, dtype=torch.float64))


def test_ligs_of_a_linear_softmax_is_the_cosine_of_its_error_vectors():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 5)).double()
    x, y = points(), torch.arange(10) % 5
    found = measure.ligs(model, x, y, probe="fgsm", size=0.3)
    W, b = model[1].weight.detach(), model[1].bias.detach()

    def slope(x):
        error = (x.flatten(1) @ W.T + b).softmax(1) - F.one_hot(y, 5)
        return error @ W

    aside = x + 0.3 * slope(x).sign().view_as(x)  # not clipped, as in the paper
    assert float(found.min()) < 0.999
    torch.testing.assert_close(found, F.cosine_similarity(slope(x), slope(aside), dim=1))
    clipped = measure.ligs(model, x, y, probe="fgsm", size=0.3, clip=True)
    torch.testing.assert_close(clipped, F.cosine_similarity(slope(x), slope(aside.clamp(0, 1)), dim=1))
    assert not torch.allclose(found, clipped)


@pytest.mark.parametrize("probe", measure.PROBES)
def test_no_probe_is_clipped_unless_asked(probe):
    model, y = Quadratic(), torch.zeros(10, dtype=torch.long)

    def ligs(x, **how):
        return measure.ligs(model, x, y, probe=probe, size=0.05, **how)

    corner, middle = (points() > 0.5).double(), 0.4 + 0.2 * points()
    assert torch.equal(ligs(corner), ligs(corner, clip=False))
    assert not torch.allclose(ligs(corner), ligs(corner, clip=True))
    assert torch.allclose(ligs(middle), ligs(middle, clip=True))  # no probe of 0.05 leaves [0, 1] from there


def test_ligs_under_pgd_walks_seven_steps_from_the_image_itself():
    model, x, y = Quadratic(), points(), torch.zeros(10, dtype=torch.long)
    A, size = model.A.detach(), 0.2

    def slope(x):  # up to a positive factor: that of class 0's cross-entropy
        return (x.flatten(1) - 0.5) @ A

    at = x.flatten(1)
    for _ in range(7):
        at = (at + 2.5 * size / 7 * slope(at).sign()).clamp(x.flatten(1) - size, x.flatten(1) + size)
    for seed in (0, 1):  # no random start
        found = measure.ligs(model, x, y, probe="pgd", size=size, seed=seed)
        torch.testing.assert_close(found, F.cosine_similarity(slope(x), slope(at), dim=1))


def test_ligs_of_a_quadratic_is_the_cosine_of_its_slopes():
    model, x = Quadratic(), points()
    y = torch.zeros(10, dtype=torch.long)
    found = measure.ligs(model, x, y, probe="fgsm", size=0.2)
    A = model.A.detach()
    d = x.flatten(1) - 0.5
    p = torch.sigmoid(0.5 * ((d @ A) * d).sum(1))
    slope = p[:, None] * (d @ A)  # of class 0's cross-entropy
    aside = x.flatten(1) + 0.2 * slope.sign() - 0.5
    torch.testing.assert_close(found, F.cosine_similarity(d @ A, aside @ A, dim=1))


def test_ligs_does_not_depend_on_the_batch():
    model, x, y = Quadratic(), points(), torch.arange(10) % 2
    whole = measure.ligs(model, x, y, seed=3)
    parts = [
        measure.ligs(model, x[i : i + 3], y[i : i + 3], seed=3, ids=range(i, min(i + 3, 10)))
        for i in range(0, 10, 3)
    ]
    torch.testing.assert_close(whole, torch.cat(parts), atol=1e-12, rtol=0)  # up to the rounding of a matmul


def test_a_gradient_of_zero_is_not_a_number_and_left_out_of_averages():
    flat = nn.Sequential(nn.Flatten(), nn.Linear(12, 2)).double()
    nn.init.zeros_(flat[1].weight)
    found = measure.ligs(flat, points(4), torch.zeros(4, dtype=torch.long))
    assert bool(found.isnan().all())
    merged = measure.Average.of(found) + measure.Average.of(torch.tensor([0.5, 1.0]))
    assert (merged.mean, merged.count, merged.left_out) == (0.75, 2, 4)


def test_an_unknown_probe_is_told():
    with pytest.raises(BadInput, match="probe must be one of"):
        measure.ligs(Quadratic(), points(2), torch.zeros(2, dtype=torch.long), probe="laplace")


def test_beta_and_loss_range_of_a_quadratic_loss_are_exact():
    # Logits (0, w'x) at w = 0 with labels balanced: along small steps the loss is quadratic with the Hessian
    # H = X'X / (4 n), so beta = ||H g|| / ||g|| in the limit of small eta.
    x = torch.randn(8, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = torch.arange(8) % 2

    class Logistic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.zeros(6, dtype=torch.float64))

        def forward(self, x):
            z = x @ self.w
            return torch.stack([torch.zeros_like(z), z], 1)

    found = measure.landscape(Logistic(), x, y, etas=(1e-6, 2e-6))
    g = (x * (0.5 - y.double())[:, None]).mean(0)
    hessian = x.T @ x / (4 * len(x))
    assert found.beta == pytest.approx(float((hessian @ g).norm() / g.norm()), rel=1e-4)
    assert found.losses[0] == pytest.approx(0.6931471805599453)
    slope = float(g @ g)
    assert found.loss_range[0] == pytest.approx(0.6931471805599453 - 2e-6 * slope, abs=1e-10)
    assert found.gradient_change == pytest.approx(2e-6 * float((hessian @ g).norm()), rel=1e-4)


def test_a_walk_that_leaves_all_bounds_is_not_a_number():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 4), nn.ReLU(), nn.Linear(4, 2))
    found = measure.landscape(model, points().float(), torch.arange(10) % 2, etas=(1, 1e38, 1))
    assert found.losses[2] != found.losses[2]
    for value in (found.gradient_change, found.beta, *found.loss_range):
        assert value != value


def test_labels_of_any_whole_numbers_are_taken():
    y = torch.arange(10) % 2
    assert measure.landscape(Quadratic(), points(), y.int()) == measure.landscape(Quadratic(), points(), y)


def test_the_landscape_leaves_the_model_alone():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 2)).double()
    before = copy.deepcopy(model.state_dict())
    measure.landscape(model, points(), torch.arange(10) % 2)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert type(model[1]) is nn.BatchNorm2d


def test_the_landscape_of_a_batch_norm_of_its_own_kind_is_that_of_its_running_statistics():
    class Own(nn.BatchNorm2d):
        def forward(self, x):
            return super().forward(x)

    torch.manual_seed(0)
    own = nn.Sequential(nn.Conv2d(3, 4, 1), Own(4), nn.Flatten(), nn.Linear(16, 2)).double()
    y = torch.arange(10) % 2
    found = measure.landscape(own, points(), y)
    assert found.losses[0] == pytest.approx(float(F.cross_entropy(own.eval()(points()), y).detach()))
    assert type(own[1]) is Own


def test_a_pure_wave_has_one_frequency():
    wave = torch.cos(2 * torch.pi * 5 * torch.arange(32) / 32).expand(2, 3, 32, 32)
    assert measure.spectrum(wave)[16].topk(2).indices.sort().values.tolist() == [16 - 5, 16 + 5]
    assert measure.high_frequency_fraction(wave) < 1e-9
    chequers = ((torch.arange(32)[:, None] + torch.arange(32)[None]) % 2).expand(2, 3, 32, 32) - 0.5
    assert measure.high_frequency_fraction(chequers) == pytest.approx(1.0)
    with pytest.warns(DeprecationWarning, match="high_frequency_fraction"):
        assert measure.high_share is measure.high_frequency_fraction


@pytest.fixture
def branched():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2)
    ).double()
    model(points(32))
    model = norm.add_branch(norm.steer(model.eval()), "adv")
    with norm.use(model, branch="adv", source="batch", update=1.0):
        model(points(32, seed=5) * 0.5)
    return model


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


def test_the_callback_reports_usefulness_and_robustness_after_an_epoch(branched):
    from types import SimpleNamespace

    from trimtab.attacks import FGSM, Linf
    from trimtab.data import Batch

    class Images:
        def batches(self, size):
            yield Batch(points(8), torch.arange(8) % 2, torch.arange(8))

    told = measure.usefulness(Images(), FGSM(Linf(0.05)))
    assert told(SimpleNamespace(kind="step", model=branched)) is None
    found = told(SimpleNamespace(kind="epoch", model=branched))
    assert found["robust usefulness"] <= found["usefulness"]
    assert -1 <= found["ligs"] <= 1


def test_one_layer_that_cannot_be_steered_leaves_the_others_on_batch_statistics():
    class Own(nn.BatchNorm2d):
        def forward(self, x):
            return super().forward(x)

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), Own(4), nn.Flatten(), nn.Linear(16, 2)
    ).double()  # fmt: skip
    x, y = points(), torch.arange(10) % 2
    wanted = copy.deepcopy(model).eval()
    wanted[1].train()
    found = measure.landscape(model, x, y).losses[0]
    assert found == pytest.approx(float(F.cross_entropy(wanted(x), y).detach()))


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


def test_a_picture_maps_stds_to_black_and_white_and_takes_the_old_argument_name():
    gradient = torch.tensor([-1.0, 0.0, 1.0]).view(1, 1, 1, 3)  # of std 1
    expected = torch.tensor([0.25, 0.5, 0.75]).view(1, 1, 1, 3)
    torch.testing.assert_close(measure.as_picture(gradient, stds=2), expected)
    with pytest.warns(DeprecationWarning, match="stds"):
        torch.testing.assert_close(measure.as_picture(gradient, deviations=2), expected)
