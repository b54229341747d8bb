"""Each knob, in float64, against stock layers and the formulas written out.

Also tests norm._kernels.groups, norm._kernels.moments, norm._kernels.parts, norm.layer, norm.moments,
norm.setting.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nets import images, season, small
from reference.batch_norm import moments, normalize
from trimtab import norm

C = 5
SHAPES = {
    "vectors": (nn.BatchNorm1d, (8, C)),
    "sequences": (nn.BatchNorm1d, (8, C, 7)),
    "images": (nn.BatchNorm2d, (8, C, 4, 3)),
    "volumes": (nn.BatchNorm3d, (8, C, 2, 3, 2)),
}


@pytest.fixture(params=[*SHAPES, "channels-last images"])
def case(request: pytest.FixtureRequest) -> tuple[nn.Module, Tensor]:
    """A stock layer with trained-looking values, in train(), and a batch for it."""
    kind, shape = SHAPES[request.param.removeprefix("channels-last ")]
    x = images(*shape)
    if request.param.startswith("channels-last"):
        x = x.contiguous(memory_format=torch.channels_last)
    return season(kind(C).double()), x


@pytest.fixture
def layer() -> nn.Module:
    return season(nn.BatchNorm2d(C).double())


@pytest.fixture
def x() -> Tensor:
    return images(8, C, 4, 3)


def steered(stock: nn.Module, *branches: str, **halves: bool) -> norm.Steered:
    layer: Any = norm.steer(copy.deepcopy(stock))
    for name in branches:
        norm.add_branch(layer, name, **halves)
        season_branch(layer, name)
    return layer


def season_branch(layer: norm.Steered, name: str) -> None:
    own = layer.holder(name)
    for value in [*own.parameters(), *own.buffers()]:
        if value.is_floating_point():
            value.data.mul_(1.3).add_(0.2)


def vector(seed: int, scale: float = 0.3) -> Tensor:
    return scale * torch.randn(C, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gradients(f: Callable[[Tensor], Tensor], x: Tensor, wrt: Sequence[Tensor]) -> list[Tensor]:
    """The output and the gradients of a nonlinear functional of it, with respect to x and others."""
    x = x.detach().requires_grad_()
    y = f(x)
    weights = images(*y.shape, seed=9)
    return [y, *torch.autograd.grad((weights * y + y**3 / 3).sum(), [x, *wrt])]


def close(got: Sequence[Tensor], wanted: Sequence[Tensor], tolerance: float = 1e-10) -> bool:
    return all(torch.allclose(a, b, rtol=tolerance, atol=tolerance) for a, b in zip(got, wanted, strict=True))


def statistics(holder: Any) -> list[Tensor]:
    return [holder.running_mean, holder.running_var, holder.num_batches_tracked.double()]


# ---- groups ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_groups_equal_the_concatenation_of_separate_passes(case: Any, groups: int) -> None:
    stock, x = case
    layer = steered(stock)
    with norm.use(layer, groups=groups):
        got = gradients(layer, x, list(layer.parameters()))
    apart = copy.deepcopy(stock)
    wanted = gradients(
        lambda x: torch.cat([apart(part) for part in x.chunk(groups)]), x, list(apart.parameters())
    )
    assert close(got, wanted)


@pytest.mark.parametrize("momentum", [0.1, None], ids=["momentum", "cumulative"])
def test_a_grouped_pass_learns_what_an_ungrouped_one_does(case: Any, momentum: float | None) -> None:
    stock, x = case
    stock.momentum = momentum
    layer = steered(stock)
    for scale in (1.0, 2.0):
        with norm.use(layer, groups=4):
            layer(scale * x)
        stock(scale * x)
    assert close(statistics(layer), statistics(stock))


# ---- branches -------------------------------------------------------------------------------------------


def test_routed_branches_equal_separate_passes(case: Any) -> None:
    stock, x = case
    layer = steered(stock, "adv")
    apart = {"main": norm.release(copy.deepcopy(layer)), "adv": norm.release(copy.deepcopy(layer), "adv")}
    with norm.use(layer, branch=[("adv", 3), ("main", 5)]):
        got = gradients(layer, x, list(layer.parameters()))
    wanted = gradients(
        lambda x: torch.cat([apart["adv"](x[:3]), apart["main"](x[3:])]),
        x,
        [*apart["main"].parameters(), *apart["adv"].parameters()],
    )
    assert close(got, wanted)
    for name, alone in apart.items():
        assert close(statistics(layer.holder(name)), statistics(alone))


def test_a_branch_by_name_takes_the_whole_batch(layer: nn.Module, x: Tensor) -> None:
    model = steered(layer, "adv")
    before = copy.deepcopy(model)
    adv = norm.release(copy.deepcopy(model), "adv")
    with norm.use(model, branch="adv"):
        got = model(x)
    assert close([got], [adv(x)])
    assert close(statistics(model.holder("adv")), statistics(adv))
    assert close(statistics(model), statistics(before), tolerance=0)


def test_groups_lie_within_each_routed_part(layer: nn.Module, x: Tensor) -> None:
    model = steered(layer, "adv")
    main, adv = norm.release(copy.deepcopy(model)), norm.release(copy.deepcopy(model), "adv")
    with norm.use(model, branch=[("main", 2), ("adv", 6)], groups=2):
        got = model(x)
    wanted = [main(x[:1]), main(x[1:2]), adv(x[2:5]), adv(x[5:])]
    assert close([got], [torch.cat(wanted)])


def test_branches_of_their_own_gain_share_the_statistics_of_the_whole_batch(case: Any) -> None:
    stock, x = case
    layer = steered(stock, "adv", statistics=False)
    adv = layer.holder("adv")
    with norm.use(layer, branch=[("main", 5), ("adv", 3)]):
        got = gradients(layer, x, list(layer.parameters()))

    def formula(x: Tensor) -> Tensor:
        mean, var = moments(x)
        parts = ((x[:5], layer.weight, layer.bias), (x[5:], adv.weight, adv.bias))
        return torch.cat([normalize(part, mean, var, gamma, beta) for part, gamma, beta in parts])

    assert close(got, gradients(formula, x, list(layer.parameters())))
    stock(x)
    assert close(statistics(layer), statistics(stock))


def test_branches_of_their_own_statistics_share_the_gain(case: Any) -> None:
    stock, x = case
    layer = steered(stock, "adv", affine=False)
    apart = {"main": norm.release(copy.deepcopy(layer)), "adv": norm.release(copy.deepcopy(layer), "adv")}
    with norm.use(layer, branch=[("main", 5), ("adv", 3)]):
        got = gradients(layer, x, list(layer.parameters()))
    parameters = list(apart["main"].parameters())
    for mine, shared in zip(("weight", "bias"), parameters, strict=True):
        setattr(apart["adv"], mine, shared)
    wanted = gradients(lambda x: torch.cat([apart["main"](x[:5]), apart["adv"](x[5:])]), x, parameters)
    assert close(got, wanted)
    for name, alone in apart.items():
        assert close(statistics(layer.statistics_holder(name)), statistics(alone))


def test_a_layer_that_never_got_a_branch_stays_on_main(x: Tensor) -> None:
    model = nn.Sequential(season(nn.BatchNorm2d(C).double(), 1), season(nn.BatchNorm2d(C).double(), 2))
    norm.add_branch(norm.steer(model)[1], "adv")
    with norm.use(model, branch="adv"):
        model(x)
    assert model[0].num_batches_tracked == 1
    assert model[1].num_batches_tracked == 0


# ---- source ---------------------------------------------------------------------------------------------


def test_the_source_overrides_the_mode(case: Any) -> None:
    stock, x = case
    layer = steered(stock)
    for source, training in (("running", False), ("batch", True)):
        stock.train(training)
        layer.train(not training)
        with norm.use(layer, source=source, update=False):
            got = gradients(layer, x, list(layer.parameters()))
        assert close(got, gradients(stock, x, list(stock.parameters())))


MIXTURES = {
    "std": lambda rho, mean, var, at, v: (
        (rho * (var + 1e-5).sqrt() + (1 - rho) * (v + 1e-5).sqrt()) ** 2 - 1e-5
    ),
    "var": lambda rho, mean, var, at, v: rho * var + (1 - rho) * v,
    "pooled": lambda rho, mean, var, at, v: (
        rho * (var + mean**2) + (1 - rho) * (v + at**2) - (rho * mean + (1 - rho) * at) ** 2
    ),
}


@pytest.mark.parametrize("of", MIXTURES)
@pytest.mark.parametrize("rho", [0.0, 0.3, 1.0])
def test_a_blend_mixes_the_batch_into_the_running_statistics(case: Any, of: str, rho: float) -> None:
    stock, x = case
    layer = steered(stock)
    with norm.use(layer, source="blend", rho=rho, blend_of=of, update=False):
        got = gradients(layer, x, list(layer.parameters()))

    def formula(x: Tensor) -> Tensor:
        mean, var = moments(x)
        mixed = MIXTURES[of](rho, mean, var, stock.running_mean, stock.running_var)
        middle = rho * mean + (1 - rho) * stock.running_mean
        return normalize(x, middle, mixed, stock.weight, stock.bias)

    assert close(got, gradients(formula, x, list(stock.parameters())))


def test_the_deviation_is_blended_unless_told_otherwise(layer: nn.Module, x: Tensor) -> None:
    model = steered(layer)
    with norm.use(model, source="blend", rho=0.3, update=False):
        default = model(x)
    with norm.use(model, source="blend", rho=0.3, blend_of="std", update=False):
        assert torch.equal(default, model(x))


def test_groups_are_blended_one_by_one(layer: nn.Module, x: Tensor) -> None:
    model = steered(layer)
    with norm.use(model, source="blend", rho=0.3, update=False):
        apart = torch.cat([model(part) for part in x.chunk(4)])
        with norm.use(model, groups=4):
            assert close([model(x)], [apart])


def test_an_estimator_of_ones_own_takes_the_moments(layer: nn.Module, x: Tensor) -> None:
    def doubled(part: Tensor) -> norm.Moments:
        mean, var = moments(part)
        return norm.Moments(2 * mean, 2 * var, part.numel() // C)

    model = steered(layer)
    with norm.use(model, estimator=doubled, groups=2, update=False):
        got = gradients(model, x, list(model.parameters()))

    def formula(x: Tensor) -> Tensor:
        halves = [(part, *moments(part)) for part in x.chunk(2)]
        return torch.cat([normalize(p, 2 * m, 2 * v, layer.weight, layer.bias) for p, m, v in halves])

    assert close(got, gradients(formula, x, list(layer.parameters())))


# ---- update ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("update", [True, False, 0.25, 1.0, "average"])
@pytest.mark.parametrize("source", ["batch", "running", "blend"])
def test_update_learns_as_a_stock_layer_of_that_momentum(
    layer: nn.Module, x: Tensor, update: Any, source: str
) -> None:
    model = steered(layer).eval()
    layer.train(update is not False)
    if update is not True and update is not False:
        layer.momentum = None if update == "average" else update
    for scale in (1.0, 3.0):
        with norm.use(model, source=source, rho=0.5 if source == "blend" else None, update=update):
            model(scale * x)
        layer(scale * x)
    assert close(statistics(model), statistics(layer))


def test_running_statistics_are_read_before_they_are_written(layer: nn.Module, x: Tensor) -> None:
    model = steered(layer)
    learns = copy.deepcopy(layer).train()
    layer.eval()
    for scale in (1.0, 3.0):
        with norm.use(model, source="running", update=True):
            got = gradients(model, scale * x, list(model.parameters()))
        assert close(got, gradients(layer, scale * x, list(layer.parameters())))
        learns(scale * x)
        layer.load_state_dict(learns.state_dict())


def test_a_pass_that_learns_does_not_disturb_an_earlier_one(layer: nn.Module, x: Tensor) -> None:
    model = steered(layer)
    x.requires_grad_()
    with norm.use(model, source="running", update=False):
        early = model(x)
    model(x)
    got = torch.autograd.grad(early.pow(2).sum(), x)
    wanted = torch.autograd.grad(layer.eval()(x).pow(2).sum(), x)
    assert close(got, wanted)


def test_a_layer_that_tracks_nothing_normalizes_by_the_batch(x: Tensor) -> None:
    stock = nn.BatchNorm2d(C, track_running_stats=False).double().eval()
    layer = steered(stock)
    with norm.use(layer, groups=2):
        assert close([layer(x)], [torch.cat([stock(x[:4]), stock(x[4:])])])


def test_a_layer_told_to_stop_tracking_behaves_as_stock_does(layer: nn.Module, x: Tensor) -> None:
    layer.track_running_stats = False
    model = steered(layer)
    for training in (True, False):
        with norm.use(model, branch="main"):
            assert close([model.train(training)(x)], [layer.train(training)(x)])
    assert close(statistics(model), statistics(layer), tolerance=0)


# ---- shift ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("source", ["batch", "running", "blend"])
def test_a_shift_perturbs_mean_and_deviation(case: Any, source: str, groups: int) -> None:
    stock, x = case
    layer = steered(stock)
    d_mu, d_sigma = vector(1).requires_grad_(), vector(2).requires_grad_()
    shift = {"": norm.Shift(d_mu, d_sigma)}
    rho = {"batch": 1.0, "running": 0.0, "blend": 0.4}[source]
    with norm.use(layer, source=source, rho=rho, blend_of="var", update=False, groups=groups, shift=shift):
        got = gradients(layer, x, [*layer.parameters(), d_mu, d_sigma])

    def formula(x: Tensor) -> Tensor:
        ys = []
        for part in x.chunk(groups):
            mean, var = moments(part)
            mean = rho * mean + (1 - rho) * stock.running_mean
            var = rho * var + (1 - rho) * stock.running_var
            ys.append(normalize(part, mean, var, stock.weight, stock.bias, d_mu=d_mu, d_sigma=d_sigma))
        return torch.cat(ys)

    assert close(got, gradients(formula, x, [*stock.parameters(), d_mu, d_sigma]))


def test_a_shift_may_take_the_statistics_it_multiplies_as_constants(layer: nn.Module, x: Tensor) -> None:
    """APART's code: y = (1 + d_sigma) (xhat - d_mu mu / sigma), the second term without a gradient to x."""
    model = steered(layer)
    d_mu, d_sigma = vector(1), vector(2)
    with norm.use(model, shift={"": norm.Shift(d_mu, d_sigma, through=False)}, groups=2, update=False):
        got = gradients(model, x, list(model.parameters()))

    def formula(x: Tensor) -> Tensor:
        ys = []
        for part in x.chunk(2):
            mean, var = moments(part)
            ratio = (mean / (var + 1e-5).sqrt()).detach()
            plain = normalize(part, mean, var, torch.ones(C), torch.zeros(C))
            moved = (1 + d_sigma).view(-1, 1, 1) * (plain - (d_mu * ratio).view(-1, 1, 1))
            ys.append(layer.weight.view(-1, 1, 1) * moved + layer.bias.view(-1, 1, 1))
        return torch.cat(ys)

    assert close(got, gradients(formula, x, list(layer.parameters())))


