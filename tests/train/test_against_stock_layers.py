"""Every objective against mathematics written with stock layers, in float64."""

from __future__ import annotations

import copy
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trimtab import norm, rng, train
from trimtab.attacks import PGD, Linf
from trimtab.attacks.feature import ascend, perturbed
from trimtab.types import BadInput

N, CLASSES = 12, 5


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    made = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU(),
        nn.Conv2d(6, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, CLASSES),
    ).double()  # fmt: skip
    for layer in made:
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.weight, 0.5, 1.5)
            nn.init.normal_(layer.bias, std=0.3)
            nn.init.normal_(layer.running_mean, std=0.3)
            nn.init.uniform_(layer.running_var, 0.5, 2)
    return made


def batch(seed: int = 1, n: int = N) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 3, 8, 8, generator=g, dtype=torch.float64)
    return x, torch.randint(CLASSES, (n,), generator=g)


def grads(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def buffers(model: nn.Module) -> dict[str, Tensor]:
    return {name: b.clone() for name, b in model.named_buffers()}


def assert_equal(found: dict[str, Tensor], wanted: dict[str, Tensor], tolerance: float = 1e-10) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=tolerance, msg=name)


# ---- Algorithm 1 of the APART paper, with stock layers and a functional forward pass -----------------


def shifted_forward(
    model: nn.Sequential, x: Tensor, theta: dict[int, list[Tensor]], stop: bool = False
) -> Tensor:
    """The network of `net`, where layer i computes Eq. 3 with theta[i] = [d_mu, d_sigma]."""
    for i, layer in enumerate(model):
        if not isinstance(layer, nn.BatchNorm2d):
            x = layer(x)
            continue
        mu = x.mean((0, 2, 3), keepdim=True)
        sigma = (x.var((0, 2, 3), unbiased=False, keepdim=True) + layer.eps).sqrt()
        d_mu, d_sigma = (d.view(1, -1, 1, 1) for d in theta[i])
        ratio = mu / sigma
        xhat = (x - mu) / sigma - d_mu * (ratio.detach() if stop else ratio)
        x = layer.weight.view(1, -1, 1, 1) * (1 + d_sigma) * xhat + layer.bias.view(1, -1, 1, 1)
    return x


def algorithm_1(
    model: nn.Sequential,
    x: Tensor,
    y: Tensor,
    eps: float,
    chosen: Tensor,
    groups: int,
    rho: float = 0.0,
    stop: bool = False,
) -> dict[str, Tensor]:
    """g = M/(M+N) g_phi + N/(M+N) h_phi; with rho, h_phi at the weights that SAM would move to."""
    phi = dict(model.named_parameters())
    theta = {
        i: [torch.zeros_like(layer.weight, requires_grad=True) for _ in range(2)]
        for i, layer in enumerate(model) if isinstance(layer, nn.BatchNorm2d)
    }  # fmt: skip
    flat = [d for pair in theta.values() for d in pair]
    loss = F.cross_entropy(shifted_forward(model, x, theta, stop), y)
    found = torch.autograd.grad(loss, [*phi.values(), *flat])
    g_phi, g_theta = found[: len(phi)], found[len(phi) :]
    corners = iter([eps * g.sign() for g in g_theta])
    theta = {i: [next(corners), next(corners)] for i in theta}

    attacked = copy.deepcopy(model)
    size = torch.cat([g.flatten() for g in g_phi]).norm()
    with torch.no_grad():
        for p, g in zip(attacked.parameters(), g_phi, strict=True):
            p.add_(rho * g / size)
    h_phi = [torch.zeros_like(p) for p in phi.values()]
    for part in chosen.chunk(groups):
        defence = F.cross_entropy(shifted_forward(attacked, x[part], theta, stop), y[part])
        for h, g in zip(h_phi, torch.autograd.grad(defence, list(attacked.parameters())), strict=True):
            h.add_(g / groups)
    m, n = len(x), len(chosen)
    return {name: m / (m + n) * g + n / (m + n) * h for name, g, h in zip(phi, g_phi, h_phi, strict=True)}


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("samples", [None, 6])
@pytest.mark.parametrize("rho", [None, 0.2])
@pytest.mark.parametrize("stop", [False, True])
def test_aparts_gradient_is_that_of_algorithm_1(
    groups: int, samples: int | None, rho: float | None, stop: bool
) -> None:
    x, y = batch()
    model, plain = net().train(), net().train()
    chosen = torch.arange(N) if samples is None else rng.permutation(N, 7, 12)[:samples]
    wanted = algorithm_1(plain, x, y, 0.1, chosen, groups, rho or 0.0, stop)
    train.APART(eps=0.1, groups=groups, samples=samples, sam_rho=rho, stop_gradient=stop)(model, x, y, seed=7)
    assert_equal(grads(model), wanted, 1e-8)


