"""The corruptions against the package `imagecorruptions`, which has the 224 table.

Where it is deterministic, images agree; where it is random, they agree when both are fed the same random
numbers, and the distributions agree when they are not.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import cv2
import numpy as np
import pytest
import torch
from tests.data.corruption_images import as_levels, as_tensor, photographs, psnr
from tests.reference.imagecorruptions_oracle import chance, constants, corrupted, folder

from trimtab.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, apply, corrupt
from trimtab.data.corruptions.digital import affine_map
from trimtab.data.corruptions.tables import constants as table

IMAGENET_C = table(224)

SEVERITIES = (1, 2, 3, 4, 5)
FROST = folder() / "frost"
DETERMINISTIC = (
    "defocus_blur",
    "zoom_blur",
    "brightness",
    "contrast",
    "pixelate",
    "jpeg_compression",
    "gaussian_blur",
    "saturate",
)
RANDOM = tuple(name for name in CORRUPTIONS + EXTRA_CORRUPTIONS if name not in DETERMINISTIC)


@pytest.fixture(autouse=True)
def _one_thread():
    """Small tensors gain nothing from more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize("name", DETERMINISTIC)
def test_deterministic_corruptions_equal_the_package_within_a_level(name, severity):
    (image,) = photographs(224, 1)
    ours = as_levels(corrupt(as_tensor(image[None]), name, severity))[0]
    theirs = corrupted(image, name, severity).astype(float)
    assert np.abs(ours - theirs).mean() <= 1


@pytest.mark.parametrize("name", [n for n in IMAGENET_C if n not in ("elastic_transform", "frost")])
def test_the_224_table_is_the_package_s(name):
    assert [tuple(row) for row in IMAGENET_C[name]] == constants(name)


def test_frost_has_the_package_s_mixtures():
    assert [row[:2] for row in IMAGENET_C["frost"]] == constants("frost")


class Given:
    """Random numbers that are given instead of drawn: standard normal or uniform arrays by draw."""

    def __init__(self, **arrays: np.ndarray) -> None:
        self.arrays = arrays

    def _give(self, kind: str, shape: tuple[int, ...], draw: int) -> torch.Tensor:
        array = torch.from_numpy(np.asarray(self.arrays[f"{kind}{draw}"])).float()
        return array.reshape(1, *shape)

    def normal(self, *shape: int, draw: int = 0) -> torch.Tensor:
        return self._give("normal", shape, draw)

    def uniform(self, *shape: int, draw: int = 0) -> torch.Tensor:
        return self._give("uniform", shape, draw)


def ours_given(image: np.ndarray, name: str, severity: int, given: Given, **extra: str) -> np.ndarray:
    """Our arithmetic on given random numbers, cut to whole levels."""
    levels = torch.from_numpy(image).permute(2, 0, 1)[None].float()
    out = apply.FUNCTIONS[name](levels, given, *IMAGENET_C[name][severity - 1], **extra)
    return np.floor(out.clamp(0, 255)[0].permute(1, 2, 0).double().numpy() + 1e-3)


def difference(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.abs(ours - theirs.astype(float)).mean())


@pytest.fixture
def image() -> np.ndarray:
    return photographs(96, 1)[0]


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(5)


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize("name", ["gaussian_noise", "speckle_noise"])
def test_noise_equals_the_package_given_the_same_numbers(image, rng, name, severity):
    z = rng.normal(size=image.shape)
    with chance(normal=lambda size, scale: scale * z):
        theirs = corrupted(image, name, severity)
    assert difference(ours_given(image, name, severity, Given(normal0=z.transpose(2, 0, 1))), theirs) < 0.01


@pytest.mark.parametrize("severity", SEVERITIES)
def test_motion_blur_equals_the_package_given_the_same_angle(image, rng, severity):
    u = rng.uniform()
    with chance(uniform=lambda low, high: low + (high - low) * np.float32(u)):
        theirs = corrupted(image, "motion_blur", severity)
    assert difference(ours_given(image, "motion_blur", severity, Given(uniform0=u)), theirs) < 0.01


@pytest.mark.parametrize("severity", SEVERITIES)
def test_snow_equals_the_package_given_the_same_numbers(rng, severity):
    image = photographs(180, 1)[0]  # every enlargement fits it: else they keep a corner, we the middle
    z, u = rng.normal(size=image.shape[:2]), rng.uniform()
    with chance(
        normal=lambda size, loc, scale: loc + scale * z,
        uniform=lambda low, high: low + (high - low) * np.float32(u),
    ):
        theirs = corrupted(image, "snow", severity)
    assert difference(ours_given(image, "snow", severity, Given(normal0=z, uniform1=u)), theirs) < 0.05


def _pick(chosen: Iterator[float], low: int, high: int | None = None) -> int:
    """NumPy's `randint`: the picture by its number, then the corner by its share of the range."""
    value = next(chosen)
    return int(value) if high is None else int(value * high)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_frost_equals_the_package_given_the_same_piece_of_the_official_ice(image, severity):
    for which, down, right in ((0, 0.25, 0.875), (3, 0.75, 0.125), (4, 0.0, 0.5)):
        with chance(randint=partial(_pick, iter((which, down, right)))):
            theirs = corrupted(image, "frost", severity)
        given = Given(uniform0=np.array([(which + 0.5) / 5, down, right]))
        ours = ours_given(image, "frost", severity, given, textures=str(FROST))
        assert difference(ours, theirs) < 0.2


