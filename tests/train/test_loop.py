"""The loop: policies, averages, what is chosen, what is written, and what happens when things go wrong.

Also tests train._loop.callbacks, train._loop.checkpoint, train._loop.fit, train._loop.plan,
train._loop.result, train._loop.runs, train._loop.start, train._loop.work.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import pickle
import resource
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
import yaml
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from trimtab import models, norm, train
from trimtab.attacks import FGSM, PGD, AutoAttack, Linf
from trimtab.data import Loader
from trimtab.data import load as load_set
from trimtab.data.folder import FolderSet, open_folder
from trimtab.data.sets import ImageSet, from_arrays
from trimtab.train._loop import checkpoint
from trimtab.train._loop.result import _images_of_rank
from trimtab.train._loop.start import network, training_sets
from trimtab.train.recipe import Data, Norm, OptimizerConfig, Recipe, Schedule, Validation
from trimtab.types import BadInput, InputSpec

CLASSES = 4


def tiny(norm_layers: bool = True) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8) if norm_layers else nn.Identity(), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, CLASSES),
    )  # fmt: skip


def images(n: int = 48) -> ImageSet:
    """The class is a bright corner: easy to learn."""
    g = torch.Generator().manual_seed(1)
    pixels = torch.randint(128, (n, 3, 8, 8), generator=g, dtype=torch.uint8)
    labels = torch.arange(n) % CLASSES
    for i, label in enumerate(labels.tolist()):
        pixels[i, :, 4 * (label // 2) :, 4 * (label % 2) :][:, :4, :4] += 100
    return from_arrays(pixels, labels)


def recipe(**changes: object) -> Recipe:
    plain: dict[str, object] = {
        "data": Data(augment=(), validation=16),
        "optimizer": OptimizerConfig(lr=0.05),
        "schedule": Schedule(kind="constant"),
        "epochs": 2,
        "batch_size": 8,
    }
    return Recipe(**(plain | changes))  # type: ignore[arg-type]


def state(run: train.Run) -> dict[str, Tensor]:
    assert run.model is not None
    return {key: value.clone() for key, value in run.model.state_dict().items()}


def same(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


# ---- what it does with a batch ------------------------------------------------------------------------


def test_accumulated_gradients_are_those_of_the_whole_batch(tmp_path: Path) -> None:
    whole, parts = (
        state(train.fit(tiny(False).double(), images(), recipe(accumulate=k), tmp_path / str(k)))
        for k in (1, 4)
    )
    for key in whole:
        torch.testing.assert_close(whole[key], parts[key], rtol=0, atol=1e-12)


def test_clipping_bounds_the_step(tmp_path: Path) -> None:
    sgd = OptimizerConfig(lr=1.0, momentum=0.0, weight_decay=0.0)
    one_step = recipe(clip=1e-3, optimizer=sgd, epochs=1, data=Data(augment=(), images=8, validation=0))
    before = tiny(False).state_dict()
    after = state(train.fit(tiny(False), images(), one_step, tmp_path / "run"))
    moved = torch.cat([(after[key] - before[key]).flatten() for key in before]).norm()
    assert float(moved) == pytest.approx(1e-3, rel=1e-3)


def test_mixed_labels_and_bf16_train(tmp_path: Path) -> None:
    how = recipe(data=Data(augment=("flip", "mixup"), validation=0), precision="bf16-mixed")
    run = train.fit(tiny(), images(), how, tmp_path / "run")
    assert all(row["loss"] > 0 for row in run.metrics())


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch's tracer looks at it itself
def test_a_compiled_network_trains_as_the_plain_one(tmp_path: Path) -> None:
    plain, compiled = (
        state(train.fit(tiny(), images(), recipe(epochs=1, compile=how), tmp_path / str(how)))
        for how in (None, "eager")
    )
    for key in plain:
        torch.testing.assert_close(plain[key], compiled[key])


def test_a_network_with_convolutions_in_three_dimensions_trains(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Unflatten(1, (1, 3)), nn.Conv3d(1, 4, 3), nn.BatchNorm3d(4), nn.Flatten())
    net.append(nn.Linear(144, CLASSES))
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    run = train.fit(net, images(), recipe(epochs=1), tmp_path / "run")
    after = state(run)
    assert [name for name, value in before.items() if torch.equal(value, after[name])] == []


def test_the_callers_random_numbers_are_left_alone(tmp_path: Path) -> None:
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    train.fit(tiny_as_it_is(), images(), recipe(epochs=1), tmp_path / "run")
    assert torch.equal(torch.rand(3), expected)


def tiny_as_it_is() -> nn.Module:
    with torch.random.fork_rng():
        return tiny()


# ---- norm policies ------------------------------------------------------------------------------------


@pytest.mark.parametrize("learn", [False, True])
def test_running_statistics_serve_in_the_last_epochs(learn: bool, tmp_path: Path) -> None:
    seen: list[tuple[str | None, Tensor]] = []

    def watch(event: train.Event) -> None:
        if event.kind == "step":
            (layer,) = norm.layers(event.model).values()
            seen.append((layer.setting.source, layer.running_mean.clone()))

    how = recipe(
        epochs=3, norm=Norm(running_epochs=1, running_learn=learn), data=Data(augment=(), validation=16)
    )
    train.fit(tiny(), images(), how, tmp_path / "run", [watch])
    assert [source for source, _ in seen] == [None] * 8 + ["running"] * 4
    assert torch.equal(seen[7][1], seen[-1][1]) is not learn


def test_only_norm_parameters_train_if_the_recipe_says_so(tmp_path: Path) -> None:
    before = tiny().state_dict()
    after = state(train.fit(tiny(), images(), recipe(norm=Norm(only=True)), tmp_path / "run"))
    changed = {key for key in before if not torch.equal(before[key], after[key])}
    assert {"1.weight", "1.bias"} <= changed
    assert all(key.startswith("1.") for key in changed)


def test_frozen_norm_layers_stay_as_they_are(tmp_path: Path) -> None:
    before = tiny().state_dict()
    after = state(train.fit(tiny(), images(), recipe(norm=Norm(frozen=True)), tmp_path / "run"))
    changed = {key for key in before if not torch.equal(before[key], after[key])}
    assert changed == {"0.weight", "0.bias", "5.weight", "5.bias"}


# ---- averages, validation, choice ---------------------------------------------------------------------


def test_the_average_follows_the_weights_and_gets_statistics_of_its_own(tmp_path: Path) -> None:
    decay, path = 0.7, [tiny().state_dict()["5.weight"].clone()]
    train.fit(
        tiny(), images(), recipe(), tmp_path / "plain",
        [lambda e: path.append(e.model.state_dict()["5.weight"].clone()) if e.kind == "step" else None],
    )  # fmt: skip
    average = path[0]
    for value in path[1:]:
        average = decay * average + (1 - decay) * value
    run = train.fit(tiny(), images(), recipe(ema=decay), tmp_path / "average")
    torch.testing.assert_close(state(run)["5.weight"], average)
    fresh = tiny()
    fresh.load_state_dict(state(run))
    norm.recalibrate(norm.steer(fresh), images().subset(slice(0, 32)).batches(8))
    torch.testing.assert_close(state(run)["1.running_mean"], fresh[1].running_mean)


def test_the_average_gets_statistics_of_the_images_that_it_was_trained_on(tmp_path: Path) -> None:
    """Noise makes the first layer's variance several times larger: that of the average, too."""
    how = recipe(objective=train.Gaussian(sigma=1.0), ema=0.5)
    run = train.fit(tiny(), images(), how, tmp_path / "run")
    assert run.model is not None
    x = images().take(torch.arange(32)).x
    with torch.no_grad():
        noisy = run.model[0](x + torch.randn(x.shape, generator=torch.Generator().manual_seed(3)))
        clean = run.model[0](x)
    found = state(run)["1.running_var"]
    assert float((found / noisy.var((0, 2, 3)) - 1).abs().max()) < 0.2
    assert float((found / clean.var((0, 2, 3))).min()) > 2


