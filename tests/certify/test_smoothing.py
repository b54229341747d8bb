"""Certificates of classifiers whose smoothed form is known in closed form.

Also tests certify.sampling.
"""

from __future__ import annotations

import copy
from itertools import pairwise

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from nets import stack
from trimtab import certify, norm
from trimtab.certify import sampling, smoothing
from trimtab.types import BadInput


class Halfspaces(nn.Module):
    """Class 1 where <w, x> > b. Smoothed by any Gaussian it is itself, with the distance as exact radius."""

    def __init__(self, pixels: int = 12, threshold: float = 0.0):
        super().__init__()
        w = torch.randn(pixels, generator=torch.Generator().manual_seed(1))
        self.w = nn.Parameter(w / w.norm())
        self.threshold = threshold

    def forward(self, x: Tensor) -> Tensor:
        score = x.flatten(1) @ self.w - self.threshold
        return torch.stack([-score, score], dim=1)


def at_distance(distance: float, copies: int = 1) -> tuple[Halfspaces, Tensor]:
    """A classifier, and an image in [0, 1] at this distance from its boundary, on the side of class 1."""
    model = Halfspaces()
    x = torch.full((1, 3, 2, 2), 0.5)
    model.threshold = float(x.flatten() @ model.w.detach()) - distance
    return model, x.repeat(copies, 1, 1, 1)


def small_network() -> nn.Module:
    with torch.random.fork_rng():
        net = stack(4, (8, 8), padding=(1, 0), stride=2)
        for _ in range(3):
            net(torch.randn(32, 3, 8, 8))
    with torch.no_grad():  # center the logits, so that noise moves the class
        net[-1].bias -= net.eval()(torch.rand(64, 3, 8, 8)).mean(0)
    return net


@pytest.fixture
def images() -> Tensor:
    return torch.rand(6, 3, 8, 8, generator=torch.Generator().manual_seed(2))


def same(a: certify.Certificates, b: certify.Certificates) -> bool:
    names = ("ids", "classes", "radii", "p_lower", "counts", "draws")
    return all(torch.equal(getattr(a, name), getattr(b, name)) for name in names)


def test_radii_of_a_linear_classifier_exceed_the_exact_one_no_more_often_than_alpha() -> None:
    model, x = at_distance(0.4, copies=1000)  # p = Phi(0.8) = 0.79
    found = certify.certify(model, x, sigma=0.5, n0=100, n=400, alpha=0.05)
    exceed = int((found.radii > 0.4).sum())
    assert stats.binom.sf(exceed - 1, 1000, 0.05) >= 1e-6
    assert (found.classes == 1).all()
    # Nor less often than the exact bound does: k is the first count whose bound exceeds p.
    p = stats.norm.cdf(0.8)
    k = next(k for k in range(1, 401) if stats.beta.ppf(0.05, k, 401 - k) > p)
    assert stats.binom.cdf(exceed, 1000, stats.binom.sf(k - 1, 400, p)) >= 1e-6


def test_counts_follow_the_binomial_law_of_the_exact_probability() -> None:
    model, x = at_distance(0.1, copies=300)
    found = certify.certify(model, x, sigma=0.25, n0=300, n=200, alpha=0.05)
    p = stats.norm.cdf(0.4)
    assert stats.binomtest(int(found.counts.sum()), 300 * 200, p).pvalue > 1e-6
    assert float(found.counts.double().var()) == pytest.approx(200 * p * (1 - p), rel=5 * (2 / 300) ** 0.5)


def test_an_image_on_the_boundary_is_abstained_from() -> None:
    model, x = at_distance(0.0, copies=50)
    found = certify.certify(model, x, n=1000, alpha=0.001)
    assert (found.classes == certify.ABSTAIN).sum() >= 49
    assert (found.radii[found.classes == certify.ABSTAIN] == 0).all()
    assert (certify.predict(model, x, n=300, alpha=0.001) == certify.ABSTAIN).sum() >= 49


def test_far_images_reach_the_largest_radius_and_the_right_class() -> None:
    model, x = at_distance(9.0)
    found = certify.certify(model, x, sigma="1/4", n=1000)
    assert found.radii.tolist() == pytest.approx([found.max_radius])
    assert found.counts.tolist() == [1000]
    assert found.classes.tolist() == certify.predict(model, x, sigma=0.25, n=50).tolist() == [1]