@pytest.mark.parametrize("severity", SEVERITIES)
def test_fog_equals_the_package_given_the_same_numbers(image, rng, severity):
    u = rng.uniform(size=(128, 128))
    steps = (128, 64, 32, 16, 8, 4, 2)
    grids = iter(
        [u[y::s, x::s] for s in steps for y, x in ((s // 2, s // 2), (0, s // 2), (s // 2, 0))]
    )  # in the order in which they fill the map

    def uniform(low: float, high: float, shape: tuple[int, int]) -> np.ndarray:
        return low + (high - low) * next(grids).reshape(shape)

    with chance(uniform=uniform):
        theirs = corrupted(image, "fog", severity)
    assert difference(ours_given(image, "fog", severity, Given(uniform0=u)), theirs) < 0.02


@pytest.mark.parametrize("severity", SEVERITIES)
def test_elastic_transform_equals_the_package_given_the_same_numbers(image, rng, severity):
    u = rng.uniform(size=(2, 96, 96))
    fields = iter(u)
    with chance(uniform=lambda low, high, size: low + (high - low) * next(fields)):
        theirs = corrupted(image, "elastic_transform", severity)
    assert difference(ours_given(image, "elastic_transform", severity, Given(uniform1=u)), theirs) < 0.02


def test_the_affine_part_of_the_elastic_transform_equals_opencv_s():
    image = photographs(32, 1)[0]
    shifts = np.array([[2.1, -1.3], [-0.4, 1.9], [1.0, 0.7]], np.float32)
    corners = np.array([[26, 26], [26, 6], [6, 6]], np.float32)  # of the square of two thirds, as published
    there = cv2.getAffineTransform(corners, corners + shifts)
    theirs = cv2.warpAffine(image.astype(np.float32), there, (32, 32), borderMode=cv2.BORDER_REFLECT_101)
    ys, xs = torch.meshgrid(torch.arange(32), torch.arange(32), indexing="ij")
    levels = torch.from_numpy(image).permute(2, 0, 1)[None].float()
    ours = affine_map(levels, torch.from_numpy(shifts)[None], ys, xs)[0].permute(1, 2, 0).numpy()
    assert difference(ours, theirs) < 0.5  # OpenCV reads at positions rounded to 1/32 pixel


@pytest.mark.parametrize("severity", SEVERITIES)
def test_spatter_nearly_equals_the_package_given_the_same_numbers(image, rng, severity):
    z = rng.normal(size=image.shape[:2])
    with chance(normal=lambda size, loc, scale: loc + scale * z):
        theirs = corrupted(image, "spatter", severity)
    ours = ours_given(image, "spatter", severity, Given(normal0=z))
    assert difference(ours, theirs) < (
        0.02 if severity > 3 else 0.5
    )  # water: exact against chamfer distances


@pytest.mark.parametrize("severity", SEVERITIES)
def test_glass_blur_equals_the_package_given_the_same_offsets(rng, severity):
    image = photographs(40, 1)[0]
    _, reach, rounds = IMAGENET_C["glass_blur"][severity - 1]
    side = 2 * reach
    cells = rng.integers(0, side**2, size=(rounds, 40, 40))
    inner = slice(40 - reach, reach, -1)  # the order of their loops
    offsets = iter([(c % side - reach, c // side - reach) for c in cells[:, inner, inner].flat])
    with chance(randint=lambda low, high, size: next(offsets)):
        theirs = corrupted(image, "glass_blur", severity)
    given = Given(**{f"uniform{k}": (cells[k] + 0.5) / side**2 for k in range(rounds)})
    assert difference(ours_given(image, "glass_blur", severity, given), theirs) < 0.02


@pytest.mark.parametrize("name", RANDOM)
def test_random_corruptions_have_the_package_s_mean_spread_and_psnr(name):
    """Within 0.02, 0.02 (of a range of 1) and 1 dB, and within four standard errors."""
    size, count = {"glass_blur": (40, 16), "frost": (64, 100), "fog": (64, 100)}.get(name, (64, 25))
    images = np.tile(photographs(size, min(count, 25)), (-(-count // 25), 1, 1, 1))
    np.random.seed(3)  # noqa: NPY002  the package draws from NumPy's global generator
    for severity in SEVERITIES:
        theirs = np.stack([corrupted(image, name, severity) for image in images]).astype(float)
        ours = as_levels(corrupt(as_tensor(images), name, severity, table=224, frost_textures=FROST))
        for tolerance, measure in (
            (0.02, lambda a: a.mean(axis=(1, 2, 3)) / 255),
            (0.02, lambda a: a.std(axis=(1, 2, 3)) / 255),
            (1.0, lambda a: psnr(a, images)),
        ):
            gaps = measure(ours) - measure(theirs)  # image by image: what they have in common cancels
            gap, error = abs(gaps.mean()), gaps.std() / count**0.5
            assert gap <= tolerance, (severity, tolerance, gap)
            assert gap <= 4 * error + 0.01 * tolerance, (severity, tolerance, gap, error)