def test_every_branch_of_an_average_gets_its_own_statistics(tmp_path: Path) -> None:
    attack = PGD(Linf("64/255"), steps=2)
    run = train.fit(tiny(), images(), recipe(objective=train.Mixture(attack), ema=0.9), tmp_path / "run")
    assert run.model is not None
    fresh = copy.deepcopy(run.model)
    main, adv = (norm.layers(run.model)["1"].statistics_holder(branch) for branch in ("main", "adv"))
    again = norm.recalibrate(fresh, images().subset(slice(0, 32)).batches(8))
    expected = norm.layers(again)["1"].statistics_holder("main")
    torch.testing.assert_close(main.running_mean, expected.running_mean)
    assert not torch.allclose(main.running_mean, adv.running_mean)


@pytest.mark.parametrize("policy", [Norm(frozen=True), Norm(running_epochs=2)])
def test_an_average_keeps_statistics_that_do_not_learn(tmp_path: Path, policy: Norm) -> None:
    before = tiny().state_dict()["1.running_mean"]
    run = train.fit(tiny(), images(), recipe(norm=policy, ema=0.9), tmp_path / "run")
    torch.testing.assert_close(state(run)["1.running_mean"], before)


def test_an_average_keeps_layers_that_the_user_froze(tmp_path: Path) -> None:
    net = norm.steer(nn.Sequential(tiny(), nn.BatchNorm1d(CLASSES)))
    norm.freeze(net[0])
    before = {key: value.clone() for key, value in net.state_dict().items()}
    after = state(train.fit(net, images(), recipe(ema=0.9), tmp_path / "run"))
    assert torch.equal(after["0.1.running_mean"], before["0.1.running_mean"])
    assert not torch.equal(after["1.running_mean"], before["1.running_mean"])


@pytest.mark.parametrize("held", ["in memory", "read by a loader"])
def test_a_set_that_comes_class_by_class_is_mixed_before_it_is_split(held: str) -> None:
    by_class = images().subset(images().labels.argsort(stable=True))
    data: Any = by_class
    if held == "read by a loader":
        whole = by_class.take(torch.arange(len(by_class)))
        data = DataLoader(TensorDataset(whole.x, whole.y), batch_size=4, shuffle=True)
    how = recipe(data=Data(validation=16))
    trained, held_out = training_sets(data, how)
    assert held_out is not None
    assert len(set(trained.labels.tolist())) == len(set(held_out.labels.tolist())) == CLASSES
    mixed, _ = training_sets(images(), how)
    assert torch.equal(mixed.ids, torch.arange(32))  # one that is mixed stays as it is