def test_a_shift_of_one_half_leaves_the_other_alone(layer: nn.Module, x: Tensor) -> None:
    model = steered(layer)
    zero, delta = torch.zeros(C, dtype=torch.float64), vector(1)
    for half, whole in (
        (norm.Shift(mu=delta), norm.Shift(delta, zero)),
        (norm.Shift(sigma=delta), norm.Shift(zero, delta)),
    ):
        with norm.use(model, shift={"": half}):
            got = model(x)
        with norm.use(model, shift={"": whole}):
            assert close([got], [model(x)])


def test_a_shift_is_shared_by_the_parts_of_a_route(layer: nn.Module, x: Tensor) -> None:
    model = steered(layer, "adv")
    shift = {"": norm.Shift(vector(1), vector(2))}
    with norm.use(model, shift=shift, update=False):
        with norm.use(model, branch="main"):
            main = model(x[:6])
        with norm.use(model, branch="adv"):
            adv = model(x[6:])
        with norm.use(model, branch=[("main", 6), ("adv", 2)]):
            assert close([model(x)], [torch.cat([main, adv])])


def test_shift_gradients_from_the_affine_ones_equal_those_of_an_explicit_zero_shift() -> None:
    model, x = norm.steer(small()), images(6, 2, 5, 5)
    y = torch.tensor([0, 1, 2, 0, 1, 2])
    zero = norm.zero_shifts(model, requires_grad=True)
    wrt = [delta for shift in zero.values() for delta in (shift.mu, shift.sigma)]
    with norm.use(model, shift=zero, update=False):
        wanted = torch.autograd.grad(nn.functional.cross_entropy(model(x), y), wrt)

    affine = norm.affine_parameters(model)
    with norm.use(model, update=False), norm.observe(model) as seen:
        found = torch.autograd.grad(nn.functional.cross_entropy(model(x), y), affine)
    by_name = norm.shift_gradients(model, seen, dict(zip(affine, found, strict=True)))
    got = [delta for name in zero for delta in (by_name[name].mu, by_name[name].sigma)]
    assert close(got, wanted)


