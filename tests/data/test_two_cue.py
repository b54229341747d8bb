"""Both cues can be read alone; one of them, provably, not by anything robust."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trimtab.data import ImageSet, TwoCue, load
from trimtab.data.two_cue import patterns
from trimtab.types import BadInput

EPS = 8 / 255


def small_network(classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 4, stride=4), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, classes),
    )  # fmt: skip


def trained(images: ImageSet, epochs: int = 4) -> nn.Module:
    torch.manual_seed(0)
    model = small_network(len(images.classes))
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    x, y, _ = images.take(torch.arange(len(images)))
    for _ in range(epochs):
        for part in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            F.cross_entropy(model(x[part] - 0.5), y[part]).backward()
            optimizer.step()
    return model.eval()


def pgd(model: nn.Module, x: Tensor, y: Tensor, steps: int = 20) -> Tensor:
    """Plain projected gradient ascent of the loss."""
    moved = x + torch.empty_like(x).uniform_(-EPS, EPS)
    for _ in range(steps):
        moved.requires_grad_(True)
        (gradient,) = torch.autograd.grad(F.cross_entropy(model(moved - 0.5), y), moved)
        moved = moved.detach() + EPS / 4 * gradient.sign()
        moved = torch.minimum(torch.maximum(moved, x - EPS), x + EPS).clamp(0, 1)
    return moved


def accuracies(cue: TwoCue) -> tuple[float, float]:
    """On the test set of the cue it was trained on: clean, and under PGD at 8/255."""
    model = trained(cue("train", 2000).images)
    x, y, _ = cue("test", 200).images.take(torch.arange(200))
    right = [(model(seen - 0.5).argmax(1) == y).float().mean() for seen in (x, pgd(model, x, y))]
    return float(right[0]), float(right[1])


@pytest.fixture(scope="module", autouse=True)
def one_thread():  # type: ignore[no-untyped-def]
    """Small networks are slowed down by threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_the_robust_cue_alone_is_learnt_and_survives_pgd() -> None:
    clean, robust = accuracies(TwoCue(faint="nothing"))
    assert clean >= 0.97
    assert robust >= 0.9


def test_the_faint_cue_alone_is_learnt_and_erased_by_pgd() -> None:
    clean, robust = accuracies(TwoCue(robust="nothing"))
    assert clean >= 0.97
    assert robust <= 0.02


def test_one_faint_cue_becomes_another_within_the_budget() -> None:
    """The proof that no classifier of the faint cue is robust at twice its amplitude."""
    label, following = TwoCue(faint="label")("test", 100), TwoCue(faint="next")("test", 100)
    assert torch.equal((label.faint + 1) % 10, following.faint)
    pattern = 4 * patterns(32)
    turned = label.images.images + pattern[following.faint] - pattern[label.faint]
    assert torch.equal(turned, following.images.images.float())
    assert (turned / 255 - label.images.images / 255).abs().max() <= EPS + 1e-7


def test_the_patterns_are_far_apart_and_without_mean() -> None:
    flat = patterns(32).flatten(1)
    assert torch.equal(flat.abs(), torch.ones_like(flat))
    assert torch.equal(flat.view(12, 3, -1).mean(2), torch.zeros(12, 3))
    cosines = flat @ flat.T / flat.shape[1]
    assert (cosines - torch.eye(12)).abs().max() <= 1 / 3 + 1e-6


def test_a_shift_or_a_mirror_image_only_changes_a_patterns_sign() -> None:
    p = patterns(32)
    for changed in (p.roll(1, 2), p.roll(1, 3), p.flip(2), p.flip(3)):
        assert torch.equal((changed * p).mean((1, 2, 3)).abs(), torch.ones(12))


def test_without_the_shape_the_faint_cue_is_the_nearest_pattern() -> None:
    made = TwoCue(robust="nothing")("test", 300)
    scores = (made.images.images.float() - 115).flatten(1) @ patterns(32)[:10].flatten(1).T
    assert torch.equal(scores.argmax(1), made.faint)


def test_the_shape_shows_in_the_means_of_the_colors() -> None:
    """Its classes are told by the mean color alone, by more than any change within 8/255 can move it."""
    made = TwoCue(faint="nothing", classes=3)("test", 300)
    means = made.images.images.float().mean((2, 3)) / 255  # (N, 3): red, green or blue
    strongest = means.topk(2).values
    assert torch.equal(means.argmax(1), made.robust)
    assert (strongest[:, 0] - strongest[:, 1]).min() > 2 * EPS


def test_cues_show_what_they_are_told_to() -> None:
    made = TwoCue(robust="next", faint="random")("train", 2000)
    assert torch.equal(made.robust, (made.images.labels + 1) % 10)
    assert 0.05 < (made.faint == made.images.labels).float().mean() < 0.15
    assert torch.equal(TwoCue(robust="nothing")("test", 5).robust, torch.full((5,), -1))


def test_images_are_a_function_of_seed_and_id_only() -> None:
    few, many = TwoCue()("test", 50).images, TwoCue()("test", 200).images
    assert few.digest == many.subset(slice(0, 50)).digest
    assert TwoCue(seed=1)("test", 50).images.digest != few.digest
    assert not torch.equal(TwoCue()("train", 50).images.images, few.images)


def test_switching_a_cue_off_changes_nothing_else() -> None:
    both, faint_off = TwoCue()("test", 50), TwoCue(faint="nothing")("test", 50)
    assert torch.equal(both.images.labels, faint_off.images.labels)
    difference = both.images.images.int() - faint_off.images.images.int()
    assert torch.equal(difference, (4 * patterns(32)[both.faint]).int())


def test_classes_are_balanced() -> None:
    counts = torch.bincount(TwoCue()("train", 2000).images.labels)
    assert ((counts - 200.0) ** 2 / 200).sum() < 30  # chi-square, 9 degrees of freedom: 99.96 %


def test_variants_load_by_name() -> None:
    assert load("two-cue:faint", "test").digest == TwoCue(robust="nothing")("test").images.digest
    with pytest.raises(BadInput, match="no variant 'loud'"):
        load("two-cue:loud")


@pytest.mark.parametrize("wrong", [{"classes": 13}, {"size": 33}, {"amplitude": 0}, {"robust": "off"}])
def test_impossible_sets_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(BadInput):
        TwoCue(**wrong)  # type: ignore[arg-type]
