"""The second edition: every committed verdict follows from the committed outcomes, by the rules alone."""

from __future__ import annotations

import base64
import json
import math
import struct
import zlib
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
from scipy import stats

from trimtab import claims
from trimtab.claims import ada, ledger, page, plan
from trimtab.claims.claim import Claim
from trimtab.claims.engines import Unit, with_networks
from trimtab.claims.power import PerImage, detectable
from trimtab.claims.result import Result, settings, summary
from trimtab.claims.scales import WAVE1, scale_of
from trimtab.claims.verdicts import Above, Needs

RESULTS = Path(__file__).parents[2] / "docs" / "results"
DESK = RESULTS / "desk"
CONTENT = json.loads((DESK / "ledger.json").read_text())
ENTRIES = {entry["id"]: entry for entry in CONTENT["claims"]}
MEASURED = [id for id, entry in ENTRIES.items() if entry["seeds"]]


def unpacked(text):
    """Two bits per image (1, -1), k-ths as bytes, or float32; written without the code that packs them."""
    head, _, packed = text.partition(":")
    if head.endswith("/f"):
        return [value for (value,) in struct.iter_unpack("<f", zlib.decompress(base64.b64decode(packed)))]
    n, k = map(int, head.split("/"))
    if k:
        return [(byte - 256 * (byte > 127)) / k for byte in zlib.decompress(base64.b64decode(packed))]
    bits = [(byte >> (7 - place)) & 1 for byte in base64.b64decode(packed) for place in range(8)]
    return [plus - minus for plus, minus in zip(bits[:n], bits[n : 2 * n], strict=True)]


@pytest.mark.parametrize("id", MEASURED)
def test_every_mean_is_that_of_its_outcomes(id):
    held = json.loads((DESK / f"{id}.json").read_text())
    outcomes = [
        (seed, name, values)
        for seed, packed in held["outcomes"].items()
        for name, text in packed.items()
        if text
        for values in [unpacked(text)]
    ]
    for seed, name, values in outcomes:
        assert held["rows"][seed][name] == pytest.approx(fmean(values), abs=1e-9), (seed, name)


def test_every_committed_verdict_follows_from_the_committed_outcomes():
    for id, claim in claims.everything().items():
        result = ledger.read(claim, "desk", RESULTS)
        assert not result.outdated, id  # a change of its settings would discard hours
        recomputed = json.loads(json.dumps(summary(result)))
        assert approximately(recomputed) == {key: approximately(ENTRIES[id][key]) for key in recomputed}, id
        if id in MEASURED:
            held = json.loads((DESK / f"{id}.json").read_text())
            assert {key: approximately(held[key]) for key in recomputed} == approximately(recomputed), id


def approximately(value):
    if isinstance(value, float):
        return pytest.approx(value, rel=1e-6, abs=1e-9)
    if isinstance(value, list):
        return [approximately(item) for item in value]
    return {k: approximately(v) for k, v in value.items()} if isinstance(value, dict) else value


def test_the_page_is_that_of_the_data_and_an_unfinished_ledger_says_so():
    text = (DESK / "ledger.md").read_text()
    assert text == page.page(CONTENT)
    unfinished = CONTENT["units done"] < CONTENT["units"]
    assert (f"{CONTENT['units done']} of {CONTENT['units']} units" in text) == unfinished


def test_what_is_committed_is_found_under_the_keys_of_today():
    planned = [claims.everything()[id] for row in WAVE1 for id in row.ids]
    units = list(
        with_networks([Unit(c.id, "desk", seed, "") for c, seed in ledger.in_order(planned, "desk")])
    )
    keys = {unit.network for unit in units if unit.network}
    published = {path.parent.name for path in DESK.glob("networks/*/model.safetensors")}
    assert published <= keys
    assert ledger.times(RESULTS, "desk").get("networks", {}).keys() <= keys
    assert plan.budget(planned, "desk", RESULTS).done == CONTENT["units done"]
    assert CONTENT["units"] == len(units)
    assert sum(path.stat().st_size for path in DESK.rglob("*") if path.is_file()) < 80_000_000


