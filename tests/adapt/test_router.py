"""The router: a closed form, planted domains, invariances, and the honest gradient."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import trimtab
from nets import stack
from trimtab import adapt, attacks, data, norm
from trimtab.types import BadInput


def network() -> nn.Module:
    net = stack(5)
    for _ in range(40):
        net(bright(32))
    return trimtab.steer(net.eval())


def bright(n: int) -> torch.Tensor:
    return 0.7 + 0.3 * torch.rand(n, 3, 9, 9)


def dark(n: int) -> torch.Tensor:
    return 0.3 * torch.rand(n, 3, 9, 9)


@pytest.fixture
def two():
    """A network, and packs of two domains."""
    net = network()
    return net, {"day": norm.gather(net, [bright(200)]), "night": norm.gather(net, [dark(200)])}


def test_each_image_is_predicted_by_the_branch_of_its_domain(two):
    net, packs = two
    router = adapt.route(net, packs)
    day, night = bright(5), dark(3)
    weights = router.weights(torch.cat([day, night]))
    assert weights.argmax(1).tolist() == [0] * 5 + [1] * 3
    with torch.no_grad(), norm.use(router.model, branch="night"):
        torch.testing.assert_close(router(night), router.model(night))
    torch.testing.assert_close(router(torch.cat([day, night]))[5:], router(night))


def test_per_batch_makes_one_choice_and_couples_the_batch(two):
    net, packs = two
    router = adapt.route(net, packs, per="batch")
    mixed = torch.cat([bright(6), dark(2)])
    assert len(router.weights(mixed).argmax(1).unique()) == 1
    assert router.couples_batch
    assert not adapt.route(net, packs).couples_batch


def test_a_blend_is_the_mixture_of_the_branches_probabilities(two):
    net, packs = two
    router, x = adapt.route(net, packs, blend=True), torch.cat([bright(3), dark(3), 0.5 * bright(3)])
    weights = router.weights(x)
    expected = torch.zeros(9, 5)
    for k, branch in enumerate(router.branches):
        with torch.no_grad(), norm.use(router.model, branch=branch):
            expected += weights[:, k : k + 1] * router.model(x).softmax(1)
    torch.testing.assert_close(router(x).exp(), expected, rtol=1e-4, atol=1e-5)


def test_the_distance_is_the_divergence_of_each_images_moments():
    net = network()
    trimtab.add_branch(net, "other")
    with torch.no_grad():
        net[1].branches["other"].running_mean.add_(1)
    router, x = adapt.route(net, layers=1), bright(4)
    features, _ = router._passes(x)
    z = net[0](x).detach().flatten(2)  # (N, C, positions)
    for k, branch in enumerate(("main", "other")):
        reference = norm.running(net, branch)["1"]
        normal = torch.distributions.Normal
        image = normal(z.mean(2), (z.var(2, correction=0) + 1e-5).sqrt())
        kl = torch.distributions.kl_divergence(
            image, normal(reference.mean, (reference.var + 1e-5).sqrt())
        ).mean(1)
        torch.testing.assert_close(features[:, k].detach(), kl.log(), rtol=1e-4, atol=1e-4)


def test_the_fit_is_scikit_learns_linear_discriminant():
    discriminant = pytest.importorskip("sklearn.discriminant_analysis")
    net = network()
    packs = {"day": norm.gather(net, [bright(200)]), "night": norm.gather(net, [0.9 * bright(200)])}
    reference = {"day": [bright(64), bright(64)], "night": [0.9 * bright(128)]}
    router = adapt.route(net, packs, reference)
    features = [torch.cat([router._passes(x)[0] for x in reference[name]]) for name in router.branches]
    rows, labels = torch.cat(features).detach().numpy(), [0] * 128 + [1] * 128
    lda = discriminant.LinearDiscriminantAnalysis(solver="lsqr", priors=[0.5, 0.5]).fit(rows, labels)
    x = torch.cat([bright(40), 0.9 * bright(40)])
    expected = lda.predict(router._passes(x)[0].detach().numpy())
    assert (router.weights(x).argmax(1).numpy() == expected).mean() > 0.95  # it differs by the shrinkage


def test_a_reference_moves_the_choice_between_branches_that_are_equally_far(two):
    net, packs = two
    reference = {"day": [bright(64)], "night": [0.8 * bright(64)]}  # another night than that of the pack
    plain, fitted = adapt.route(net, packs), adapt.route(net, packs, reference)
    x = 0.8 * bright(50)
    assert (fitted.weights(x).argmax(1) == 1).float().mean() > 0.9
    assert (plain.weights(x).argmax(1) == 1).float().mean() < 0.5


def test_the_gradient_of_a_blend_includes_that_of_the_weights(two):
    net, packs = two
    router = adapt.route(net, packs, blend=True).double()
    x = (0.55 * bright(2)).double().requires_grad_(True)
    direction = torch.randn_like(x)
    (gradient,) = torch.autograd.grad(router(x)[:, 0].sum(), x)
    with torch.no_grad():
        values = [float(router(x + t * direction)[:, 0].sum()) for t in (1e-4, -1e-4)]
    assert float((gradient * direction).sum()) == pytest.approx((values[0] - values[1]) / 2e-4, rel=0.02)


def test_the_given_model_stays_as_it_was(two):
    net, packs = two
    before = {name: value.clone() for name, value in net.state_dict().items()}
    adapt.route(net, packs)(bright(2))
    assert norm.branches(net) == ("main",)
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())


@pytest.mark.parametrize("name", ["zoo:sample-mixture", "zoo:sample-advbn"])
def test_branches_of_the_zoo_are_routed_and_attacked(name):
    net = trimtab.load(name)
    batch = next(iter(data.load("sample", "test").batches(64)))
    pgd = attacks.PGD(attacks.Linf("8/255"), steps=5)
    kinds = [branch for branch in norm.branches(net) if branch != "main"]
    router = adapt.route(net, reference={"main": [batch.x], kinds[0]: [pgd(net, batch.x, batch.y, seed=1)]})
    accuracy = (router(batch.x).argmax(1) == batch.y).float().mean()
    assert accuracy > 0.6
    x_adv = pgd(adapt.route(net, blend=True), batch.x, batch.y, seed=0)
    assert (x_adv - batch.x).abs().max() <= 8 / 255 + 1e-6


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"per": "pixel"}, 'per "image" or per "batch"'),
        ({"layers": 0}, "1 layer or more"),
        ({"reference": {"day": []}}, "images for each of day, night"),
        ({"reference": {"day": [bright(1)], "night": [dark(4)]}}, "'day' needs at least 2"),
    ],
)
def test_bad_options_are_refused(two, options, words):
    net, packs = two
    with pytest.raises(BadInput, match=words):
        adapt.route(net, packs, **options)


def test_one_branch_is_no_choice():
    with pytest.raises(BadInput, match="two branches"):
        adapt.route(network())


def test_the_trust_card_says_that_a_router_is_no_defense():
    from trimtab import evaluate

    net, images = trimtab.load("zoo:sample-mixture"), data.load("sample", "test").subset(slice(0, 32))
    flags = {flag.name: flag for flag in evaluate.trust.examine(adapt.route(net), images)}
    assert "is no defense" in flags["router"].saw
    assert "worst branch" in flags["router"].advice
    assert "router" not in {flag.name for flag in evaluate.trust.examine(net, images)}
