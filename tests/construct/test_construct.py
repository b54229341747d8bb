"""Constructed sets: features match, labels are as defined, a killed build goes on.

Also tests construct.advbn_images, construct.autoencoder, construct.build, construct.labels,
construct.transfer.
"""

import copy
import json
from dataclasses import dataclass, fields
from typing import ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from trimtab import construct, data, models, norm
from trimtab.construct import AdvBNImages, Autoencoder, FeatureMatch, Relabeled, train_decoder
from trimtab.construct.features import straight_through
from trimtab.data import ImageSet
from trimtab.types import BadInput, InputSpec


@pytest.fixture(scope="module")
def images():
    g = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (40, 3, 16, 16), generator=g, dtype=torch.uint8)
    return ImageSet(pixels, torch.arange(40) % 4, tuple("abcd"), "random", InputSpec((16, 16)))


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    net = models.build("resnet8", classes=4, width=4).train()
    with torch.no_grad():
        net(torch.rand(64, 3, 16, 16))
    return models.wrap(net, InputSpec((16, 16))).eval()


def test_matching_brings_the_penultimate_features_together(model, images):
    batch = images.take(torch.arange(8))
    near, y = FeatureMatch(steps=40, step=0.2)(model, batch, images)
    far, _ = FeatureMatch(steps=0)(model, batch, images)
    features = models.penultimate(model)
    with torch.no_grad():
        goal = features(batch.x)
        before, after = ((features(x) - goal).norm(dim=1).mean() for x in (far, near))
    assert after < 0.5 * before
    assert torch.equal(y, batch.y)
    assert float(near.min()) >= 0
    assert float(near.max()) <= 1


def starts(model, images, batch, **how):
    """Which image of the set each image starts from."""
    start, _ = FeatureMatch(steps=0, **how)(model, batch, images, seed=1)
    everything = images.take(torch.arange(len(images))).x.flatten(1)
    distance = (start.flatten(1)[:, None] - everything[None]).abs().amax(2)
    assert float(distance.amin(1).max()) == 0
    return distance.argmin(1)


def test_the_start_is_an_image_of_another_label(model, images):
    batch = images.take(torch.arange(40))
    found = starts(model, images, batch)
    assert not bool((images.labels[found] == batch.y).any())
    assert len(set(found.tolist())) > 20
    part = images.take(torch.arange(8, 16))  # a function of seed and id, whatever the batch
    assert torch.equal(starts(model, images, part), found[8:16])


def test_the_start_may_be_any_image(model, images):
    found = starts(model, images, images.take(torch.arange(40)), start="any")
    assert sorted(found.tolist()) == list(range(40))  # a permutation of the set
    assert bool((images.labels[found] == images.labels).any())


def test_images_of_one_label_have_no_start_of_another(model, images):
    alike = images.subset((images.labels == 1).nonzero()[:, 0])
    with pytest.raises(BadInput, match="all images of the set have the same label"):
        FeatureMatch(steps=0)(model, alike.take(torch.arange(2)), alike)