# ---- derivatives of the whole ---------------------------------------------------------------------------

COMBINED: dict[str, dict[str, Any]] = {
    "groups": {"groups": 2},
    "route": {"branch": [("adv", 4), ("main", 2)], "groups": 2},
    "route, affine shared": {"branch": [("adv", 4), ("main", 2)], "halves": {"affine": False}},
    "route, statistics shared": {"branch": [("adv", 4), ("main", 2)], "halves": {"statistics": False}},
    "route, blend, affine shared": {
        "branch": [("adv", 4), ("main", 2)],
        "source": "blend",
        "rho": 0.4,
        "halves": {"affine": False},
    },
    "shift of a route": {"branch": [("adv", 4), ("main", 2)], "shifted": True, "halves": {"affine": False}},
    "blend": {"source": "blend", "rho": 0.4},
    "blend of variances in groups": {"source": "blend", "rho": 0.4, "blend_of": "var", "groups": 2},
    "shift": {"groups": 2, "shifted": True},
    "shift of running statistics": {"source": "running", "shifted": True},
}


@pytest.mark.parametrize("order", ["first", "second"])
@pytest.mark.parametrize("name", COMBINED)
def test_derivatives_equal_finite_differences(name: str, order: str) -> None:
    knobs = dict(COMBINED[name])
    layer = steered(season(nn.BatchNorm2d(2).double()), "adv", **knobs.pop("halves", {}))
    x = images(6, 2, 1, 2).requires_grad_()
    d_mu = torch.tensor([0.2, -0.1], dtype=torch.float64, requires_grad=True)
    d_sigma = torch.tensor([-0.3, 0.1], dtype=torch.float64, requires_grad=True)
    if knobs.pop("shifted", False):
        knobs["shift"] = {"": norm.Shift(d_mu, d_sigma)}

    def f(x: Tensor, *_: Tensor) -> Tensor:
        with norm.use(layer, update=False, **knobs):
            return layer(x)

    inputs = (x, *layer.parameters(), d_mu, d_sigma)
    check = torch.autograd.gradcheck if order == "first" else partial(torch.autograd.gradgradcheck, atol=1e-4)
    with norm.use(layer, update=False, **knobs):
        assert check(f, inputs)


