"""The same grid as Ray tasks gives the same bytes; without Ray one sentence says how to get it."""

from __future__ import annotations

import importlib.util
import json
import sys

import pytest

from trimtab import claims
from trimtab.claims import ledger, mix
from trimtab.claims.scales import scale_of
from trimtab.types import BadInput

HERE = importlib.util.find_spec("ray") is not None


@pytest.mark.slow
@pytest.mark.skipif(not HERE, reason="Ray is not installed")
@pytest.mark.filterwarnings("default")  # Ray's own
def test_ray_gives_the_bytes_that_a_local_run_gives(tmp_path):
    selected = claims.chosen(["MIX-8", "MIX-10"])  # they share a network, and one starts from another
    for engine in ("local", "ray"):
        ledger.run(
            selected, "smoke", tmp_path / engine, tmp_path / f"{engine}-work", engine=engine, threads=1
        )
    for claim in selected:
        first, second = (tmp_path / engine / "smoke" / f"{claim.id}.json" for engine in ("local", "ray"))
        assert first.read_bytes() == second.read_bytes()
    trained = [len(ledger.times(tmp_path / engine, "smoke")["networks"]) for engine in ("local", "ray")]
    distinct = {net for claim in selected for net in claim.nets(scale_of("smoke", claim.paper))}
    assert trained == [2 * len(distinct)] * 2  # two seeds


@pytest.mark.slow
@pytest.mark.skipif(not HERE, reason="Ray is not installed")
@pytest.mark.filterwarnings("default")  # Ray's own
def test_on_ray_what_breaks_ends_only_what_rests_on_it(tmp_path):
    # A folder lies where the lock of one network should be: MIX-15 rests on it, MIX-6 does not.
    key = mix.ADV_8.key(scale_of("smoke", "mix"), 0)
    (tmp_path / "work" / "networks" / f"{key}.lock").mkdir(parents=True)
    selected = claims.chosen(["MIX-15", "MIX-6"])
    results = ledger.run(selected, "smoke", tmp_path, tmp_path / "work", seeds=1, engine="ray", threads=1)
    assert [(one.seeds, list(one.failed)) for one in results] == [([], [0]), ([0], [])]
    held = json.loads((tmp_path / "smoke" / "MIX-15.json").read_text())
    assert held["verdict"] == "inconclusive"
    assert held["failed"]["0"].startswith("IsADirectoryError in bench.py")


def test_without_ray_one_sentence_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)  # an import of it fails, as where it is not installed
    with pytest.raises(BadInput, match=r"pip install 'trimtab\[ray\]'"):
        ledger.run(claims.chosen(["MIX-8"]), "smoke", tmp_path, tmp_path, engine="ray")