def test_a_branch_that_cannot_be_validated_is_told_before_the_first_step(tmp_path: Path) -> None:
    how = recipe(validation=Validation(branch="adv"), data=Data(validation=8))
    with pytest.raises(BadInput, match="no branch 'adv'; this model has main"):
        train.fit(tiny(), images(), how, tmp_path / "run")


def test_a_run_that_is_refused_leaves_the_folder_as_it_was(tmp_path: Path) -> None:
    how = recipe(validation=Validation(branch="adv"), data=Data(validation=8))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("kept")
    for folder in ("new", "mine"):
        with pytest.raises(BadInput, match="no branch"):
            train.fit(tiny(), images(), how, tmp_path / folder)
    assert [path.name for path in sorted(tmp_path.rglob("*"))] == ["mine", "notes.txt"]


def test_a_refused_run_takes_nothing_from_one_that_has_ended(tmp_path: Path) -> None:
    run = train.fit(tiny(), images(), recipe(), tmp_path / "run")
    run.last.unlink()
    before = sorted(run.folder.rglob("*"))
    with pytest.raises(BadInput, match="already contains a run"):
        train.fit(tiny(), images(), recipe(), run.folder)
    assert sorted(run.folder.rglob("*")) == before


def test_a_run_whose_weights_are_broken_from_the_start_leaves_no_folder(tmp_path: Path) -> None:
    net = tiny()
    next(net.parameters()).data[0] = torch.nan
    with pytest.raises(train.Diverged):
        train.fit(net, images(), recipe(), tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_a_run_whose_first_step_is_refused_leaves_its_name_free(tmp_path: Path) -> None:
    net = nn.Sequential(tiny(), nn.Unflatten(1, (CLASSES, 1)))
    with pytest.raises(BadInput, match="logits"):
        train.fit(net, images(), recipe(), tmp_path / "run")
    assert not list(tmp_path.iterdir())
    train.fit(tiny(), images(), recipe(), tmp_path / "run")


def test_the_epoch_that_was_chosen_is_told(tmp_path: Path) -> None:
    how = recipe(validation=Validation(choose="clean"), data=Data(validation=16), epochs=4)
    run = train.fit(tiny(), images(), how, tmp_path / "run")
    rows = run.metrics()
    best = max(row["clean"] for row in rows)
    first = next(row for row in rows if row["clean"] == best)
    assert run.chosen == first
    told = json.loads((tmp_path / "run" / "model.json").read_text())["provenance"]
    assert told["epoch"] == first["epoch"]


def test_a_run_does_not_go_on_with_another_recipe(tmp_path: Path) -> None:
    def stop(event: train.Event) -> None:
        if event.kind == "epoch":
            raise KeyboardInterrupt

    whole = train.fit(tiny(), images(), recipe(), tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train.fit(tiny(), images(), recipe(), tmp_path / "run", [stop])
    file = tmp_path / "run" / "recipe.yaml"
    before = file.read_text()
    file.write_text(before.replace("momentum: 0.9", "momentum: 0.5"))
    with pytest.raises(BadInput, match=r"recipe\.yaml has changed since the run started"):
        train.resume(tmp_path / "run", tiny(), images())
    file.write_text(before)
    assert same(state(train.resume(tmp_path / "run", tiny(), images())), state(whole))


def test_a_second_training_of_the_same_network_trains_all_of_it(tmp_path: Path) -> None:
    net = tiny()
    for number, policy in enumerate((Norm(only=True), Norm(frozen=True), Norm())):
        before = {key: value.clone() for key, value in net.state_dict().items()}
        train.fit(net, images(), recipe(norm=policy), tmp_path / str(number))
        moved = {key for key, value in net.state_dict().items() if not torch.equal(value, before[key])}
        assert ("0.weight" in moved) == (not policy.only)
        assert ("1.weight" in moved) == ("1.running_mean" in moved) == (not policy.frozen)
    assert all(p.requires_grad for p in net.parameters())


def test_what_the_user_froze_stays_frozen(tmp_path: Path) -> None:
    net = tiny()
    net[0].weight.requires_grad_(False)
    train.fit(net, images(), recipe(norm=Norm(only=True)), tmp_path / "run")
    assert [name for name, p in net.named_parameters() if not p.requires_grad] == ["0.weight"]


@pytest.mark.parametrize("objective", [train.Mixture(FGSM(Linf("2/255"))), train.AdvBN("2", steps=1)])
def test_a_network_that_has_the_branch_already_is_trained_on(
    tmp_path: Path, objective: train.Objective
) -> None:
    net = nn.Sequential(*tiny()[:3], nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8), *tiny()[3:])
    train.fit(net, images(), recipe(objective=objective), tmp_path / "first")
    before = net[-1].weight.detach().clone()
    train.fit(net, images(), recipe(objective=objective), tmp_path / "second")
    assert not torch.equal(net[-1].weight, before)


def test_the_best_network_by_robust_accuracy_is_the_result(tmp_path: Path) -> None:
    """Learning stops at once and the weights then drift away: the first epoch must win."""
    attack = PGD(Linf("2/255"), steps=2)
    kept: list[dict[str, Tensor]] = []

    def ruin(event: train.Event) -> Mapping[str, float] | None:
        if event.kind != "epoch":
            return None
        kept.append({key: value.clone() for key, value in event.model.state_dict().items()})
        with torch.no_grad():  # from here on all images are of one class
            event.model[5].bias.copy_(torch.tensor([1e4, 0.0, 0.0, 0.0]))
        return {"extra": 1.0}

    how = recipe(
        epochs=6,
        validation=Validation(attack=attack, choose="robust", patience=2),
        optimizer=OptimizerConfig(lr=0.05, weight_decay=0.0),
    )
    ends: list[int] = []
    note = [ruin, lambda event: ends.append(event.epoch) if event.kind == "end" else None]
    run = train.fit(tiny(), images(), how, tmp_path / "run", note)
    rows = run.metrics()
    assert len(rows) == 3  # two without a better one, then it stops
    assert ends == [2]
    assert rows[0]["robust"] > max(row["robust"] for row in rows[1:])
    assert all(row["extra"] == 1.0 for row in rows)
    assert same(state(run), kept[0])


def test_robust_accuracy_is_measured_on_the_branch_asked_for(tmp_path: Path) -> None:
    objective = train.Mixture(FGSM(Linf("2/255")))
    rows = {}
    for branch in ("main", "adv"):

        def spoil(event: train.Event) -> None:
            if event.kind == "step":
                with torch.no_grad():
                    (layer,) = norm.layers(event.model).values()
                    layer.holder("adv").weight.zero_()  # type: ignore[union-attr]
                    layer.holder("adv").bias.zero_()  # type: ignore[union-attr]

        how = recipe(objective=objective, epochs=4, validation=Validation(branch=branch))
        rows[branch] = train.fit(tiny(), images(), how, tmp_path / branch, [spoil]).metrics()[-1]["clean"]
    assert rows["adv"] == 0.25  # a constant answer
    assert rows["main"] > 0.25


# ---- the folder ---------------------------------------------------------------------------------------


def test_the_folder_holds_everything_and_the_result_loads_without_trimtab(tmp_path: Path) -> None:
    how = recipe(objective=train.Mixture(FGSM(Linf("2/255"))), model="net:resnet8,width=4", epochs=1)
    run = train.fit(None, images(), how, tmp_path / "run")
    written = {str(path.relative_to(run.folder)) for path in run.folder.rglob("*") if path.is_file()}
    assert written == {
        "recipe.yaml", "environment.json", "metrics.jsonl", "model.safetensors", "model.json",
        "checkpoints/last.safetensors", "stock/main.pt", "stock/adv.pt",
    }  # fmt: skip
    found = train.read_recipe(run.folder / "recipe.yaml")
    assert found == replace(how, data=replace(how.data, name="own:images"))
    assert {"torch", "trimtab"} <= json.loads((run.folder / "environment.json").read_text())[
        "packages"
    ].keys()

    again = models.load(f"file:{run.folder}")
    x = images().take(torch.arange(4)).x
    with norm.use(run.model, branch="adv"), norm.use(again, branch="adv"):  # type: ignore[arg-type]
        torch.testing.assert_close(again.eval()(x), run.model.eval()(x))  # type: ignore[union-attr]
        wanted = again(x)
    stock = models.build("resnet8", classes=CLASSES, input=again.spec, width=4)
    stock.net.load_state_dict(torch.load(run.folder / "stock" / "adv.pt", weights_only=True))
    torch.testing.assert_close(stock.eval()(x), wanted)


def test_a_folder_that_holds_a_run_is_not_overwritten(tmp_path: Path) -> None:
    train.fit(tiny(), images(), recipe(epochs=1), tmp_path / "run")
    with pytest.raises(BadInput, match="already contains a run; resume it"):
        train.fit(tiny(), images(), recipe(epochs=1), tmp_path / "run")
    with pytest.raises(BadInput, match="contains no run"):
        train.resume(tmp_path)


# ---- when things go wrong -----------------------------------------------------------------------------


@pytest.mark.parametrize("step", [1, 4])  # within an epoch, and at its end
def test_sigterm_saves_first_and_the_run_goes_on_from_there(step: int, tmp_path: Path) -> None:
    peace = train.fit(tiny(), images(), recipe(), tmp_path / "peace")

    def stop(event: train.Event) -> None:
        if event.kind == "step" and event.step == step:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(train.Stopped) as stopped:
        train.fit(tiny(), images(), recipe(), tmp_path / "run", [stop])
    assert stopped.value.code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    steps: list[int] = []
    run = train.resume(tmp_path / "run", tiny(), images(), [lambda e: steps.append(e.step)])
    assert steps[0] == step + 1
    assert same(state(run), state(peace))
    assert run.metrics() == peace.metrics()


def test_a_loss_that_is_not_finite_stops_names_the_layer_and_keeps_the_good_checkpoint(
    tmp_path: Path,
) -> None:
    class Overflow(nn.Module):
        """Fine until it has been called a few times in training."""

        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += self.training
            return x * (float("inf") if self.calls > 5 else 1.0)

    net = tiny()
    net.insert(3, Overflow())
    with pytest.raises(train.Diverged) as caught:
        train.fit(net, images(), recipe(checkpoint_steps=1), tmp_path / "run")
    assert "step 5" in str(caught.value)
    assert "'3' was the first layer" in str(caught.value)
    tensors, header = checkpoint.read(tmp_path / "run" / "checkpoints" / "last.safetensors")
    assert header["progress"]["step"] == 5
    assert all(bool(t.isfinite().all()) for t in tensors.values() if t.is_floating_point())


def test_weights_that_are_not_finite_are_never_saved(tmp_path: Path) -> None:
    wild = recipe(optimizer=OptimizerConfig(lr=1e38), checkpoint_steps=1)
    with pytest.raises(train.Diverged, match="last good checkpoint"):
        train.fit(tiny(False), images(), wild, tmp_path / "run")
    tensors, _ = checkpoint.read(tmp_path / "run" / "checkpoints" / "last.safetensors")
    assert all(bool(t.isfinite().all()) for t in tensors.values() if t.is_floating_point())


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    """A limit on the size of files makes writes fail in their middle, as a full disk does."""
    peace = train.fit(tiny(), images(), recipe(checkpoint_steps=1), tmp_path / "peace")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(event: train.Event) -> None:
        if event.kind == "step" and event.step == 3:
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))

    try:
        with pytest.raises(BadInput, match=r"last\.safetensors"):
            train.fit(tiny(), images(), recipe(checkpoint_steps=1), tmp_path / "run", [fill])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    _, header = checkpoint.read(tmp_path / "run" / "checkpoints" / "last.safetensors")
    assert header["progress"]["step"] == 2
    run = train.resume(tmp_path / "run", tiny(), images())
    assert same(state(run), state(peace))


