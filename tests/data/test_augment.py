"""Augmentations against what they are by definition; AugMix's operations against Pillow's.

Also tests data.augmix.
"""

import itertools

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from trimtab import rng
from trimtab.data import Loader, augmix
from trimtab.data.augment import crop, flip, jitter, parse_augment, random_resized_crop, rotate
from trimtab.data.sets import ImageSet, from_arrays
from trimtab.types import BadInput

N = 400
PIXELS = torch.randint(0, 256, (N, 7, 9, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def draw(k: int, n: int = N) -> Tensor:
    return rng.scalars(0, range(n), k)


def test_flip_mirrors_half_of_the_images() -> None:
    flipped = flip(PIXELS, 1.0, draw)
    mirrored, same = ((flipped == image).flatten(1).all(1) for image in (PIXELS.flip(2), PIXELS))
    assert torch.equal(mirrored, ~same)
    assert 0.4 < mirrored.float().mean() < 0.6


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_crop_shifts_each_image_by_a_shift_of_its_own(dtype: torch.dtype) -> None:
    pixels = (PIXELS if dtype == torch.uint8 else PIXELS / 255).to(dtype)
    shifted = crop(pixels, 2.0, draw)
    padded = np.pad(pixels.numpy(), ((0, 0), (2, 2), (2, 2), (0, 0)))
    seen = set()
    for image, around in zip(shifted.numpy(), padded, strict=True):
        shifts = [
            (top, left)
            for top, left in itertools.product(range(5), range(5))
            if np.array_equal(image, around[top : top + 7, left : left + 9])
        ]
        assert len(shifts) == 1
        seen.add(shifts[0])
    assert len(seen) == 25


def factors(k: int, strength: float) -> list[float]:
    return (1 + strength * (2 * draw(k) - 1)).tolist()


def test_jitter_is_pillows_brightness_contrast_and_color() -> None:
    out = (255 * jitter(PIXELS, 0.25, draw)).numpy()
    steps = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
    each = zip(*(factors(k, 0.25) for k in range(3)), strict=True)
    for image, found, by in zip(PIXELS.numpy(), out, each, strict=True):
        expected = Image.fromarray(image)
        for enhance, factor in zip(steps, by, strict=True):
            expected = enhance(expected).enhance(factor)
        assert np.abs(np.asarray(expected) - found).max() < 3.5  # Pillow rounds after each of the three
    for k in range(3):
        assert 0.75 <= min(factors(k, 0.25)) < 0.78
        assert 1.22 < max(factors(k, 0.25)) <= 1.25


def test_images_without_color_are_jittered_too() -> None:
    gray = PIXELS[..., :1]
    out = jitter(gray, 0.25, draw)
    assert out.shape == gray.shape
    assert torch.allclose(jitter(gray.expand(N, 7, 9, 3), 0.25, draw)[..., :1], out, atol=1e-5)


@pytest.mark.parametrize("size", [(40, 40), (30, 50)])
def test_rotate_is_pillows_rotation_inside_the_image(size: tuple[int, int]) -> None:
    height, width = size
    down, across = np.mgrid[:height, :width]
    image = (127 + 60 * np.sin(across / 6) + 60 * np.cos(down / 5)).astype(np.uint8)
    pixels = torch.from_numpy(image)[None, :, :, None].repeat(20, 1, 1, 3)
    out = (255 * rotate(pixels, 10.0, lambda k: draw(k, 20))).numpy()
    angles = (10 * (2 * draw(0, 20) - 1)).tolist()
    assert min(angles) < -5
    assert max(angles) > 5
    for angle, found in zip(angles, out, strict=True):
        expected = np.asarray(Image.fromarray(image).rotate(angle, Image.Resampling.BILINEAR))
        assert np.abs(expected - found[..., 0])[10:-10, 10:-10].max() < 2
    assert out[:, 0].min() == 0  # black comes in


def test_a_jitter_beyond_black_is_refused() -> None:
    with pytest.raises(BadInput, match=r"out of range; the usual strength is jitter:0\.25"):
        parse_augment(["jitter:2"])


def test_random_resized_crop_of_a_ramp_is_a_ramp_inside_it() -> None:
    """Bilinear interpolation keeps linear functions, so the slope tells the size of the part."""
    size = 16
    ramp = torch.arange(size).float() / size
    across = ramp.expand(N, size, size)
    pixels = torch.stack([across, across.transpose(1, 2), across], dim=3)
    out = random_resized_crop(pixels, 0.25, draw)[:, 4:-4, 4:-4]  # away from the border
    slopes = [(out[:, 0, 1:, 0] - out[:, 0, :-1, 0]) * size, (out[:, 1:, 0, 1] - out[:, :-1, 0, 1]) * size]
    for slope in slopes:
        assert torch.allclose(slope, slope[:, :1].expand_as(slope), atol=1e-4)
    wide, tall = (slope[:, 0] for slope in slopes)
    assert (wide * tall).min() > 0.2
    assert wide.max() <= 1 + 1e-4
    assert tall.max() <= 1 + 1e-4
    assert (wide / tall).max() <= 4 / 3 + 1e-3
    assert (wide / tall).min() >= 3 / 4 - 1e-3
    assert (wide * tall).max() > 0.9
    assert out.min() >= 0
    assert out.max() <= 1


def plain(n: int = 64) -> ImageSet:
    """Each image is plain, as bright as its label says."""
    labels = torch.arange(n) % 6
    return from_arrays(
        (labels * 51).to(torch.uint8)[:, None, None, None].expand(n, 1, 12, 12).contiguous(), labels
    )


@pytest.mark.parametrize("name", ["mixup", "cutmix"])
def test_mixed_labels_are_the_shares_of_the_mixed_images(name: str) -> None:
    brightness = torch.arange(6) / 5
    weights = []
    for epoch in range(20):
        for x, y, ids in Loader(plain(), 16, augment=(name,), epoch=epoch):
            assert y.dtype == torch.float32
            assert torch.allclose(y.sum(1), torch.ones(len(y)))
            assert torch.allclose(x.mean((1, 2, 3)), y @ brightness, atol=1e-5)
            own = y[torch.arange(len(y)), ids % 6]
            partners_differ = own < 1
            if partners_differ.any():
                weights.append(float(own[partners_differ][0]))
            if name == "cutmix":
                assert all(len(image.unique()) <= 2 for image in x)
    assert min(weights) < 0.2
    assert max(weights) > 0.8


def test_mixup_weights_follow_their_beta_distribution() -> None:
    def weights(alpha: str) -> Tensor:
        batches = (next(iter(Loader(plain(2), 2, augment=(f"mixup:{alpha}",), epoch=e))) for e in range(300))
        return torch.tensor([float(batch.y[0].max()) for batch in batches])

    # the larger share of Beta(a, a): 3/4 in the mean for a = 1, near 1/2 for large a, near 1 for small a
    assert abs(weights("1").mean() - 0.75) < 0.03
    assert weights("100").mean() < 0.55
    assert weights("0.05").mean() > 0.93


def test_both_mixtures_take_turns() -> None:
    batches = [b for e in range(10) for b in Loader(plain(), 16, augment=("mixup", "cutmix"), epoch=e)]
    cut = [max(len(image.unique()) for image in batch.x) == 2 for batch in batches]
    assert 8 <= sum(cut) <= 32  # of 40


LEVELS = torch.randint(0, 256, (8, 3, 24, 20), generator=torch.Generator().manual_seed(2)).float()
SMOOTH = (
    torch.nn.functional.interpolate(LEVELS[:, :, :6, :5], size=(24, 20), mode="bicubic").clamp(0, 255).round()
)


def through_pillow(levels: Tensor, operation) -> Tensor:  # type: ignore[no-untyped-def]
    images = [Image.fromarray(image.permute(1, 2, 0).to(torch.uint8).numpy()) for image in levels]
    return torch.stack(
        [torch.from_numpy(np.array(operation(image))).permute(2, 0, 1) for image in images]
    ).float()


@pytest.mark.parametrize("levels", [LEVELS, SMOOTH, SMOOTH // 3 + 40, torch.full((2, 3, 24, 20), 9.0)])
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (lambda x: augmix.autocontrast(x, x), ImageOps.autocontrast),
        (lambda x: augmix.equalize(x, x), ImageOps.equalize),
        (lambda x: augmix.posterize(x, torch.full((len(x),), 0.1)), lambda i: ImageOps.posterize(i, 4)),
        (lambda x: augmix.posterize(x, torch.full((len(x),), 0.3)), lambda i: ImageOps.posterize(i, 3)),
        (lambda x: augmix.solarize(x, torch.full((len(x),), 0.25)), lambda i: ImageOps.solarize(i, 192)),
    ],
)
def test_pointwise_operations_equal_pillows(levels: Tensor, ours, theirs) -> None:  # type: ignore[no-untyped-def]
    assert torch.equal(ours(levels), through_pillow(levels, theirs))


BILINEAR = Image.Resampling.BILINEAR


@pytest.mark.parametrize(
    ("kind", "level", "theirs"),
    [
        (0, 0.3, lambda i: i.rotate(9, resample=BILINEAR)),
        (0, -0.2, lambda i: i.rotate(-6, resample=BILINEAR)),
        (1, 0.3, lambda i: i.transform(i.size, Image.Transform.AFFINE, (1, 0.09, 0, 0, 1, 0), BILINEAR)),
        (2, -0.3, lambda i: i.transform(i.size, Image.Transform.AFFINE, (1, 0, 0, -0.09, 1, 0), BILINEAR)),
        (3, 0.3, lambda i: i.transform(i.size, Image.Transform.AFFINE, (1, 0, 2, 0, 1, 0), BILINEAR)),
        (4, -0.25, lambda i: i.transform(i.size, Image.Transform.AFFINE, (1, 0, 0, 0, 1, -2), BILINEAR)),
    ],
)
def test_moves_equal_pillows_inside_the_image(kind: int, level: float, theirs) -> None:  # type: ignore[no-untyped-def]
    n = len(SMOOTH)
    ours = augmix.move(SMOOTH, torch.full((n,), kind), torch.full((n,), level))
    difference = (ours - through_pillow(SMOOTH, theirs)).abs()[:, :, 5:-5, 5:-5]  # borders differ
    assert difference.max() <= 1.01


def augmixed(x: Tensor, severity: float = 3.0) -> Tensor:
    return augmix.augmix(x, severity, lambda k: draw(k, len(x)))


def test_augmix_stays_in_range() -> None:
    out = augmixed(torch.rand(64, 3, 16, 16))
    assert out.min() >= 0
    assert out.max() <= 1 + 1e-6


def test_augmix_changes_images_more_at_higher_severity() -> None:
    x = SMOOTH.repeat(8, 1, 1, 1) / 255
    change = [(augmixed(x, severity) - x).abs().mean() for severity in (1.0, 3.0, 10.0)]
    assert change[0] < change[1] < change[2]


def test_the_weights_of_augmix_add_up_to_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(augmix, "operate", lambda levels, *_: levels)
    x = SMOOTH.repeat(8, 1, 1, 1) / 255
    assert torch.allclose(augmixed(x), x, atol=1e-6)


def test_augmix_keeps_a_uniform_share_of_the_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(augmix, "operate", lambda levels, *_: torch.zeros_like(levels))
    share = augmixed(torch.ones(400, 1, 2, 2))[:, 0, 0, 0]
    assert abs(share.mean() - 1 / 2) < 0.06  # four deviations
    assert abs(share.var() - 1 / 12) < 0.015


def test_a_chain_has_one_to_three_operations_and_all_nine_occur(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Tensor] = []
    monkeypatch.setattr(augmix, "operate", lambda levels, number, *_: (drawn.append(number), levels)[1])
    augmixed(torch.zeros(400, 1, 2, 2))
    steps = torch.stack(drawn)  # (3, chains)
    lengths = torch.bincount((steps >= 0).sum(0), minlength=4)
    assert lengths[0] == 0
    assert ((lengths[1:] - 400) ** 2 / 400).sum() < 18.4  # chi-square, 2 degrees of freedom: 99.99 %
    assert set(steps.unique().tolist()) == set(range(-1, 9))