@pytest.mark.parametrize("halves", [{"affine": False}, {"statistics": False}, {}], ids=str)
def test_parameter_gradients_are_the_same_when_they_are_to_be_differentiated(halves: dict[str, bool]) -> None:
    layer = steered(season(nn.BatchNorm2d(C).double()), "adv", **halves)
    x, wrt = images(8, C, 4, 3), list(layer.parameters())
    with norm.use(layer, branch=[("adv", 6), ("main", 2)], update=False):
        loss = (layer(x) ** 3).sum()
        once = torch.autograd.grad(loss, wrt, retain_graph=True)
        again = torch.autograd.grad(loss, wrt, create_graph=True)
    assert close([g.detach() for g in again], once)


def test_a_small_shift_is_not_lost_in_a_narrow_network() -> None:
    layer = norm.steer(season(nn.BatchNorm2d(C))).bfloat16()
    tiny = torch.full((C,), 1e-3)
    x = images(64, C, 4, 3).to(torch.bfloat16)
    with norm.use(layer, shift={"": norm.Shift(sigma=tiny)}, update=False, groups=1):
        shifted = layer(x).detach().double()
    exact = copy.deepcopy(layer).double().train()
    with norm.use(exact, update=False):
        plain = exact(x.double()).detach()
    beta = exact.bias.detach().view(1, -1, 1, 1)
    slope = ((shifted - beta) * (plain - beta)).sum() / ((plain - beta) ** 2).sum()  # rounding averages out
    assert float(slope) == pytest.approx(1.001, abs=2e-4)