@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw", "adagrad", "rmsprop"])
def test_every_optimizers_state_survives_a_stop(kind: str, tmp_path: Path) -> None:
    how = recipe(optimizer=OptimizerConfig(kind=kind, lr=0.01), epochs=1)  # type: ignore[arg-type]
    peace = train.fit(tiny(), images(), how, tmp_path / "peace")

    def stop(event: train.Event) -> None:
        if event.kind == "step" and event.step == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(train.Stopped):
        train.fit(tiny(), images(), how, tmp_path / "run", [stop])
    assert same(state(train.resume(tmp_path / "run", tiny(), images())), state(peace))


def test_a_checkpoint_of_another_network_is_refused(tmp_path: Path) -> None:
    train.fit(tiny(), images(), recipe(epochs=1), tmp_path / "run")
    with pytest.raises(BadInput, match="saved from another network"):
        train.resume(tmp_path / "run", tiny(False), images())
    (tmp_path / "run" / "checkpoints" / "last.safetensors").write_bytes(b"nothing")
    with pytest.raises(BadInput, match="not a checkpoint that trimtab wrote"):
        train.resume(tmp_path / "run", tiny(), images())


def stopped(folder: Path, data: object) -> None:
    """A run that was killed after its second step."""
    with pytest.raises(train.Stopped):
        train.fit(tiny(), data, recipe(), folder, [after_two_steps])