def test_aparts_running_statistics_come_from_the_first_pass_only() -> None:
    x, y = batch()
    model, plain = net().train(), net().train()
    plain(x)
    train.APART(eps=0.1, groups=3, sam_rho=0.1)(model, x, y)
    assert_equal(buffers(model), buffers(plain), 1e-12)


def test_aparts_shift_never_sees_an_earlier_gradient() -> None:
    x, y = batch()
    fresh, used = net().train(), net().train()
    objective = train.APART(eps=0.1, sam_rho=0.1)
    objective(fresh, x, y)
    for p in used.parameters():
        p.grad = torch.randn_like(p) * 100
    before = grads(used)
    objective(used, x, y)
    added = {name: grad - before[name] for name, grad in grads(used).items()}
    assert_equal(added, grads(fresh), 1e-10)


def test_apart_without_radius_or_groups_is_standard_training() -> None:
    x, y = batch()
    apart, standard = net().train(), net().train()
    train.APART(eps=0.0)(apart, x, y)
    train.Standard()(standard, x, y)
    assert_equal(grads(apart), grads(standard))


def test_aparts_random_control_moves_statistics_but_not_by_the_gradient() -> None:
    x, y = batch()
    losses = []
    for attack in ("sign", "random"):
        model = net().train()
        losses.append(train.APART(eps=0.05, attack=attack)(model, x, y)["defended_loss"])
    rest = train.Standard()(net().train(), x, y)["loss"]
    assert losses[0] > rest  # a small step along the sign of the gradient climbs
    assert losses[0] > losses[1] != rest


# ---- SAM ---------------------------------------------------------------------------------------------


def test_sams_gradient_is_the_one_at_the_top_of_the_ball() -> None:
    x, y = batch()
    model, plain = net().train(), net().train()
    F.cross_entropy(plain(x), y).backward()
    g = grads(plain)
    size = torch.cat([v.flatten() for v in g.values()]).norm()
    with torch.no_grad():
        for name, p in plain.named_parameters():
            p.add_(0.1 * g[name] / size)
    plain.zero_grad()
    F.cross_entropy(plain(x), y).backward()
    train.SAM(rho=0.1)(model, x, y)
    assert_equal(grads(model), grads(plain), 1e-10)


@pytest.mark.parametrize("objective", [train.SAM(rho=2.0), train.APART(sam_rho=2.0)])
def test_sam_moves_weights_in_narrow_formats_too(objective: train.Objective) -> None:
    """Autocast caches narrow weights; a second pass that reuses them would not see the move."""
    x, y = batch()
    wide, narrow = (objective.prepare(net().float()).train() for _ in range(2))
    full = objective(wide, x.float(), y)["defended_loss"]
    with torch.autocast("cpu", torch.bfloat16):
        rough = objective(narrow, x.float(), y)
        torch.testing.assert_close(rough["defended_loss"], full, rtol=0.05, atol=0)
        torch.testing.assert_close(objective(narrow, x.float(), y)["loss"], rough["loss"])
    assert float(full) > 1.2 * float(rough["loss"])


def test_sam_leaves_weights_bit_for_bit_and_running_statistics_as_a_plain_step() -> None:
    x, y = batch()
    model, plain = net().train(), net().train()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    train.SAM(rho=0.1)(model, x, y)
    F.cross_entropy(plain(x), y).backward()
    for name, p in model.named_parameters():
        assert torch.equal(p, before[name])
    assert_equal(buffers(model), buffers(plain), 0.0)


def test_sam_of_radius_zero_is_its_inner_objective() -> None:
    x, y = batch()
    inner = train.Adversarial(PGD(Linf("8/255"), steps=2))
    sam, plain = net().train(), net().train()
    train.SAM(rho=0.0, inner=inner)(sam, x, y, seed=0)
    inner(plain, x, y, seed=0)
    assert_equal(grads(sam), grads(plain))