@pytest.mark.parametrize("batch_size", [1, 7, 50, 128, 100_000])
def test_results_are_the_same_for_every_batch_size(images: Tensor, batch_size: int) -> None:
    model = small_network()
    usual = certify.certify(model, images[:3], n0=30, n=520, alpha=0.05)
    assert same(usual, certify.certify(model, images[:3], n0=30, n=520, alpha=0.05, batch_size=batch_size))
    assert len(set(usual.counts.tolist())) > 1


def test_an_image_s_result_does_not_depend_on_the_others_or_their_order(images: Tensor) -> None:
    model, ids = small_network(), torch.tensor([3, 8, 2, 40, 7, 100])
    whole = certify.certify(model, images, n=550, alpha=0.05, ids=ids)
    order = torch.tensor([4, 0, 5, 2, 1, 3])
    parts = [
        certify.certify(model, images[part], n=550, alpha=0.05, ids=ids[part])
        for part in order.split([1, 3, 2])
    ]
    joined = certify.join(parts)
    assert joined.ids.tolist() == ids[order].tolist()
    for name in ("classes", "radii", "p_lower", "counts", "draws"):
        assert torch.equal(getattr(joined, name), getattr(whole, name)[order])


def test_seed_and_id_move_the_noise_and_more_draws_continue_it(images: Tensor) -> None:
    model, x = at_distance(0.2)
    of = {
        key: int(certify.certify(model, x, n=450, alpha=0.3, seed=key[0], ids=[key[1]]).counts)
        for key in [(0, 0), (1, 0), (0, 1), (0, 2), (2, 0)]
    }
    assert len(set(of.values())) > 1
    noise = [sampling.gaussian((50, 2, 2, 3), 1.0, 5, 9, block) for block in (0, 1)]
    w = model.w.detach().view(3, 2, 2).permute(1, 2, 0)
    expected = sum(int((((z * 0.5 * w).sum((1, 2, 3)) + 0.2) > 0).sum()) for z in noise)
    assert int(certify.certify(model, x, n=100, alpha=0.3, seed=5, ids=[9]).counts) == expected


def test_the_noise_is_standard_normal_and_uncorrelated_across_blocks_and_images() -> None:
    blocks = torch.stack(
        [sampling.gaussian((50, 4), 1.0, 0, id, b).flatten() for id in range(20) for b in range(-5, 5)]
    )
    assert stats.kstest(blocks.flatten().numpy(), "norm").pvalue > 1e-6
    n, size = blocks.shape
    correlation = (blocks @ blocks.T / size)[~torch.eye(n, dtype=torch.bool)]
    assert float(correlation.abs().max()) < stats.norm.isf(1e-6 / n**2) / size**0.5 * 1.1
    assert float(correlation.pow(2).mean()) * size == pytest.approx(1, abs=0.05)


def test_giving_up_early_spares_draws_and_changes_no_verdict(
    images: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 4))
    with torch.no_grad():
        model[1].weight.normal_(generator=torch.Generator().manual_seed(0))
    settings = {"sigma": 0.5, "n": 4000, "alpha": 0.001}
    eager = certify.certify(model, images, **settings)
    sure = certify.certify(model, images, **settings, give_up=0)
    monkeypatch.setattr(smoothing, "ROUND", 4000)
    whole = certify.certify(model, images, **settings)

    assert (whole.draws == 4000).all()
    for found in (eager, sure):
        assert torch.equal(found.classes, whole.classes)
        assert torch.equal(found.radii, whole.radii)
        assert (found.draws[found.classes >= 0] == 4000).all()
        assert (found.p_lower[found.draws < 4000] == 0).all()
    abstained = whole.classes == certify.ABSTAIN
    assert 0 < abstained.sum() < len(images)
    assert eager.draws.sum() < sure.draws.sum() <= whole.draws.sum()


def test_a_model_is_left_as_it_was_also_in_train_mode(images: Tensor) -> None:
    model = small_network().train()
    model[1].eval()
    model[4].weight.requires_grad_(False)
    model[-1].weight.grad = torch.ones_like(model[-1].weight)
    before = copy.deepcopy(model.state_dict())
    modes = [module.training for module in model.modules()]
    flags = [p.requires_grad for p in model.parameters()]
    certify.certify(model, images, n=50, alpha=0.05)
    certify.predict(model, images, n=50)
    assert all(torch.equal(a, b) for a, b in zip(before.values(), model.state_dict().values(), strict=True))
    assert modes == [module.training for module in model.modules()]
    assert flags == [p.requires_grad for p in model.parameters()]
    assert model[-1].weight.grad.sum() == model[-1].weight.numel()