@pytest.mark.parametrize(
    "changes",
    [
        {"schedule": Schedule(kind="step", milestones=(1,))},
        {"optimizer": OptimizerConfig(lr=1)},
        {"objective": train.SAM(rho=1)},
        {"clip": 1},
    ],
)
def test_a_run_begun_with_whole_numbers_goes_on(changes: dict[str, Any], tmp_path: Path) -> None:
    how = recipe(**changes)
    whole = train.fit(tiny(), images(), how, tmp_path / "whole")
    with pytest.raises(train.Stopped):
        train.fit(tiny(), images(), how, tmp_path / "run", [after_two_steps])
    assert same(state(train.resume(tmp_path / "run", tiny(), images())), state(whole))


def after_two_steps(event: train.Event) -> None:
    if event.kind == "step" and event.step == 2:
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_run_with_objects_of_ones_own_says_so_and_how_it_goes_on(tmp_path: Path) -> None:
    with pytest.raises(train.Stopped) as ended:
        train.fit(tiny(), DataLoader(Flipped(images())), recipe(), tmp_path / "run", [after_two_steps])
    assert ended.value.folder == tmp_path / "run"
    known = train.read_recipe(tmp_path / "run" / "recipe.yaml")
    assert (known.model, known.data.name) == ("own:Sequential", "own:DataLoader")
    with pytest.raises(
        BadInput, match=r"a model given as an object \(Sequential\); resume it there, with train.resume"
    ):
        train.resume(tmp_path / "run", None, images())
    with pytest.raises(BadInput, match=r"images given as an object \(DataLoader\)"):
        train.resume(tmp_path / "run", tiny())
    whole = train.fit(tiny(), DataLoader(Flipped(images())), recipe(), tmp_path / "whole")
    assert same(state(train.resume(tmp_path / "run", tiny(), DataLoader(Flipped(images())))), state(whole))