class SharedRelu(nn.Module):
    """One ReLU module called twice, and a functional one at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.relu = nn.Linear(4, 4), nn.Linear(4, 4), nn.ReLU()

    def forward(self, x):
        return torch.relu(self.b(self.relu(self.a(x))))


def test_gradients_pass_straight_through_the_last_relu_only():
    torch.manual_seed(0)
    net = SharedRelu().double()
    traced = torch.fx.symbolic_trace(net)
    through = straight_through(traced)
    x = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    assert torch.equal(through(x), net(x))
    (grad,) = torch.autograd.grad(through(x).sum(), x)
    inner = (net.a(x) > 0).double() * net.b.weight.sum(0)  # by hand: the last ReLU as the identity
    torch.testing.assert_close(grad, inner @ net.a.weight)


def test_relabeled_images_stay_near_and_are_read_as_their_new_label(model, images):
    batch = images.take(torch.arange(40))
    for target, wanted in (("next", (batch.y + 1) % 4), ("random", None)):
        x, t = Relabeled(target, steps=60, step=0.1)(model, batch, images, seed=0)
        assert float((x - batch.x).flatten(1).norm(dim=1).max()) <= 0.5 + 1e-5
        if wanted is not None:
            assert torch.equal(t, wanted)
        else:
            assert set(t.tolist()) == {0, 1, 2, 3}
        with torch.no_grad():
            read, unread = (F.cross_entropy(model(images), t) for images in (x, batch.x))
        assert read < unread


def test_a_killed_build_goes_on_and_gives_the_same_file(model, images, tmp_path, monkeypatch):
    monkeypatch.setitem(construct.build.__globals__, "CHUNK", 16)
    method = Relabeled(steps=2)
    whole = construct.build(method, model, images, tmp_path / "whole.npz")

    class Killed(Exception):
        pass

    def die(done, total):
        if done >= 32:
            raise Killed

    with pytest.raises(Killed):
        construct.build(method, model, images, tmp_path / "parts.npz", progress=die)
    assert not (tmp_path / "parts.npz").exists()
    calls = []
    resumed = construct.build(Counting(method, calls), model, images, tmp_path / "parts.npz")
    assert calls == [8]  # only the last chunk was left to do
    a, b = (np.load(path) for path in (whole, resumed))
    assert np.array_equal(a["images"], b["images"])
    assert np.array_equal(a["labels"], b["labels"])
    assert sorted(tmp_path.iterdir()) == sorted([whole, resumed])


class Counting:
    """The same construction under the same name, counting its calls."""

    def __new__(cls, method, calls):
        class Spy(type(method)):
            def __call__(self, model, batch, images, seed=0):
                calls.append(len(batch.y))
                return super().__call__(model, batch, images, seed)

        Spy.__name__ = type(method).__name__
        return Spy(**{field.name: getattr(method, field.name) for field in fields(method)})


def test_a_finished_set_is_not_repeated_and_another_not_overwritten(model, images, tmp_path):
    calls = []
    method = Relabeled(steps=1)
    out = construct.build(method, model, images, tmp_path / "set.v1")
    assert out.name == "set.v1.npz"
    assert construct.build(Counting(method, calls), model, images, tmp_path / "set.v1") == out
    assert calls == []
    with pytest.raises(BadInput, match="another set"):
        construct.build(Relabeled(steps=2), model, images, tmp_path / "set.v1")


def test_a_set_by_another_mean_or_another_branch_is_another_set(model, images, tmp_path):
    construct.build(Relabeled(steps=1), model, images, tmp_path / "set")
    other = models.wrap(model.net, InputSpec((16, 16), mean=(0.4, 0.4, 0.4), std=(0.3, 0.3, 0.3)))
    branched = norm.add_branch(norm.steer(copy.deepcopy(model)), "adv")
    out = construct.build(Relabeled(steps=1), branched, images, tmp_path / "main")
    with pytest.raises(BadInput, match="another set"):
        construct.build(Relabeled(steps=1), other, images, tmp_path / "set")
    with norm.use(branched, branch="adv"), pytest.raises(BadInput, match="another set"):
        construct.build(Relabeled(steps=1), branched, images, out)


def test_the_model_of_an_autoencoder_keeps_its_modes_and_flags():
    net = models.wrap(models.build("resnet8", classes=4, width=4), InputSpec((16, 16))).train()
    Autoencoder.of(net, "net.layer1")
    assert all(m.training for m in net.modules())
    assert all(p.requires_grad for p in net.parameters())


def test_a_built_set_loads_as_data_with_its_provenance(model, images, tmp_path):
    out = construct.build(
        Relabeled("next", steps=1), model, images, tmp_path / "det", provenance={"kind": "D_det"}
    )
    loaded = data.load(f"npz:{out}", "train")
    assert len(loaded) == 40
    assert torch.equal(loaded.labels, (images.labels + 1) % 4)
    about = json.loads(str(np.load(out)["provenance"]))
    assert about["kind"] == "D_det"
    assert about["data"] == images.digest


def test_features_transfer_to_the_network_they_came_from(model, images):
    torch.manual_seed(5)
    other = models.wrap(models.build("resnet8", classes=4, width=4), InputSpec((16, 16))).eval()
    rows = construct.transfer({"own": model}, {"own": model, "other": other}, images, Relabeled(steps=60))
    share = {row["target"]: row["accuracy"] for row in rows}
    assert share["own"] > share["other"]


def test_advbn_images_hurt_more_than_their_reconstructions(model, images):
    auto = Autoencoder.of(model, "net.layer1")
    error = train_decoder(auto, images, epochs=12, batch_size=20, lr=5e-3)
    assert error < 0.08  # uniform noise has a variance of 1/12
    batch = images.take(torch.arange(40))
    plain, _ = AdvBNImages(auto, identical=True)(model, batch, images)
    hurt, _ = AdvBNImages(auto)(model, batch, images)
    with torch.no_grad():
        assert F.cross_entropy(model(hurt), batch.y) > F.cross_entropy(model(plain), batch.y)
        painted = auto.decode(auto.encode(batch.x[:32]), (16, 16))
    torch.testing.assert_close(plain[:32], painted)


def test_a_set_is_built_of_whole_batches_that_share_a_perturbation(model, images, tmp_path, monkeypatch):
    sizes = []

    @dataclass(frozen=True)
    class Shared:
        batch: int = 7
        version: ClassVar[int] = 1

        def __call__(self, model, batch, images, seed=0):
            sizes.extend(len(part) for part in batch.x.split(self.batch))
            return batch.x, batch.y

    monkeypatch.setitem(construct.build.__globals__, "CHUNK", 16)
    construct.build(Shared(), model, images, tmp_path / "seven")
    assert sizes == [7, 7, 7, 7, 7, 5]


def test_a_decoder_is_trained_once_and_the_set_goes_on_with_it(model, images, tmp_path, monkeypatch):
    trained = []

    def train(auto, images, epochs, seed, progress):
        trained.append(seed)
        return train_decoder(auto, images, epochs, seed=seed)

    monkeypatch.setitem(construct.trained_autoencoder.__globals__, "train_decoder", train)
    first = construct.trained_autoencoder(model, "net.layer1", images, tmp_path, epochs=1)
    again = construct.trained_autoencoder(model, "net.layer1", images, tmp_path, epochs=1)
    assert trained == [0]
    x = images.take(torch.arange(2)).x
    assert torch.equal(*(auto.decode(auto.encode(x), (16, 16)) for auto in (first, again)))
    construct.trained_autoencoder(model, "net.layer1", images, tmp_path, epochs=1, seed=5)
    construct.trained_autoencoder(model, "net.layer1", images.subset(slice(0, 20)), tmp_path, epochs=1)
    assert trained == [0, 5, 0]

    few = images.subset(slice(0, 8))
    out = construct.build(AdvBNImages(first, steps=1), model, few, tmp_path / "set")
    with torch.no_grad():
        next(again.decoder.parameters()).mul_(1 + 1e-6)  # as other threads would have trained it
    assert construct.build(AdvBNImages(again, steps=1), model, few, tmp_path / "set") == out


def test_a_decoder_learns_from_fewer_images_than_a_batch(model, images):
    auto = Autoencoder.of(model, "net.layer1")
    assert train_decoder(auto, images.subset(slice(0, 8)), epochs=1) > 0
    with pytest.raises(BadInput, match="found -1"):
        train_decoder(auto, images, epochs=-1)


def test_bad_input_is_told():
    with pytest.raises(BadInput, match="no construction"):
        construct.construction("D_X")
    with pytest.raises(BadInput, match="label must be"):
        FeatureMatch(label="mine")
    with pytest.raises(BadInput, match="target must be"):
        Relabeled(target="best")