def test_the_keys_of_the_desk_are_those_of_its_committed_results():
    """A change of these keys discards results that took hours: it needs a reason."""
    known = claims.everything()
    at = scale_of("desk", "ada")
    assert {name: net.key(at, 0) for name, net in ada.NETWORKS.items()} == {
        "Adv_inf": "b8ed39d7232de09c",
        "Adv_2": "71855a762a0e5a6e",
        "Baseline": "5aa199d98a5c72a0",
        "Rand": "25be309341bf4ffc",
    }
    assert {f"ADA-{k}": settings(known[f"ADA-{k}"], "desk")[:12] for k in range(1, 11)} == {
        "ADA-1": "687f65799741",
        "ADA-2": "bed91aa75f8d",
        "ADA-3": "51b4b931e9b5",
        "ADA-4": "0b715a221126",
        "ADA-5": "abf75b0c95c0",
        "ADA-6": "47112bebe074",
        "ADA-7": "172576acda32",
        "ADA-8": "401f5042b511",
        "ADA-9": "feaeb0210e82",
        "ADA-10": "5053903ef67c",
    }


# ---- a thousand simulated ledgers ------------------------------------------------------------------------

LEDGERS, SEEDS, STD = 1000, 3, 0.02
EFFECT = detectable(STD, SEEDS)


def simulated(effect, learned=1.0):
    """Verdicts of a claim of one part, `effect` planted, whose precondition is `learned` at least 0.5."""
    rng, found = np.random.default_rng(11), []
    test = Above("high", "low", effect=0.01)
    claim = Claim("ADA-1", "Planted", {"a": "1"}, [test], lambda bench: {}, needs=[Needs("learned", 0.5)])
    for gains in rng.normal(effect, STD, (LEDGERS, SEEDS)):
        rows = {seed: {"high": 0.5 + gain, "low": 0.5, "learned": learned} for seed, gain in enumerate(gains)}
        found.append(Result(claim, "desk", rows).verdict)
    return found


def test_a_planted_effect_is_found_with_the_stated_power_in_a_thousand_ledgers():
    count = simulated(EFFECT).count("reproduced")
    assert stats.binomtest(count, LEDGERS, 0.8).pvalue > 0.001
    assert simulated(EFFECT / 2).count("reproduced") < count < simulated(2 * EFFECT).count("reproduced")


def test_a_planted_null_is_not_found_in_a_thousand_ledgers():
    found = simulated(0.0)
    assert stats.binomtest(found.count("reproduced"), LEDGERS, 0.025).pvalue > 0.001


def test_an_effect_of_interest_is_not_refuted_in_a_thousand_ledgers():
    found = simulated(0.01)  # just of interest: refuted by chance in 2.5 % of ledgers at most
    assert found.count("not reproduced") <= stats.binom.ppf(0.999, LEDGERS, 0.025)
    assert simulated(-EFFECT).count("not reproduced") > 0.8 * LEDGERS


def test_a_claim_of_many_parts_is_refuted_by_chance_in_at_most_one_of_forty_ledgers():
    """Each of six parts has just the smallest effect of interest: Holm's procedure guards the whole."""
    rng, refuted = np.random.default_rng(12), 0
    names = [f"part {number}" for number in range(6)]
    claim = Claim("ADA-1", "Planted", {"a": "1"}, [Above(name, 0.0) for name in names], lambda bench: {})
    for gains in rng.normal(0.01, STD, (LEDGERS, 5, 6)):
        rows = {seed: dict(zip(names, row, strict=True)) for seed, row in enumerate(gains)}
        refuted += Result(claim, "desk", rows).verdict == "not reproduced"
    assert refuted <= stats.binom.ppf(0.999, LEDGERS, 0.025)


def test_without_its_precondition_no_ledger_concludes_anything():
    assert set(simulated(EFFECT, learned=0.4)) == set(simulated(-EFFECT, learned=0.4)) == {"setting too weak"}


def test_over_seeds_and_images_a_planted_effect_is_found_and_a_null_is_not():
    """Outcomes of images that all seeds share: the error of the images counts, too."""
    rng = np.random.default_rng(5)
    test, images, seeds = Above("gain", 0.0, effect=0.02), 200, 4
    error = math.sqrt(0.01**2 / seeds + 0.2**2 / images + 0.2**2 / (images * seeds))

    def found(effect):
        total = 0
        for _ in range(LEDGERS // 4):
            shared = rng.normal(0, 0.01, (seeds, 1)) + rng.normal(0, 0.2, (1, images))
            values = effect + shared + rng.normal(0, 0.2, (seeds, images))
            total += test.judge([{"gain": PerImage(row)} for row in values]).verdict == "reproduced"
        return total / (LEDGERS // 4)

    planted = detectable(error * math.sqrt(seeds), seeds)
    assert found(planted) > 0.7
    assert found(0.0) < 0.06