def test_a_network_that_returns_no_logits_is_told_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"logits of shape \(N, classes\), found shape \(8, 3, 8, 8\)"):
        train.fit(nn.Conv2d(3, 3, 1), images(), recipe(), tmp_path / "run")


def test_a_dataset_that_draws_by_itself_gives_the_same_network_again(tmp_path: Path) -> None:
    again = []
    for number in range(3):
        torch.manual_seed(number)
        net = nn.Sequential(tiny(), nn.Dropout(0.2))
        again.append(state(train.fit(net, Flipped(images()), recipe(), tmp_path / str(number))))
    assert same(again[0], again[1])
    assert same(again[0], again[2])


def test_crops_are_of_whole_pictures_however_small_the_folder(tmp_path: Path) -> None:
    """Pictures with a red, a green and a blue third: their center is green."""
    thirds = torch.zeros(16, 48, 3, dtype=torch.uint8)
    for third in range(3):
        thirds[:, 16 * third : 16 * (third + 1), third] = 255
    for label in "ab":
        (tmp_path / label).mkdir()
        for number in range(8):
            Image.fromarray(thirds.numpy()).save(tmp_path / label / f"{number}.png")
    how = recipe(data=Data(f"folder:{tmp_path}@16", ("random-resized-crop",), validation=0))
    train_set, _ = training_sets(None, how)
    pixels = torch.cat([batch.x for batch in Loader(train_set, 8, how.data.augment)])
    assert all(share > 0.05 for share in pixels.mean((0, 2, 3)).tolist())


def in_a_folder(root: Path, given: ImageSet) -> FolderSet:
    for i, (pixels, label) in enumerate(zip(given.images, given.labels.tolist(), strict=True)):
        (root / str(label)).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(root / str(label) / f"{i}.png")
    return open_folder(root, "folder")


class Flipped(Dataset):  # type: ignore[type-arg]
    """Images that their own dataset flips at random."""

    def __init__(self, given: ImageSet) -> None:
        self.given = given

    def __len__(self) -> int:
        return len(self.given)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        pixels = self.given.images[i]
        return pixels.flip(2) if torch.rand(()) < 0.5 else pixels, int(self.given.labels[i])


def test_a_run_does_not_go_on_with_other_images(tmp_path: Path) -> None:
    first, turned = images(), images()
    turned = replace(turned, labels=turned.labels.flip(0))
    brighter = images()
    brighter.images[3] += 1
    homes = {name: in_a_folder(tmp_path / name, given) for name, given in {"a": first, "b": turned}.items()}
    for name, given, others in [
        ("memory", first, [turned, brighter, images(52)]),
        ("folder", homes["a"], [homes["b"], first]),
        ("loader", Flipped(first), [Flipped(turned), Flipped(images(52)), first]),
    ]:
        stopped(tmp_path / "runs" / name, given)
        for other in others:
            with pytest.raises(BadInput, match="started with other training images"):
                train.resume(tmp_path / "runs" / name, tiny(), other)
        whole = train.fit(tiny(), given, recipe(), tmp_path / "whole" / name)
        assert same(state(train.resume(tmp_path / "runs" / name, tiny(), given)), state(whole))


def test_a_checkpoint_that_does_not_know_its_images_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        before.setattr("trimtab.train._loop.start.fingerprint", lambda images: "")
        stopped(tmp_path / "run", images())
    tensors, header = checkpoint.read(tmp_path / "run" / "checkpoints" / "last.safetensors")
    del header["progress"]["data"]
    checkpoint._write(tmp_path / "run" / "checkpoints" / "last.safetensors", tensors, header)
    whole = train.fit(tiny(), images(), recipe(), tmp_path / "whole")
    assert same(state(train.resume(tmp_path / "run", tiny(), images())), state(whole))


def test_a_run_of_an_older_version_goes_on(tmp_path: Path) -> None:
    """Before American spelling: `optimiser:` and `synchronise:`, and keys that did not exist yet."""
    how = recipe(objective=train.APART(eps=0.1), epochs=2)
    peace = train.fit(tiny(), images(), how, tmp_path / "peace")
    with pytest.raises(train.Stopped):
        train.fit(tiny(), images(), how, tmp_path / "run", [after_two_steps])
    file, last = tmp_path / "run" / "recipe.yaml", tmp_path / "run" / "checkpoints" / "last.safetensors"
    kept = yaml.safe_load(file.read_text())
    del kept["objective"]["zero_below"]
    kept["norm"]["synchronise"] = kept["norm"].pop("synchronize")
    written = {{"optimizer": "optimiser"}.get(key, key): value for key, value in kept.items()}
    text = yaml.safe_dump(written, sort_keys=False, allow_unicode=True)
    file.write_text(text)
    tensors, header = checkpoint.read(last)
    header["optimiser"] = header.pop("optimizer")
    header["progress"]["recipe"] = hashlib.sha256(text.encode()).hexdigest()  # as that version computed it
    tensors = {name.replace("optimizer.", "optimiser.", 1): value for name, value in tensors.items()}
    assert any(name.startswith("optimiser.0.") for name in tensors)
    checkpoint._write(last, tensors, header)
    assert same(state(train.resume(tmp_path / "run", tiny(), images())), state(peace))
    file.write_text(text.replace("momentum: 0.9", "momentum: 0.5"))
    with pytest.raises(BadInput, match=r"recipe\.yaml has changed since the run started"):
        train.resume(tmp_path / "run", tiny(), images())


