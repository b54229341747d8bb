"""Certified accuracy, the paper's envelope and its certified counterpart, on tables worked out by hand."""

from __future__ import annotations

import pytest
import torch

from trimtab import certify
from trimtab.types import BadInput


def certificates(
    sigma: float, classes: list[int], radii: list[float], first_id: int = 0, seed: int = 0
) -> certify.Certificates:
    n = len(classes)
    return certify.Certificates(
        ids=torch.arange(first_id, first_id + n),
        classes=torch.tensor(classes),
        radii=torch.tensor(radii, dtype=torch.float64),
        p_lower=torch.full((n,), 0.9),
        counts=torch.full((n,), 95),
        draws=torch.full((n,), 100),
        sigma=sigma,
        n0=100,
        n=100,
        alpha=0.001,
        seed=seed,
        statistics="frozen on 512 noisy training images",
    )


Y = torch.tensor([0, 1, 2, 3])
SMALL = certificates(0.25, [0, 1, 2, 0], [0.3, 0.2, 0.1, 0.3])  # three right, the last one wrong
LARGE = certificates(0.5, [0, 1, -1, 3], [0.9, 0.1, 0.0, 0.2])  # three right, one abstention


def test_accuracy_counts_right_classes_with_radius_enough_and_abstentions_as_wrong() -> None:
    found = certify.certified_accuracy(SMALL, Y, [0, 0.1, 0.2, "1/4", 0.5])
    assert found.accuracy == (0.75, 0.75, 0.5, 0.25, 0.0)
    assert certify.certified_accuracy(LARGE, Y, [0, 0.2]).accuracy == (0.75, 0.5)
    # Even a label of -1 does not make an abstention right.
    assert certify.certified_accuracy(LARGE, torch.tensor([0, 1, -1, 3]), [0]).accuracy == (0.75,)
    assert found.certified
    assert found.sigmas == (0.25,) * 5


def test_the_envelope_takes_each_image_at_its_largest_radius_and_says_what_it_is_not() -> None:
    # Image 3 has the larger radius at sigma 0.25, where its class is wrong.
    found = certify.envelope([SMALL, LARGE], Y, [0, 0.1, 0.2, 0.5])
    assert found.accuracy == (0.75, 0.75, 0.5, 0.25)
    assert not found.certified
    assert "the paper's envelope, not a certificate of one classifier" in str(found)
    assert "certified" not in str(found).split("\n", 1)[1]


def test_sigma_is_fixed_per_radius_on_held_out_images_and_judged_on_others() -> None:
    held_out_y = torch.tensor([0, 1])
    held_out = [
        certificates(0.25, [0, 1], [0.3, 0.3], first_id=100),
        certificates(0.5, [0, -1], [0.9, 0.0], first_id=100),
    ]
    found = certify.fixed_sigma_per_radius(held_out, held_out_y, [SMALL, LARGE], Y, [0.2, 0.8, 2.0])
    assert found.sigmas == (0.25, 0.5, 0.5)  # a tie at zero goes to the larger sigma
    assert found.accuracy == (0.5, 0.25, 0.0)
    assert found.certified
    assert "2 held-out images" in str(found)


def test_a_choice_that_knew_the_noise_is_refused() -> None:
    again = [certificates(c.sigma, c.classes.tolist(), c.radii.tolist(), seed=1) for c in (SMALL, LARGE)]
    certify.fixed_sigma_per_radius(again, Y, [SMALL, LARGE], Y, [0.2])
    with pytest.raises(BadInput, match="share seed and ids"):
        certify.fixed_sigma_per_radius([SMALL, LARGE], Y, [SMALL, LARGE], Y, [0.2])


def test_the_table_prints_percentages_under_their_radii() -> None:
    printed = str(certify.certified_accuracy(SMALL, Y, [0.1, 0.25])).splitlines()
    assert (
        printed[0]
        == "sigma 0.25, 4 images, n 100, alpha 0.001, statistics frozen on 512 noisy training images"
    )
    assert [line.split() for line in printed[1:]] == [
        ["radius", "0.1", "0.25"],
        ["certified", "75.0", "25.0"],
        ["sigma", "0.25", "0.25"],
    ]


def test_tables_that_do_not_fit_are_refused_in_a_sentence() -> None:
    other = certificates(0.5, [0, 1, 2, 3], [1.0] * 4, first_id=7)
    with pytest.raises(BadInput, match="4 certificates came with 3 labels"):
        certify.certified_accuracy(SMALL, Y[:3], [0.1])
    with pytest.raises(BadInput, match="not be negative"):
        certify.certified_accuracy(SMALL, Y, [-0.1])
    with pytest.raises(BadInput, match="same images"):
        certify.envelope([SMALL, other], Y, [0.1])
    with pytest.raises(BadInput, match="no certificates"):
        certify.envelope([], Y, [0.1])
    with pytest.raises(BadInput, match="same sigmas"):
        certify.fixed_sigma_per_radius([other], Y, [SMALL], Y, [0.1])


def test_labels_in_a_column_are_refused() -> None:
    made = certificates(0.5, [0, 1], [0.5, 0.5])
    y = torch.tensor([0, 1])
    for judged in (
        lambda y: certify.certified_accuracy(made, y, [0.1]),
        lambda y: certify.envelope([made], y, [0.1]),
    ):
        assert judged(y).accuracy == (1.0,)
        with pytest.raises(BadInput, match="one integer per image"):
            judged(y[:, None])
