"""Models and inputs on which attacks go wrong without a word, unless they are watched.

Also tests attacks.base, attacks.geometry, attacks.judge.
"""

import copy

import pytest
import torch
from torch import nn

from trimtab import adapt, measure, norm
from trimtab.attacks import (
    APGD,
    EOT,
    FGSM,
    L2,
    PGD,
    Attack,
    AutoAttack,
    CoBatch,
    CurvePGD,
    Linf,
    SignStep,
    Square,
    TargetedAPGD,
    ThroughBatch,
    adaptive_sampler,
    couples_batch,
    curve,
    guard,
    is_flat,
)
from trimtab.attacks.geometry import direction, unit
from trimtab.types import BadInput


class Scaled(nn.Module):
    """A two-class linear model whose logits are multiplied: the larger, the smaller its gradients."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(48, generator=torch.Generator().manual_seed(0)))
        self.scale = scale

    def forward(self, x):
        z = self.scale * ((x.flatten(1) - 0.5) @ self.w)
        return torch.stack([torch.zeros_like(z), z], 1)


def inner_images(n=24):
    return 0.4 + 0.2 * torch.rand(n, 3, 4, 4, generator=torch.Generator().manual_seed(1))


def test_confident_models_are_attacked_as_well_as_hesitant_ones():
    x = inner_images()
    y = (Scaled(1.0)(x)[:, 1] > 0).long()
    attack = PGD(L2(0.08), steps=20, random_start=False)
    hesitant, confident = (attack.outcome(Scaled(scale), x, y).success for scale in (1.0, 20.0))
    assert 0 < int(hesitant.sum()) < len(x)
    assert torch.equal(hesitant, confident)


def test_a_unit_vector_survives_what_squares_to_zero():
    tiny = torch.tensor([[3e-30, 4e-30], [0.0, 0.0]])
    torch.testing.assert_close(unit(tiny), torch.tensor([[0.6, 0.8], [0.0, 0.0]]))


@pytest.mark.parametrize("budget", [Linf(0.1), L2(0.1)], ids=str)
def test_what_is_no_number_has_no_direction_and_an_infinite_slope_has_one(budget):
    grad = torch.tensor([[torch.nan, torch.inf, -torch.inf, 0.0]] * 17).flatten()[None]
    way = direction(grad, budget)
    assert bool((way[grad.isnan() | (grad == 0)] == 0).all())
    assert torch.equal(way.sign(), grad.nan_to_num().sign())


IMPOSSIBLE = {
    "apgd": lambda: APGD(steps=10.5),
    "square": lambda: Square(queries=10.5),
    "eot": lambda: EOT(APGD()),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_attacks_that_cannot_be_are_refused_when_they_are_made(name):
    with pytest.raises(BadInput, match=r"whole number|an untargeted PGD"):
        IMPOSSIBLE[name]()


def test_logits_without_bounds_are_attacked_in_silence():
    class Infinite(Scaled):
        def forward(self, x):
            z = super().forward(x).abs().sum(1)  # too large for its format
            return torch.stack([z, 2 * z, -z], 1)

    model, x = Infinite(1e44), inner_images()
    y = torch.zeros(len(x), dtype=torch.long)
    assert bool(model(x)[:, :2].isposinf().all())
    found = PGD(Linf(0.01), steps=3, early_stop=True).outcome(model, x, y)
    assert bool(found.x.isfinite().all())


@pytest.mark.parametrize("attack", [PGD(L2(1e-6), steps=3), APGD(Linf(1e-6), steps=3)], ids=str)
def test_an_infinite_slope_makes_no_images_out_of_nothing(attack):
    class Root(Scaled):
        def forward(self, x):
            return super().forward(x.sqrt())

    model, x = Root(1.0), inner_images()
    x[:, :, 0, 0] = 0
    y = model(x).argmax(1)
    found = attack.outcome(model, x, y)
    assert bool(found.x.isfinite().all())
    assert int(found.success.sum()) == 0


@pytest.fixture
def branched(model):
    made = norm.add_branch(norm.steer(copy.deepcopy(model)), "adv")
    with torch.no_grad():
        for layer in norm.layers(made).values():
            layer.holder("adv").weight.mul_(-1)
    return made


def test_adaptation_and_batch_attacks_honour_the_branch_in_use(branched, images):
    x, y = (part[:16] for part in images)
    alone = norm.release(copy.deepcopy(branched), branch="adv")
    attack = ThroughBatch(PGD(Linf("4/255"), steps=2))
    with norm.use(branched, branch="adv"):
        torch.testing.assert_close(adapt.per_batch(branched)(x), adapt.per_batch(alone)(x))
        torch.testing.assert_close(attack(branched, x, y), attack(alone, x, y))
        found = measure.landscape(branched, x, y)
    assert found.losses == pytest.approx(measure.landscape(alone, x, y).losses)


def test_measuring_a_stream_leaves_it_where_it_was(model, images):
    x, y = images
    online = adapt.stream(model)
    online(x[:8])
    with guard(online):
        online(x)
    assert online.seen == 8
    other = adapt.stream(model)
    other(x[:8])
    assert torch.equal(online(x), other(x))
    with pytest.raises(BadInput, match="stream"):
        PGD(Linf("4/255"), steps=1)(online, x, y)


@pytest.mark.parametrize(
    "attack", [APGD(Linf("4/255"), steps=6), PGD(Linf("4/255"), steps=4, restarts=3)], ids=str
)
def test_what_is_said_of_a_coupled_batch_holds_when_it_is_shown_again(model, images, attack):
    x, y = (part[:24] for part in images)
    adaptive = adapt.per_batch(model)
    found = attack.outcome(adaptive, x, y)
    with torch.no_grad():
        assert torch.equal(adaptive(found.x).argmax(1) != y, found.success)
    assert int(found.success.sum()) > 0


@pytest.mark.parametrize(
    "attack", [Square(Linf("4/255"), queries=5), AutoAttack(Linf("4/255"), steps=2)], ids=str
)
def test_attacks_that_judge_images_one_by_one_refuse_coupled_models_at_once(model, images, attack):
    with pytest.raises(BadInput, match="couples a batch"):
        attack(adapt.per_batch(model), *images)


def test_coupling_is_told_from_chance_and_from_little(model, images):
    x, _ = images
    assert couples_batch(adapt.per_batch(model, rho=1e-3), x)
    assert couples_batch(adapt.per_batch(model), x[:1].expand(8, -1, -1, -1))

    class Noisy(nn.Module):
        def forward(self, x):
            return x.flatten(1)[:, :5] + torch.rand(len(x), 5)

    assert not couples_batch(Noisy(), x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_models_are_attacked_in_full_steps(model, images, dtype):
    x, y = (part[:8] for part in images)
    half = copy.deepcopy(model).to(dtype)
    for attack in (PGD(Linf("8/255"), steps=3), APGD(L2(0.3), steps=3), Square(Linf("8/255"), queries=3)):
        adv = attack(half, x.to(dtype), y)
        assert adv.dtype == dtype
        assert bool(adv.isfinite().all())


def test_labels_and_types_that_people_have_are_understood_or_told(model, images):
    x, y = (part[:8] for part in images)
    attack = PGD(Linf("4/255"), steps=1)
    assert torch.equal(attack(model, x, y.int()), attack(model, x, y))
    for words, act in {
        "one integer per image": lambda: attack(model, x, y[:, None]),
        "convert one of them": lambda: attack(model, x.double(), y),
        "dlr compares three logits": lambda: PGD(L2(0.1), steps=1, loss="dlr")(
            Scaled(1.0), inner_images(), torch.zeros(24).long()
        ),
        "rho": lambda: ThroughBatch(attack, rho=0.3)(adapt.per_batch(model), x, y),
    }.items():
        with pytest.raises(BadInput, match=words):
            act()
    fine, x = copy.deepcopy(model).double(), x.double()  # in float32, rounding flips the sign of tiny slopes
    several = nn.ModuleList([fine, fine])
    torch.testing.assert_close(EOT(attack, sampler=several)(fine, x, y), attack(fine, x, y))


def test_a_buffer_that_the_forward_pass_replaces_is_put_back():
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("n", torch.zeros(()))
            self.linear = nn.Linear(48, 3)

        def forward(self, x):
            self.n = self.n + 1
            return self.linear(x.flatten(1))

    model = Counts()
    held = model.n
    PGD(Linf("4/255"), steps=2)(model, inner_images(), torch.zeros(24, dtype=torch.long))
    assert model.n is held
    assert float(held) == 0


def test_a_steered_network_without_running_statistics_is_attacked_as_the_stock_one():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False), nn.Flatten())
    net = nn.Sequential(net, nn.Linear(4 * 36, 3)).double().eval()
    x, y = torch.rand(6, 3, 8, 8, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1, 2])
    stock = PGD(Linf("4/255"), steps=3)(net, x, y)
    torch.testing.assert_close(PGD(Linf("4/255"), steps=3)(norm.steer(net), x, y), stock)


def test_images_and_labels_made_in_inference_mode_can_be_attacked(model, images):
    with torch.inference_mode():
        x, y = images[0] * 1, images[1] * 1
    assert torch.equal(PGD(Linf("4/255"), steps=2)(model, x, y), PGD(Linf("4/255"), steps=2)(model, *images))


def test_a_buffer_that_a_pass_fills_is_empty_again(images):
    class Late(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(images[0][0].numel(), 10)
            self.register_buffer("scale", None)

        def forward(self, x):
            if self.scale is None:
                self.scale = torch.ones(())
            return self.linear(x.flatten(1)) * self.scale

    net = Late().eval()
    PGD(Linf("4/255"), steps=1)(net, *images)
    assert net.scale is None


class Rounds(Scaled):
    """It takes images in whole levels, and lets no gradient through."""

    def forward(self, x):
        return super().forward((x.detach() * 255).round() / 255)


def test_an_ensemble_goes_on_to_square_where_the_model_cuts_gradients():
    model, x = Rounds(1.0), inner_images()
    y = model(x).argmax(1)
    climbed = APGD(Linf(0.03), steps=3).outcome(model, x, y)
    ensemble = AutoAttack(Linf(0.03), steps=3, queries=100).outcome(model, x, y)
    assert int(climbed.success.sum()) < int(ensemble.success.sum())
    assert torch.equal(model(ensemble.x).argmax(1) != y, ensemble.success)


@pytest.mark.parametrize("attack", [PGD(Linf("8/255"), steps=3), APGD(L2(0.5), steps=3)], ids=str)
@pytest.mark.parametrize("shape", [(2, 4, 8, 8), (4, 8, 8)], ids=["volumes", "stacked inside"])
def test_networks_with_convolutions_in_three_dimensions_are_attacked(attack, shape):
    torch.manual_seed(0)
    channels = shape[0] if len(shape) == 4 else 1
    net = nn.Sequential(nn.Conv3d(channels, 4, 3), nn.BatchNorm3d(4), nn.Flatten(), nn.LazyLinear(3))
    model = nn.Sequential(nn.Unflatten(1, (channels, -1)), net) if len(shape) == 3 else net
    x = torch.rand(6, *shape)
    model(x)
    y = model.eval()(x).argmax(1)
    found = attack.outcome(model, x, y)
    assert torch.equal(model(found.x).argmax(1) != y, found.success)


def test_short_integers_are_labels_everywhere(model, images):
    x, y = (part[:12] for part in images)
    steered = norm.steer(copy.deepcopy(model))
    assert torch.equal(measure.ligs(model, x, y.int()), measure.ligs(model, x, y))
    assert torch.equal(measure.loss_gradients(model, x, y.int()), measure.loss_gradients(model, x, y))
    co_batch = CoBatch(images=2, steps=2)
    assert torch.equal(co_batch(model, x, y.int()), co_batch(model, x, y))
    short, long = SignStep(0.1)(steered, x, y.int()), SignStep(0.1)(steered, x, y)
    assert all(torch.equal(short[name].mu, long[name].mu) for name in long)


class Restless(nn.Sequential):
    """Its batch norm stays in train mode, whatever is asked."""

    def train(self, mode: bool = True) -> nn.Module:
        super().train(mode)
        self[1].train(True)
        return self


def test_a_stock_layer_that_stays_in_train_mode_comes_out_of_the_guard_as_it_went_in() -> None:
    model = Restless(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
    before = {name: value.clone() for name, value in model.named_buffers()}
    with guard(model):
        model(torch.rand(4, 3, 2, 2))
    assert all(torch.equal(value, before[name]) for name, value in model.named_buffers())


@pytest.mark.parametrize("attack", [Square(queries=2), AutoAttack(steps=1, queries=2)])
def test_attacks_on_single_images_refuse_a_model_that_couples_them(attack: Attack) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    with pytest.raises(BadInput, match=r"one by one.*freeze it first"):
        attack(adapt.per_batch(model), torch.rand(8, 3, 6, 6), torch.arange(8) % 4)


def test_a_curve_is_flat_when_its_last_leg_loses_next_to_nothing() -> None:
    stands = {mark: torch.arange(1000) < left for mark, left in ((10, 500), (20, 400), (100, 390))}
    assert is_flat(stands)
    assert not is_flat({**stands, 100: torch.arange(1000) < 389})
    assert not is_flat({10: stands[10]})


@pytest.mark.parametrize(
    ("make", "numbers"),
    [(APGD, {"restarts": 0}), (TargetedAPGD, {"targets": 0}), (AutoAttack, {"targets": 0})],
)
def test_an_attack_that_would_try_nothing_is_refused(make, numbers) -> None:
    with pytest.raises(BadInput, match=r"at least one of its (restarts|targets), found \w+=0"):
        make(**numbers)


def test_a_curve_refuses_restarts(model, images) -> None:
    with pytest.raises(BadInput, match=r"needs marks .* and restarts=1, found .* restarts=5"):
        curve(PGD(Linf("4/255"), restarts=5), model, *images, marks=(1, 2))


def test_a_curve_of_a_coupled_batch_counts_the_last_iterate_whatever_is_asked(model, images) -> None:
    step = {"steps": 2, "step_size": "8/255", "targeted": True}  # so long that images recover
    last, any_ = (
        CurvePGD(Linf("4/255"), **step, early_stop=early_stop, marks=(1, 2)).outcome(
            adapt.per_batch(model), *images
        )
        for early_stop in (False, True)
    )
    assert int(last.marks[2].sum()) < int(last.marks[1].sum())
    assert all(torch.equal(any_.marks[mark], last.marks[mark]) for mark in (1, 2))
    assert torch.equal(any_.marks[2], any_.success)


def test_eot_refuses_a_model_that_adapts_otherwise_than_it_expects(model, images) -> None:
    x, y = (part[:8] for part in images)
    attack = PGD(Linf("4/255"), steps=1)
    with pytest.raises(BadInput, match=r"adapts with rho=0\.2.*expects rho=1"):
        EOT(attack, m=1)(adapt.per_batch(model, rho=0.2), x, y)
    with pytest.raises(BadInput, match=r"rho=0\.2"):
        adaptive_sampler(adapt.per_batch(model, rho=0.2), x, attack.budget)
    assert EOT(attack, m=1, rho=0.2)(adapt.per_batch(model, rho=0.2), x, y).shape == x.shape


def test_eot_says_how_many_classifiers_it_was_given() -> None:
    given = [Scaled(1.0), Scaled(2.0)]
    assert str(EOT(sampler=given)).startswith("EOT over 2 classifiers of")
    assert str(EOT(sampler=nn.ModuleList(given))).startswith("EOT over 2 classifiers of")
    assert str(EOT(m=3)).startswith("EOT over 3 classifiers of")


@pytest.mark.parametrize("given", [{"m": 0}, {"sampler": []}])
def test_eot_over_no_classifier_is_refused(given: dict) -> None:
    with pytest.raises(BadInput, match="at least one classifier, found 0"):
        EOT(**given)


def test_eots_copies_blend_as_the_adaptive_model_does() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 3)).eval()
    x, budget = torch.rand(8, 3, 8, 8), Linf(1e-6)
    for blend_of in ("std", "var"):
        adaptive = adapt.per_batch(net, rho=0.5, blend_of=blend_of)
        drawn = adaptive_sampler(adaptive, x, budget, rho=0.5)(0)
        with torch.no_grad():
            torch.testing.assert_close(drawn(x), adaptive(x), rtol=1e-4, atol=1e-4)


class Pooled(nn.Module):
    """Its gradient is the same in every pixel of a channel, so that roundings of a norm add up."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x.mean((2, 3)))