def test_a_bit_that_changed_in_a_checkpoint_is_noticed(tmp_path: Path) -> None:
    last = train.fit(tiny(), images(), recipe(epochs=1), tmp_path / "run").last
    whole = last.read_bytes()
    for place in (len(whole) - 1, len(whole) // 2, whole.index(b"metrics_bytes") + 17):
        last.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(BadInput, match="or it is damaged"):
            train.resume(tmp_path / "run", tiny(), images())


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("optimizer.lr", "-1"), ("optimizer.momentum", "1"), ("schedule.every", "0"), ("schedule.peak", "7"),
        ("data.validation", "-5"), ("data.images", "0"), ("validation.every", "0"), ("clip", "0"),
        ("norm.running_epochs", "-1"), ("checkpoint_steps", "-1"), ("seed", str(10**30)),
    ],
)  # fmt: skip
def test_a_number_that_cannot_be_trained_with_is_refused_when_it_is_read(place: str, value: str) -> None:
    with pytest.raises(BadInput):
        train.read_recipe("smoke", {place: value})


def test_a_compiler_that_torch_does_not_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no compiler 'zz'"):
        train.fit(tiny(), images(), recipe(compile="zz"), tmp_path / "run")


def test_too_many_held_out_images_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be held out"):
        train.fit(tiny(), images(), recipe(data=Data(validation=48)), tmp_path / "run")


# ---- what it will cost --------------------------------------------------------------------------------


def test_the_plan_counts_passes_and_steps() -> None:
    how = recipe(objective=train.Adversarial(PGD(steps=7), clean=0.5), epochs=3)
    plan = train.plan(tiny(), images(), how, rounds=1)
    assert plan.passes == (7 + 1.5, 7 + 1.5)
    assert (plan.steps, plan.images) == (4 * 3, 32)
    assert plan.ratio > 1
    assert plan.seconds == plan.seconds_per_step * 12
    assert "x standard training" in str(plan)


def test_parts_of_a_batch_are_planned_as_they_are_trained() -> None:
    how = recipe(objective=train.APART(groups=6), batch_size=24, accumulate=2)
    assert train.plan(tiny(), images(), how, rounds=1).passes == (2, 2)


def test_a_process_without_a_held_out_image_has_nothing_to_add() -> None:
    few = images().subset(slice(0, 1))
    counts = [
        sum(len(batch.y) for batch in _images_of_rank(SimpleNamespace(global_rank=rank, world_size=2), few))  # type: ignore[arg-type]
        for rank in range(2)
    ]
    assert counts == [1, 0]


def test_a_run_that_was_stopped_can_be_told_across_processes() -> None:
    again = pickle.loads(pickle.dumps(train.Stopped(143, Path("runs/a"))))
    assert (again.code, again.folder) == (143, Path("runs/a"))


def test_a_batch_with_no_clean_image_keeps_the_whole_adversarial_loss() -> None:
    batch = images(8).take(torch.arange(8))
    parts = train.Adversarial(FGSM(Linf("2/255")), clean=0.05, alpha=0.5)(tiny(), batch.x, batch.y)
    assert float(parts["loss"]) == float(parts["adv"])


class Counted(nn.Module):
    """Counts images in a list that every copy of the network shares."""

    seen: ClassVar[list[int]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(len(x))
        return x


def test_passes_are_counted_as_they_run() -> None:
    net, batch = nn.Sequential(Counted(), tiny()), images(48)
    x = batch.take(torch.arange(48)).x
    attacked = [train.Adversarial(attack) for attack in (PGD(steps=7), PGD(steps=3, restarts=2))]
    for objective in (*attacked, train.SAM(inner=attacked[0]), train.SAM(inner=train.SAM(inner=attacked[0]))):
        Counted.seen.clear()
        objective(objective.prepare(net), x, batch.labels)
        assert sum(Counted.seen) / 48 == pytest.approx(objective.passes(48).forward, abs=0.2)


def test_passes_add_up() -> None:
    attack = PGD(steps=7)
    assert train.Standard().passes(128) == (1, 1)
    assert train.SAM().passes(128) == train.APART().passes(128) == (2, 2)
    assert train.APART(samples=32).passes(128) == (1.25, 1.25)
    assert train.Mixture(attack).passes(128) == (9, 9)
    inner = train.Adversarial(attack)
    assert train.SAM(inner=inner).passes(128) == (7 + 2, 7 + 2)  # attacked once
    assert train.SAM(inner=train.SAM(inner=inner)).passes(128) == (7 + 4, 7 + 4)
    assert replace(inner, clean=1.0).passes(128) == (9, 9)


# ---- networks that are unlike most -------------------------------------------------------------------


class Tied(nn.Module):
    """One layer under two names, and a mask of minus infinities."""

    def __init__(self) -> None:
        super().__init__()
        self.first = self.second = nn.Linear(192, 192)
        self.head = nn.Linear(192, CLASSES)
        self.register_buffer("mask", torch.tensor([0.0, float("-inf")]))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.second(self.first(x.flatten(1)).relu()).relu())