# ---- adversarial images ------------------------------------------------------------------------------


@pytest.mark.parametrize("clean", [0.0, 0.25, 1.0])
def test_the_adversarial_loss_is_the_mean_over_all_images(clean: float) -> None:
    x, y = batch()
    attack = PGD(Linf("8/255"), steps=3)
    model, plain = net().train(), net().train()
    x_adv = attack(plain, x, y, seed=5)
    k = round(clean * N)
    kept = torch.arange(N)[N // k - 1 :: N // k] if k else torch.arange(0)
    F.cross_entropy(plain(torch.cat([x[kept], x_adv])), torch.cat([y[kept], y])).backward()
    train.Adversarial(attack, clean=clean)(model, x, y, seed=5)
    assert_equal(grads(model), grads(plain))
    assert_equal(buffers(model), buffers(plain))


def test_alpha_weighs_clean_against_adversarial() -> None:
    x, y = batch()
    parts = train.Adversarial(PGD(steps=1), clean=0.5, alpha=0.9)(net().train(), x, y)
    torch.testing.assert_close(parts["loss"], 0.9 * parts["clean"] + 0.1 * parts["adv"])


def test_pairing_without_a_pair_is_left_out() -> None:
    x, y = batch(n=8)
    parts = train.Adversarial(PGD(Linf("8/255"), steps=1), clean=0.1, alp=0.5)(net().train(), x, y)
    assert "alp" not in parts
    assert torch.isfinite(parts["loss"])


def identity(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return x.clone()


@pytest.mark.parametrize("kind", [train.Adversarial, train.Mixture])
def test_pairing_is_zero_for_equal_logits_and_not_otherwise(kind: type) -> None:
    x, y = batch()
    extra = {"clean": 1.0} if kind is train.Adversarial else {}
    equal = kind(identity, alp=1.0, **extra)
    assert equal(equal.prepare(net()).train(), x, y)["alp"] == 0
    differ = kind(PGD(Linf("16/255"), steps=1), alp=1.0, **extra)
    assert differ(differ.prepare(net()).train(), x, y)["alp"] > 0


# ---- branches ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("alp", [0.0, 0.5])
def test_mixture_equals_two_separate_passes(alp: float) -> None:
    x, y = batch()
    attack = PGD(Linf("8/255"), steps=2)
    objective = train.Mixture(attack, alp=alp)
    model = objective.prepare(net()).train()
    main, adv = net().train(), net().train()  # the branch starts as a copy, so the attack sees this network
    x_adv = attack(adv, x, y, seed=3)
    z_clean, z_adv = main(x), adv(x_adv)
    loss = 0.5 * F.cross_entropy(z_clean, y) + 0.5 * F.cross_entropy(z_adv, y)
    (loss + alp * F.mse_loss(z_clean, z_adv)).backward()
    objective(model, x, y, seed=3)

    found = grads(model)
    for name, p in main.named_parameters():
        branch = f"{name.split('.')[0]}.branches.adv.{name.split('.')[1]}"
        if branch in found:  # a norm layer: each branch learns from its own half
            torch.testing.assert_close(found[name], p.grad)
            torch.testing.assert_close(found[branch], adv.get_parameter(name).grad)
        else:
            torch.testing.assert_close(found[name], p.grad + adv.get_parameter(name).grad)
    seen = buffers(model)
    for name, b in main.named_buffers():
        torch.testing.assert_close(seen[name], b)
        layer, _, half = name.partition(".")
        torch.testing.assert_close(seen[f"{layer}.branches.adv.{half}"], adv.get_buffer(name))


@pytest.mark.parametrize("separate", ["affine", "statistics"])
def test_a_branch_has_only_the_half_of_its_own(separate: str) -> None:
    model = train.Mixture(separate=separate).prepare(net())
    halves = {name.split(".")[-1] for name in model.state_dict() if ".branches." in name}
    own = {"affine": {"weight", "bias"}, "statistics": {"running_mean", "running_var", "num_batches_tracked"}}
    assert halves == own[separate]


@pytest.mark.parametrize("objective", [train.Mixture(), train.AdvBN(cut="2")])
def test_a_model_that_was_not_prepared_is_refused_with_advice(objective: train.Objective) -> None:
    x, y = batch()
    with pytest.raises(BadInput, match="prepare"):
        objective(net().train(), x, y)


# ---- AdvBN -------------------------------------------------------------------------------------------


def monotone() -> tuple[nn.Module, Tensor, Tensor]:
    """A tail whose loss is monotone in each multiplier: one linear score decides between two classes.

    The feature has two positions, a low and a high one, so mean and deviation act separately:
    the tail's logit for the true class is a . mean + b . (high - low).
    """

    class Tail(nn.Module):
        def forward(self, z: Tensor) -> Tensor:  # (N, C, 2)
            a, b = torch.tensor([1.0, -2.0, 0.5]).double(), torch.tensor([0.7, 0.4, -1.0]).double()
            score = z.mean(2) @ a + (z[:, :, 1] - z[:, :, 0]) @ b
            return torch.stack([score, torch.zeros_like(score)], 1)

    z = torch.tensor([[1.0, 3.0], [2.0, 5.0], [1.5, 2.0]]).double().expand(4, 3, 2)
    return Tail(), z, torch.zeros(4, dtype=torch.long)


def test_the_ascent_climbs_with_every_step_and_ends_in_the_worst_corner() -> None:
    tail, z, y = monotone()

    def loss(d_mu: Tensor, d_sigma: Tensor) -> float:
        return float(F.cross_entropy(tail(perturbed(z, d_mu, d_sigma, rectify=False)), y))

    path = [loss(*ascend(tail, z, y, eps=0.9, steps=steps, step=0.2, rectify=False)) for steps in range(7)]
    assert all(later > earlier for earlier, later in pairwise(path[:6]))
    corners = torch.cartesian_prod(*[torch.tensor([-0.9, 0.9], dtype=torch.float64)] * 6)
    worst = max(corners, key=lambda corner: loss(corner[:3], corner[3:]))
    d_mu, d_sigma = ascend(tail, z, y, eps=0.9, steps=6, step=0.2, rectify=False)
    assert torch.equal(torch.cat([d_mu, d_sigma]), worst)


def test_advbn_is_the_sum_of_a_clean_and_a_perturbed_pass_through_the_tail() -> None:
    x, y = batch()
    objective = train.AdvBN(cut="2", eps=0.5, steps=2, step_size=0.2)
    model = objective.prepare(net()).train()
    front, main = net()[:3].eval(), net()[3:].train()
    aux = net()[3:].train()
    z = front(x).detach()
    aux.eval()
    d_mu = torch.zeros(1, 6, 1, 1).double()
    d_sigma = torch.zeros(1, 6, 1, 1).double()
    mu = z.mean((0, 2, 3), keepdim=True)
    for _ in range(2):
        d_mu.requires_grad_(True), d_sigma.requires_grad_(True)
        moved = ((1 + d_sigma) * (z - mu) + (1 + d_mu) * mu).clamp(min=0)
        g = torch.autograd.grad(F.cross_entropy(aux(moved), y), (d_mu, d_sigma))
        d_mu, d_sigma = (
            (d.detach() + 0.2 * s.sign()).clamp(-0.5, 0.5) for d, s in zip((d_mu, d_sigma), g, strict=True)
        )
    moved = ((1 + d_sigma) * (z - mu) + (1 + d_mu) * mu).clamp(min=0)
    aux.train()
    (F.cross_entropy(main(z), y) + F.cross_entropy(aux(moved), y)).backward()

    before = buffers(model)
    objective(model, x, y)
    found = grads(model)
    assert not any(name.startswith(("0.", "1.")) for name in found)
    torch.testing.assert_close(found["4.weight"], main[1].weight.grad)
    torch.testing.assert_close(found["4.branches.aux.weight"], aux[1].weight.grad)
    torch.testing.assert_close(found["8.weight"], main[5].weight.grad + aux[5].weight.grad)
    after = buffers(model)
    assert all(torch.equal(after[name], before[name]) for name in before if name.startswith("1."))
    torch.testing.assert_close(after["4.branches.aux.running_mean"], aux[1].running_mean)


def test_advbn_trains_its_front_on_both_losses_if_that_is_not_frozen() -> None:
    x, y = batch()
    objective = train.AdvBN(cut="2", steps=0, freeze_front=False)
    model, plain = objective.prepare(net()).train(), net().train()
    objective(model, x, y)
    (2 * F.cross_entropy(plain(x), y)).backward()
    found, wanted = grads(model), grads(plain)
    for name in ("0.weight", "1.weight", "3.weight", "8.weight"):
        torch.testing.assert_close(found[name], wanted[name], msg=name)


class FunctionalDropout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(F.dropout(x, 0.5, self.training))


def test_advbn_refuses_a_network_whose_steps_depend_on_its_mode() -> None:
    with pytest.raises(BadInput, match=r"other steps in training than in evaluation; .* nn\.Dropout"):
        train.AdvBN(cut="net.2").prepare(FunctionalDropout().train())


def test_advbns_random_control_draws_within_the_cube_by_its_seed() -> None:
    x, y = batch()
    objective = train.AdvBN(cut="2", attack="random", eps=0.3)
    model = objective.prepare(net()).train()
    kept = norm.snapshot(model)
    first, second, again = (
        objective(norm.restore(model, kept), x, y, seed=seed)["adv"] for seed in (1, 2, 1)
    )
    assert first == again != second


# ---- noise and gradients -----------------------------------------------------------------------------


def test_gaussian_noise_belongs_to_the_image_and_not_to_the_batch() -> None:
    x, y = batch()
    seen = []

    class Watch(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(x.detach().clone())
            return x.flatten(1)[:, :CLASSES] * torch.ones((), requires_grad=True)

    objective = train.Gaussian(sigma=0.25)
    objective(Watch(), x, y, seed=9, ids=range(N))
    order = torch.randperm(N)
    objective(Watch(), x[order], y[order], seed=9, ids=order)
    torch.testing.assert_close(seen[0][order], seen[1])
    assert 0.2 < float((seen[0] - x).std()) < 0.3


def test_the_ligs_gradient_is_that_of_finite_differences() -> None:
    x, y = batch(n=4)
    objective = train.LIGS(weight=2.0, size=0.05)
    model = net().train()
    norm.steer(model)
    kept = norm.snapshot(model)
    objective(model, x, y, seed=0)
    weight = model[3].weight
    direction = torch.randn_like(weight)
    h = 1e-5
    values = []
    for sign in (1, -1):
        norm.restore(model, kept)
        with torch.no_grad():
            weight.add_(sign * h * direction)
        moved = copy.deepcopy(model)
        with torch.no_grad():
            weight.sub_(sign * h * direction)
        values.append(float(objective(moved, x, y, seed=0)["loss"]))
    slope = (values[0] - values[1]) / (2 * h)
    assert float((weight.grad * direction).sum()) == pytest.approx(slope, rel=1e-4)


def test_a_linear_network_has_nothing_to_regularize() -> None:
    """The input gradient of w . x in a two-class problem turns by nothing: LIGS is 1."""
    torch.manual_seed(0)
    linear = nn.Sequential(nn.Flatten(), nn.Linear(192, 2)).double()
    x, y = batch()
    parts = train.LIGS(weight=1.0, size=0.1)(linear, x, y % 2)
    assert float(parts["turned"]) == pytest.approx(0, abs=1e-12)


# ---- all ---------------------------------------------------------------------------------------------


def test_mixed_labels_weigh_the_loss_of_both_classes() -> None:
    x, y = batch()
    soft = 0.3 * F.one_hot(y, CLASSES) + 0.7 * F.one_hot(y.roll(1), CLASSES).double()
    hard = [train.Standard()(net().train(), x, labels)["loss"] for labels in (y, y.roll(1))]
    mixed = train.Standard()(net().train(), x, soft)["loss"]
    torch.testing.assert_close(mixed, 0.3 * hard[0] + 0.7 * hard[1])


def test_label_smoothing_spreads_its_share_over_all_classes() -> None:
    x, y = batch()
    spread = 0.9 * F.one_hot(y, CLASSES).double() + 0.1 / CLASSES
    smoothed = train.Standard(label_smoothing=0.1)(net().train(), x, y)["loss"]
    torch.testing.assert_close(smoothed, train.Standard()(net().train(), x, spread)["loss"])