@pytest.mark.parametrize("eps", [0.5, 2.0, 8.0])
def test_large_images_stay_within_an_l2_budget(eps: float) -> None:
    torch.manual_seed(0)
    x = torch.rand(2, 3, 299, 299) * 0.9 + 0.05
    x = x.contiguous(memory_format=torch.channels_last)
    made = FGSM(L2(eps))(Pooled(), x, torch.tensor([0, 1]))
    exact = (made.double() - x.double()).flatten(1).norm(dim=1)
    assert torch.all(exact <= eps + 1e-5)
    assert torch.all(exact >= 0.99 * eps)


def test_auto_pgd_counts_its_start() -> None:
    class WrongInside(nn.Module):
        """Wrong strictly inside the ball, right at the image and in every corner: gradients lead outwards."""

        def __init__(self, x: torch.Tensor, eps: float) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(()))
            self.at, self.eps = x, eps

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            far = (x - self.at).abs().flatten(1).amax(1) / self.eps
            wrong = ((far > 0.01) & (far < 0.999)).float()
            slope = x.flatten(1).sum(1)
            return torch.stack([1 - 2 * wrong, 0 * slope], 1) + 1e-3 * slope[:, None] * self.w * torch.tensor(
                [-1, 1]
            )

    x = torch.full((1, 3, 4, 4), 0.5)
    model, y = WrongInside(x, 0.1), torch.tensor([0])
    found = APGD(Linf(0.1), steps=1).outcome(model, x, y)
    assert found.success.tolist() == [True]
    assert found.success_at.tolist() == [0]
    assert model(found.x).argmax(1).tolist() == [1]


def test_who_observes_sees_nothing_of_an_attack(model, images) -> None:
    (x, y), model = images, norm.steer(model)
    with norm.observe(model) as seen:
        PGD(steps=2)(model, x, y)
        assert not seen
        model(x)
    with norm.observe(model) as alone:
        model(x)
    for name, moments in alone.items():
        assert torch.equal(seen[name].mean, moments.mean)
        assert seen[name].n == moments.n


def test_weights_made_in_inference_mode_are_told_in_a_sentence() -> None:
    with torch.inference_mode():
        model = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))
    with pytest.raises(BadInput, match=r"made inside torch\.inference_mode"):
        PGD(steps=1)(model, torch.rand(2, 3, 2, 2), torch.tensor([0, 1]))
