"""Claims measure what their papers measured."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from trimtab import certify, construct
from trimtab.claims import ada, apa, lig, mix
from trimtab.claims.bench import Bench
from trimtab.claims.scales import SMOKE, scale_of
from trimtab.claims.verdicts import REFUTED, REPRODUCED, Above, Close
from trimtab.data import ImageSet
from trimtab.types import InputSpec


def sides(claim):
    return {(test.high, test.low) for test in claim.tests if isinstance(test, Above)}


def test_ada_2_certifies_static_networks_at_a_quarter_and_adapted_ones_at_half(tmp_path):
    bench = Bench(replace(SMOKE, certified=32, draws=200), 0, tmp_path)
    rows = ada.certificates.measure(bench)
    batch = next(bench.batches(bench.images("test", 32), 32))  # of all classes: some are certified
    for name, net, sigma in (
        ("Adv_inf", ada.ADV_INF, 0.25),
        ("Baseline", ada.BASELINE, 0.25),
        ("Rand", ada.RAND, 0.5),
    ):
        found = certify.certify(bench.network(net), batch.x, sigma, 100, 200, 0.001, seed=0, ids=batch.ids)
        for radius in (0.25, 0.5, 0.75):  # 200 samples reach 0.46 at sigma 0.25, and 0.91 at 0.5
            expected = float(((found.classes == batch.y) & (found.radii >= radius)).double().mean())
            assert rows[f"{name}, static, r = {radius:g}"] == pytest.approx(expected)
            assert (expected > 0) == (radius < 1.83 * sigma)
        assert rows[f"{name}, static, abstains"] == float((found.classes < 0).double().mean())


@pytest.mark.parametrize("scale", ["smoke", "laptop", "paper"])
def test_rand_is_trained_under_the_noise_that_it_is_certified_at(scale):
    assert float(ada.RAND.at(scale_of(scale, "ada"), 0).objective.sigma) == 0.5 == ada.ADAPTED_SIGMA


def test_ada_2_reports_the_radii_of_table_6():
    assert ada.RADII == (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 2.75)


def test_mix_10_takes_the_floor_of_the_clean_network_for_none():
    (close,) = [test for test in mix.tuned_norms.tests if isinstance(test, Close)]
    assert (close.a, close.b) == ("BNs tuned to adversarial, robust", "clean only, robust")

    def verdict(tuned):
        rows = [{close.a: tuned + wobble, close.b: 0.016} for wobble in (-0.002, 0.0, 0.002)]
        return close.judge(rows).verdict

    assert verdict(0.02) == REPRODUCED
    assert verdict(0.15) == REFUTED  # not chance (0.1) is what the clean network has


def test_apa_3_claims_no_gain_of_mixup_over_apart():
    assert apa.with_mixup.figures["APART"] == "79.05"
    assert sides(apa.with_mixup) == {
        ("APART + mixup", "standard + mixup, 1x"),
        ("APART + mixup", "standard + mixup, 2x"),
    }


class Wrong(nn.Module):
    """Classifies by the mean of the blue channel, whatever the labels are."""

    def __init__(self):
        super().__init__()
        self.features, self.head = nn.Flatten(), nn.Linear(12, 3)

    def forward(self, x):
        return self.head(torch.relu(self.features(x)))


def test_a_source_is_scored_by_its_own_predictions():
    torch.manual_seed(0)
    source = Wrong().eval()
    images = ImageSet(
        torch.randint(0, 256, (30, 3, 2, 2), dtype=torch.uint8),
        torch.arange(30) % 3,
        tuple("abc"),
        "random",
        InputSpec((2, 2)),
    )
    (row,) = construct.transfer({"weak": source}, {"itself": source}, images)
    assert row["accuracy"] == 1.0  # it agrees with itself, though most labels are not what it predicts
    with torch.no_grad():
        right = (source(images.take(torch.arange(30)).x).argmax(1) == images.labels).double().mean()
    assert float(right) < 0.6


def test_lig_5_lets_the_source_label_what_it_made(tmp_path, monkeypatch):
    bench, asked = Bench(SMOKE, 0, tmp_path), []
    real = construct.transfer
    monkeypatch.setattr(
        construct, "transfer", lambda *given, **how: asked.append(given[3]) or real(*given, **how)
    )
    rows = lig.transfer.measure(bench)
    assert asked[0].label == "network"
    assert all(0 <= rows[f"from {name}"] <= 1 for name in ("BN", "none", "adversarially trained"))


def test_lig_7_measures_robust_accuracy_under_adversarial_training(tmp_path):
    rows = lig.under_adversarial_training.measure(Bench(SMOKE, 0, tmp_path))
    close = {(test.a, test.b) for test in lig.under_adversarial_training.tests if isinstance(test, Close)}
    assert ("adversarial, BN, PGD", "adversarial, none, PGD") in close
    assert 0 <= rows["adversarial, BN, PGD"] <= rows["adversarial, BN, clean"] <= 1


def test_lig_9_asks_for_a_very_low_ligs_and_not_only_a_lower_one():
    asked = [test for test in lig.constructed.tests if isinstance(test, Above) and test.low == "D_rand, LIGS"]
    (test,) = [test for test in asked if not isinstance(test.high, str)]
    low, high = ([{"D_rand, LIGS": level + 0.01 * seed} for seed in range(3)] for level in (0.1, 0.6))
    assert test.judge(low).verdict == REPRODUCED
    assert test.judge(high).verdict == REFUTED
    assert str(test).startswith("0.3 > D_rand, LIGS")


def test_lig_11_expects_selu_to_be_higher():
    assert ("SELU, LIGS", "as it is, LIGS") in sides(lig.other_factors)
    close = [test.a for test in lig.other_factors.tests if isinstance(test, Close)]
    assert "SELU, LIGS" not in close
    assert len(close) == len(lig.VARIANTS) - 1


@pytest.mark.parametrize("method", [construct.features, construct.labels])
def test_constructed_sets_cite_the_sections_that_define_them(method):
    assert "(LIGS), sections 4.2, B.3 and E\n" in method.__doc__


def test_the_lig_students_and_fixup_are_trained_as_in_the_paper():
    paper, laptop = scale_of("paper", "lig"), scale_of("laptop", "lig")
    for name, net in lig.ON.items():
        recipe = net.at(paper, 0)
        assert recipe.model == "net:resnet18_cifar" + ",norm=none" * name.endswith("none")
        assert (recipe.epochs, recipe.schedule.milestones) == (150, (50, 100))
    fixup = lig.SHORTCUTS["Fixup"]
    assert (fixup.at(paper, 0).optimizer.small_lr, fixup.at(laptop, 0).optimizer.small_lr) == (0.1, 1)