def test_only_what_needs_a_gradient_gets_one(layer: nn.Module, x: Tensor) -> None:
    model = steered(layer)
    with norm.use(model, groups=2, update=False):
        wanted = gradients(model, x, list(model.parameters()))
        model.requires_grad_(False)
        frozen = gradients(model, x, [])
        model.weight.requires_grad_(True)
        y = model(x)
        (only,) = torch.autograd.grad((images(*y.shape, seed=9) * y + y**3 / 3).sum(), [model.weight])
        with torch.no_grad():
            still = model(x)
    assert close([*frozen, only], wanted[:3])
    assert close([still], wanted[:1])
    assert not still.requires_grad


# ---- what else a pass tells ------------------------------------------------------------------------------


@pytest.mark.parametrize("knobs", [{}, {"groups": 4}, {"branch": [("adv", 3), ("main", 5)]}], ids=str)
@pytest.mark.parametrize("source", ["batch", "running", "blend"])
def test_observe_tells_the_moments_of_the_whole_batch(
    layer: nn.Module, x: Tensor, source: str, knobs: dict[str, Any]
) -> None:
    model = steered(layer, "adv")
    rho = 0.5 if source == "blend" else None
    with norm.use(model, source=source, rho=rho, **knobs), norm.observe(model) as seen:
        model(x)
    assert close([seen[""].mean, seen[""].var], moments(x))
    assert seen[""].n == x.numel() // C


