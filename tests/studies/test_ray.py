"""The same grid as Ray tasks gives the same bytes; without Ray one sentence says how to get it."""

from __future__ import annotations

import importlib.util

import pytest

from trimtab import studies
from trimtab.studies import ledger
from trimtab.types import BadInput

HERE = importlib.util.find_spec("ray") is not None


@pytest.mark.skipif(not HERE, reason="Ray is not installed")
@pytest.mark.filterwarnings("default")  # Ray's own
def test_ray_gives_the_bytes_that_a_local_run_gives(tmp_path):
    claims = studies.chosen(["MIX-8", "MIX-10"])  # they share a network, and one starts from another
    for engine in ("local", "ray"):
        ledger.run(claims, "smoke", tmp_path / engine, tmp_path / f"{engine}-work", engine=engine, threads=1)
    for claim in claims:
        first, second = (tmp_path / engine / "smoke" / f"{claim.id}.json" for engine in ("local", "ray"))
        assert first.read_bytes() == second.read_bytes()
    trained = [len(ledger.times(tmp_path / engine, "smoke")["networks"]) for engine in ("local", "ray")]
    assert trained == [8, 8]


@pytest.mark.skipif(HERE, reason="Ray is installed")
def test_without_ray_one_sentence_says_how_to_get_it(tmp_path):
    with pytest.raises(BadInput, match=r"pip install 'trimtab\[ray\]'"):
        ledger.run(studies.chosen(["MIX-8"]), "smoke", tmp_path, tmp_path, engine="ray")