@pytest.mark.parametrize("ema", [None, 0.9])
def test_tied_weights_and_infinite_constants_are_kept(tmp_path: Path, ema: float | None) -> None:
    how = recipe(ema=ema, epochs=1, validation=Validation(choose="clean"))
    run = train.fit(Tied(), images(), how, tmp_path / "run")
    again = train.resume(tmp_path / "run", Tied(), images())
    assert same(state(run), state(again))


def test_a_checkpoint_of_another_shape_is_refused_in_a_sentence(tmp_path: Path) -> None:
    train.fit(tiny(), images(), recipe(), tmp_path / "run")
    other = nn.Sequential(*tiny()[:5], nn.Linear(32, 7))
    with pytest.raises(BadInput, match=r"'5\.weight' is \(4, 32\) in the file and \(7, 32\) in the model"):
        train.resume(tmp_path / "run", other, images())


def test_a_run_that_could_not_be_resumed_is_not_begun(tmp_path: Path) -> None:
    how = recipe(validation=Validation(attack=AutoAttack(Linf("8/255"))))
    with pytest.raises(BadInput, match="cannot contain AutoAttack, so the run could not be resumed"):
        train.fit(tiny(), images(), how, tmp_path / "run")
    assert not (tmp_path / "run" / "recipe.yaml").exists()


def test_a_recipe_that_no_run_wrote_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("mine: 1\n")
    with pytest.raises(BadInput, match="no run wrote"):
        train.fit(tiny(), images(), recipe(), tmp_path)
    assert (tmp_path / "recipe.yaml").read_text() == "mine: 1\n"


def test_a_branch_is_given_to_all_layers_that_an_objective_uses(tmp_path: Path) -> None:
    net = nn.Sequential(*tiny()[:3], nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8), *tiny()[3:])
    train.AdvBN("3", steps=1).prepare(net)
    assert [row["layer"] for row in norm.branch_spec(net)] == ["4"]
    train.AdvBN("0", steps=1).prepare(net)
    assert [row["layer"] for row in norm.branch_spec(net)] == ["1", "4"]


def test_a_branch_that_shares_other_halves_is_not_taken_for_this_one() -> None:
    net = train.Mixture(FGSM()).prepare(tiny())
    with pytest.raises(BadInput, match="name another branch"):
        train.Mixture(FGSM(), separate="affine").prepare(net)


def test_weights_that_break_in_the_last_step_are_told_also_where_the_best_are_kept(tmp_path: Path) -> None:
    huge, kept = OptimizerConfig(lr=1e25, weight_decay=1e25), Validation(choose="clean")
    wild = recipe(optimizer=huge, epochs=1, batch_size=32, validation=kept)
    with pytest.raises(train.Diverged, match="no longer finite"):
        train.fit(tiny(False), images(), wild, tmp_path / "run")


def test_a_run_records_the_network_and_the_images_that_it_was_given(tmp_path: Path) -> None:
    given = recipe(data=Data(images=64, validation=0, augment=()), batch_size=32, epochs=1)
    train.fit("net:resnet8,width=4", "sample", given, tmp_path / "run")
    held = train.read_recipe(tmp_path / "run" / "recipe.yaml")
    assert (held.model, held.data.name) == ("net:resnet8,width=4", "sample")
    train.resume(tmp_path / "run")


def test_a_trained_network_keeps_its_mean_and_deviation(tmp_path: Path) -> None:
    spec = InputSpec((28, 28), 1, (0.2,), (0.7,))
    models.save(models.load("net:resnet8,width=4", input=spec, classes=10), tmp_path / "model")
    mine = "from torch import nn\ndef make():\n    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))\n"
    (tmp_path / "mine.py").write_text(mine)
    set_ = load_set("sample", "train")
    found = {
        source: network(source, recipe(), set_).spec
        for source in ("net:resnet8,width=4", f"file:{tmp_path}/model", f"py:{tmp_path}/mine.py:make")
    }
    assert [one.mean for one in found.values()] == [set_.spec.mean, (0.2,), (0.0,)]
    assert all(one.size == (28, 28) for one in found.values())
    given = recipe(data=Data(images=64, validation=0, augment=()), batch_size=32, epochs=1)
    train.fit(f"py:{tmp_path}/mine.py:make", "sample", given, tmp_path / "run")


def test_a_branch_needs_a_layer_to_live_in() -> None:
    with pytest.raises(BadInput, match="no batch-norm layer"):
        train.Mixture(FGSM()).prepare(tiny(False))


def test_apart_trains_a_network_that_repeats_layers_in_its_backward_pass() -> None:
    class Repeating(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = tiny()

        def forward(self, x: Tensor) -> Tensor:
            z = torch.utils.checkpoint.checkpoint(self.net[:3], x, use_reentrant=False)
            return self.net[3:](z)

    x, y, _ = next(iter(images().batches(16)))
    found = []
    for net in (norm.steer(tiny()), norm.steer(Repeating())):
        train.APART(groups=2)(net, x, y)
        found.append([p.grad for p in net.parameters()])
    torch.testing.assert_close(*found)
