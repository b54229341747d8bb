"""Batches go where, and as wide as, a model is.

Where there is no GPU, width stands in for place: a network in double precision refuses images that were not
brought to it, as one on a GPU does.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from trimtab import construct, data
from trimtab.claims import lig
from trimtab.claims.bench import Bench, device
from trimtab.claims.scales import SMOKE
from trimtab.train import Event

FEW = replace(SMOKE, made=8)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    bench = Bench(FEW, 0, tmp_path_factory.mktemp("work"))
    return bench, bench.network(lig.BN).double()


@pytest.mark.parametrize("watch", [lig.over_training, lig.aligned])
def test_what_is_noted_during_training(trained, watch):
    bench, model = trained
    found = watch(bench)(Event("epoch", 1, 1, 0, {}, model))
    assert found
    assert all(isinstance(value, float) for value in found.values())


@pytest.mark.parametrize("kind", ["D_R", "D_rand"])
def test_constructed_sets(trained, kind, tmp_path):
    bench, model = trained
    images = bench.images("train", 8)
    construct.build(construct.construction(kind, steps=2), model, images, tmp_path / "made.npz")
    model.float()
    construct.build(construct.construction(kind, steps=2), model, images, tmp_path / "narrow.npz")
    model.double()
    wide, narrow = (pixels(tmp_path / name) for name in ("made.npz", "narrow.npz"))
    assert wide.dtype == narrow.dtype == torch.float32
    assert torch.allclose(wide, narrow, atol=1e-2)


def pixels(path):
    return next(iter(data.load(f"npz:{path}", "train").batches(8))).x


def test_painting_and_transfer(trained, tmp_path):
    bench, model = trained
    auto = construct.Autoencoder.of(model, "layer1")
    images = bench.images("train", 8)
    construct.train_decoder(auto, images, epochs=1, batch_size=4)
    construct.build(construct.AdvBNImages(auto, steps=1), model, images, tmp_path / "painted.npz")
    found = construct.transfer({"a": model}, {"b": model}, images, construct.Relabeled(steps=1))
    assert 0 <= found[0]["accuracy"] <= 1


def test_networks_and_batches_of_a_bench_are_in_one_place(trained):
    bench, model = trained
    batch = next(bench.batches(bench.images("test", 4), 4))
    assert batch.x.device == batch.y.device == next(model.parameters()).device == device()