def test_train_mode_and_steering_do_not_move_the_result(images: Tensor) -> None:
    model = small_network()
    stock = certify.certify(model, images, n=200, alpha=0.05)
    assert same(stock, certify.certify(model.train(), images, n=200, alpha=0.05))
    assert same(stock, certify.certify(norm.steer(model), images, n=200, alpha=0.05))


def test_progress_counts_every_draw_once_spared_ones_included() -> None:
    model, x = at_distance(0.0, copies=3)
    seen = []
    certify.certify(model, x, n0=70, n=3000, progress=lambda what, done, total: seen.append((done, total)))
    assert seen[-1] == (3 * 3070, 3 * 3070)
    assert all(a[0] <= b[0] for a, b in pairwise(seen))


def test_the_certificate_says_where_the_statistics_come_from() -> None:
    model, x = at_distance(1.0)
    assert certify.certify(model, x, n=20).statistics == "as stored in the model"
    model.provenance = "frozen on 512 noisy training images"
    found = certify.certify(model, x, n=20)
    assert found.statistics == "frozen on 512 noisy training images"
    assert str(found).endswith("statistics frozen on 512 noisy training images")
    assert certify.certify(model, x, n=20, statistics="of my own").statistics == "of my own"


BAD = [
    ({"sigma": 0}, "sigma.*above 0, found 0"),
    ({"sigma": "-1/4"}, "sigma.*above 0, found -0.25"),
    ({"n0": 0}, "n0 must be 1 or more, found 0"),
    ({"n": 0}, "n must be 1 or more, found 0"),
    ({"n": 10.0}, "n must be a whole number, found 10.0"),
    ({"batch_size": 0}, "batch_size must be"),
    ({"alpha": 0}, "alpha.*between 0 and 1, found 0"),
    ({"alpha": 1}, "alpha.*between 0 and 1, found 1"),
    ({"give_up": 1.0}, "give_up"),
    ({"n": 5}, "5 samples can never certify"),
    ({"x": torch.full((1, 3, 2, 2), float("nan"))}, "NaN"),
    ({"x": torch.full((1, 3, 2, 2), 255.0)}, r"pixels must lie in \[0, 1\], found 255"),
    ({"x": torch.zeros(1, 3, 2, 2, dtype=torch.uint8)}, "floating point"),
    ({"x": torch.zeros(0, 3, 2, 2)}, "no images"),
    ({"x": torch.zeros(1, 3, 4, 4)}, r"cannot take images of shape \(3, 4, 4\)"),
]


@pytest.mark.parametrize(("changed", "sentence"), BAD)
def test_bad_input_is_refused_in_a_sentence(changed: dict, sentence: str) -> None:
    model, x = at_distance(1.0)
    with pytest.raises(BadInput, match=sentence):
        certify.certify(**{"model": model, "x": x, "n": 100, **changed})


def test_chunks_made_in_different_ways_are_not_joined() -> None:
    model, x = at_distance(1.0)
    a, b = (certify.certify(model, x, n=20, sigma=sigma) for sigma in (0.25, 0.5))
    with pytest.raises(BadInput, match=r"different sigma cannot be joined: \[0.25, 0.5\]"):
        certify.join([a, b])
    with pytest.raises(BadInput, match="no certificates"):
        certify.join([])


class Wide(nn.Module):
    """A network whose largest feature takes 50 MB for each image."""

    def __init__(self, numpy: bool = False) -> None:
        super().__init__()
        self.numpy, self.sizes = numpy, set[int]()
        self.conv = nn.Conv2d(3, 256, 1)

    def forward(self, x: Tensor) -> Tensor:
        self.sizes.add(len(x))
        if self.numpy:
            x.numpy()  # refuses an image with a gradient
        return self.conv(x)[:, :3].mean((2, 3))


def test_noisy_copies_of_large_images_go_through_the_network_a_few_at_a_time() -> None:
    model, x = Wide().eval(), torch.rand(1, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    result = certify.certify(model, x, n0=10, n=20, alpha=0.05)
    # 4 features of 51 MB at a time leave room for 7 images in 2 GB: 4, for two networks
    assert model.sizes <= {1, 2, 4}
    assert same(result, certify.certify(model, x, n0=10, n=20, alpha=0.05, batch_size=5))
    opaque = Wide(numpy=True).eval()
    opaque.load_state_dict(model.state_dict())
    assert same(result, certify.certify(opaque, x, n0=10, n=20, alpha=0.05))
