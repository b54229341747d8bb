"""What is gathered for a page comes from the model, the data and the store that were given."""

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from trimtab import measure, models, norm, train
from trimtab.attacks import FGSM, Linf
from trimtab.data import ImageSet, as_set, corrupt, load
from trimtab.evaluate import Clean, Corrupted, run, runs
from trimtab.models import build
from trimtab.report import gather, page
from trimtab.report.tables import bn_modes


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Bright(nn.Module):
    """Calls dark images boots and bright ones bags."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        light = self.scale * 10 * (x.mean((1, 2, 3)) - 0.3)
        return torch.stack([-light, light], 1)


@pytest.fixture(scope="module")
def images() -> ImageSet:
    """32 images whose label is whether they are bright."""
    drawn = load("sample", "test").subset(slice(0, 32))
    bright = drawn.take(torch.arange(32)).x.mean((1, 2, 3)) > 0.3
    return ImageSet(drawn.images, bright.long(), ("boot", "bag"), "bright", drawn.spec)


def test_trials_cover_norm_states_and_batch_sizes_and_stay_out_of_the_list_of_runs(
    images: ImageSet, tmp_path: Path
) -> None:
    store = tmp_path / "store.sqlite"
    model = build("resnet8", classes=images.classes, input=images.spec, width=4).eval()
    card = run(model, images, [Clean()], store, name="net")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = gather(model, images, card, store, sample=32)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert len(bn_modes(found.trials["net"])) == 3
    assert sorted(found.batch_sizes["net"]) == [8, 16]
    assert not found.audits["net"].sound  # its running statistics were never trained
    assert [one.card for one in runs(store)] == [card]


@pytest.mark.parametrize("kept", [True, False])
def test_examples_were_right_before_and_are_wrong_after(images: ImageSet, tmp_path: Path, kept: bool) -> None:
    store = tmp_path / "store.sqlite"
    suite = [FGSM(Linf("32/255")), Corrupted("fog", 5)]
    card = run(Bright(), images, suite, store, keep_images=kept, force=True)
    found = gather(Bright(), images, card, store)
    titles = {one.title.split(":")[0] for one in found.galleries}
    assert titles == ({"Attacked", "Corrupted"} if kept else {"Corrupted"})
    for gallery in found.galleries:
        assert gallery.pictures
        assert {picture.caption for picture in gallery.pictures} <= {"boot → bag", "bag → boot"}
    assert not found.trials  # it has no statistics to try


class Own(nn.BatchNorm2d):
    """A batch norm with a forward pass of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 1.0


def test_what_needs_steering_is_left_out_of_a_model_that_cannot_be_steered(
    images: ImageSet, tmp_path: Path
) -> None:
    store = tmp_path / "store.sqlite"
    net = nn.Sequential(nn.Conv2d(1, 4, 3), Own(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    card = run(net.eval(), images, [Clean()], store, name="net", examine=False)
    found = gather(net, images, card, store)
    assert [layer.kind for layer in found.audits["net"].layers] == ["batch"]
    assert (found.trials, found.batch_sizes, found.charts) == ({}, {}, ())
    assert "cannot be steered" in page([card], tmp_path / "page.html", extras=found).read_text()


def test_images_too_small_to_corrupt_are_tried_without_corruptions(tmp_path: Path) -> None:
    store = tmp_path / "store.sqlite"
    torch.manual_seed(0)
    model = build("resnet8", classes=2, width=4).eval()
    small = as_set((torch.rand(16, 3, 16, 16), torch.arange(16) % 2))
    card = run(model, small, [Clean()], store, name="net", examine=False)
    found = gather(model, small, card, store)
    assert {row.kind for row in found.trials["net"].rows} == {"clean", "noise"}
    assert sorted(found.batch_sizes["net"]) == [8]
    assert "28 x 28 pixels" in page([card], tmp_path / "page.html", extras=found).read_text()


def test_charts_show_tolerance_branches_and_the_path_of_a_watched_run(tmp_path: Path) -> None:
    sample = load("sample", "test").subset(slice(0, 64))
    told = {"objective": "mixture", "epochs": 2, "model": "net:resnet8,width=4"}
    watch = [measure.usefulness(sample)]
    train.fit(None, None, train.read_recipe("smoke", told), tmp_path / "run", callbacks=watch)
    model = models.load(f"file:{tmp_path / 'run'}").eval()
    store = tmp_path / "store.sqlite"
    card = run(model, sample, [Clean()], store, name=f"file:{tmp_path / 'run'}")
    tolerance, branches, path = (chart.to_dict() for chart in gather(model, sample, card, store).charts)
    told_accuracy = {row["series"]: row["value"] for row in tolerance["data"]["values"] if row["shift"] == 0}
    assert set(told_accuracy.values()) == {round(100 * card.rows[0].accuracy, 2)}
    means = [row["value"] for row in branches["data"]["values"] if row["series"] == "adv"]
    wanted = norm.running(model, "adv")["net.bn1"].mean
    torch.testing.assert_close(torch.tensor(means), wanted, atol=0, rtol=1e-3)
    assert [row["epoch"] for row in path["data"]["values"]] == [1, 2]


def test_examples_of_a_batch_normalized_model_show_what_adapting_predicts(
    images: ImageSet, tmp_path: Path
) -> None:
    model = models.load("zoo:sample-standard")
    drawn = load("sample", "test").subset(slice(0, 64))
    store = tmp_path / "store.sqlite"
    card = run(model, drawn, [Clean(), Corrupted("fog", 5)], store, name="net", examine=False)
    (gallery,) = gather(model, drawn, card, store, sample=16, steering=False).galleries
    x, y, ids = drawn.take(torch.arange(64))
    stock = copy.deepcopy(model).train()  # plain PyTorch: statistics of the batch
    with torch.no_grad():
        adapted = stock(corrupt(x, "fog", 5, ids=ids)).argmax(1)
        before, after = (model.eval()(z).argmax(1) for z in (x, corrupt(x, "fog", 5, ids=ids)))
    chosen = ((before == y) & (after != y)).nonzero()[:6, 0].tolist()
    wanted = [
        f"{drawn.classes[before[k]]} → {drawn.classes[after[k]]}; adapted: {drawn.classes[adapted[k]]} "
        f"{'✓' if adapted[k] == y[k] else '✗'}"
        for k in chosen
    ]
    assert [picture.caption for picture in gallery.pictures] == wanted
    assert "Adapted" in gallery.about