@pytest.mark.parametrize("knobs", [{}, {"groups": 2}, {"source": "blend", "rho": 0.3}], ids=str)
def test_moments_are_wide_and_the_output_is_as_narrow_as_the_input(knobs: dict[str, Any]) -> None:
    """An offset that bfloat16 cannot sum without losing it."""
    wide = images(64, C, 6, 6) + 30
    x = wide.bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        layer = norm.steer(season(nn.BatchNorm2d(C)))
        exact = steered(norm.release(copy.deepcopy(layer)).double())
        with norm.use(layer, **knobs), norm.observe(layer) as seen:
            y = layer(x)
    with norm.use(exact, **knobs):
        wanted = exact(x.double())
    assert y.dtype == torch.bfloat16
    assert seen[""].mean.dtype == torch.float32
    assert torch.allclose(seen[""].mean.double(), moments(x.double())[0], rtol=1e-6)
    assert torch.allclose(y.double(), wanted, rtol=2**-8, atol=1e-3)  # the output's own rounding


def test_a_model_in_half_precision_is_steered_too(x: Tensor) -> None:
    layer = norm.steer(season(nn.BatchNorm2d(C)).bfloat16())
    for knobs in ({"groups": 2}, {"update": 0.5}, {"source": "blend", "rho": 0.3}, {"shift": None}):
        with norm.use(layer, **knobs), norm.observe(layer):
            assert layer(x.bfloat16()).dtype == torch.bfloat16


# ---- perturb --------------------------------------------------------------------------------------------


def test_perturb_moves_mean_and_deviation_of_each_channel(x: Tensor) -> None:
    d_mu, d_sigma = vector(1, 1.0), vector(2, 1.0)
    z = norm.perturb(x, d_mu, d_sigma)
    (mean, var), (moved, stretched) = moments(x), moments(z)
    assert close([moved, stretched], [(1 + d_mu) * mean, (1 + d_sigma) ** 2 * var])
    flat = (z - x).transpose(0, 1).flatten(1)
    line = d_sigma[:, None] * (x.transpose(0, 1).flatten(1) - mean[:, None]) + (d_mu * mean)[:, None]
    assert close([flat], [line])
