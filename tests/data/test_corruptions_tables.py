"""The tables of constants: complete, the published ones, and used at the sizes they were made for."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.ndimage
import skimage.color
import torch
from PIL import Image
from tests.data.corruption_images import as_levels, as_tensor, photographs

from trimtab.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, corrupt
from trimtab.data.corruptions.tables import constants

ALL = CORRUPTIONS + EXTRA_CORRUPTIONS
SEVERITIES = (1, 2, 3, 4, 5)


def test_there_are_fifteen_and_four_with_five_severities_in_both_tables():
    assert (len(CORRUPTIONS), len(EXTRA_CORRUPTIONS)) == (15, 4)
    for table in map(constants, (32, 224)):
        assert set(table) == set(ALL)
        assert all(len(rows) == 5 for rows in table.values())


# The constants of CIFAR-10-C as they stand in hendrycks/robustness, ImageNet-C/create_c/make_cifar_c.py.
PUBLISHED_32 = {
    "gaussian_noise": "0.04 0.06 .08 .09 .10",
    "shot_noise": "500 250 100 75 50",
    "impulse_noise": ".01 .02 .03 .05 .07",
    "speckle_noise": ".06 .1 .12 .16 .2",
    "gaussian_blur": ".4 .6 0.7 .8 1",
    "glass_blur": "0.05,1,1 0.25,1,1 0.4,1,1 0.25,1,2 0.4,1,2",
    "defocus_blur": "0.3,0.4 0.4,0.5 0.5,0.6 1,0.2 1.5,0.1",
    "motion_blur": "6,1 6,1.5 6,2 8,2 9,2.5",
    "zoom_blur": "1.06,0.01 1.11,0.01 1.16,0.01 1.21,0.01 1.26,0.01",
    "fog": ".2,3 .5,3 0.75,2.5 1,2 1.5,1.75",
    "frost": "1,0.2,0.2 1,0.3,0.2 0.9,0.4,0.2 0.85,0.4,0.2 0.75,0.45,0.2",
    "snow": "0.1,0.2,1,0.6,8,3,0.95 0.1,0.2,1,0.5,10,4,0.9 0.15,0.3,1.75,0.55,10,4,0.9 "
    "0.25,0.3,2.25,0.6,12,6,0.85 0.3,0.3,1.25,0.65,14,12,0.8",
    "spatter": "0.62,0.1,0.7,0.7,0.5,0 0.65,0.1,0.8,0.7,0.5,0 0.65,0.3,1,0.69,0.5,0 "
    "0.65,0.1,0.7,0.69,0.6,1 0.65,0.1,0.5,0.68,0.6,1",
    "contrast": ".75 .5 .4 .3 0.15",
    "brightness": ".05 .1 .15 .2 .3",
    "saturate": "0.3,0 0.1,0 1.5,0 2,0.1 2.5,0.2",
    "jpeg_compression": "80 65 58 50 40",
    "pixelate": "0.95 0.9 0.85 0.75 0.65",
    "elastic_transform": "0,0,0.08 0.05,0.2,0.07 0.08,0.06,0.06 0.1,0.04,0.05 0.1,0.03,0.03",
}


@pytest.mark.parametrize("name", ALL)
def test_the_32_table_is_the_published_one(name):
    rows = [tuple(float(number) for number in row.split(",")) for row in PUBLISHED_32[name].split()]
    assert [tuple(map(float, row)) for row in constants(32)[name]] == rows


@pytest.mark.parametrize("severity", SEVERITIES)
def test_small_images_are_corrupted_with_the_32_table_by_the_named_libraries(severity):
    """The deterministic ones, remade with SciPy, scikit-image and Pillow from the published constants."""
    (image,) = photographs(32, 1)
    x, unit = as_tensor(image[None]), image / 255

    def constant(name: str) -> float:
        return float(PUBLISHED_32[name].split()[severity - 1].split(",")[0])

    hsv = skimage.color.rgb2hsv(unit)
    hsv[..., 2] = np.clip(hsv[..., 2] + constant("brightness"), 0, 1)
    mean = unit.mean(axis=(0, 1))
    side = int(32 * constant("pixelate"))
    small = Image.fromarray(image).resize((side, side), Image.Resampling.BOX)
    expected = {
        "brightness": skimage.color.hsv2rgb(hsv) * 255,
        "contrast": ((unit - mean) * constant("contrast") + mean) * 255,
        "gaussian_blur": scipy.ndimage.gaussian_filter(
            unit, constant("gaussian_blur"), mode="nearest", axes=(0, 1)
        )
        * 255,
        "pixelate": np.asarray(small.resize((32, 32), Image.Resampling.BOX)),
    }
    for name, levels in expected.items():
        assert np.abs(as_levels(corrupt(x, name, severity))[0] - np.floor(levels)).mean() <= 0.3, name


def test_the_table_follows_the_size_and_can_be_chosen():
    x = torch.full((1, 3, 64, 64), 0.5)
    assert torch.equal(corrupt(x, "contrast", 5), corrupt(x, "contrast", 5, table=32))
    noisy = {table: corrupt(x, "gaussian_noise", 1, table=table).std() for table in (32, 224)}
    assert noisy[32] == pytest.approx(0.04, rel=0.05)
    assert noisy[224] == pytest.approx(0.08, rel=0.05)
    large = torch.full((1, 3, 128, 128), 0.5)
    assert corrupt(large, "gaussian_noise", 1).std() == pytest.approx(0.08, rel=0.05)
