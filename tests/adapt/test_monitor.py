"""The drift monitor: valid at any time, quick where it matters, invisible to the model.

Also tests adapt._drift, adapt._estimate, adapt._evidence, norm.sensors.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

import trimtab
from trimtab import adapt, data, norm
from trimtab.adapt._estimate import fit_accuracy
from trimtab.adapt._evidence import Martingale, log_mean
from trimtab.types import BadInput


@pytest.fixture(scope="module")
def model():
    return trimtab.load("zoo:sample-standard")


@pytest.fixture(scope="module")
def images():
    batch = next(iter(data.load("sample", "test").batches(600)))
    return batch.x, batch.y


def test_p_values_of_an_exchangeable_stream_are_uniform_and_independent():
    source = np.random.default_rng(0)
    martingale = Martingale(source.exponential(size=50))
    p = [
        martingale.update(s, u)
        for s, u in zip(source.exponential(size=3000), source.random(3000), strict=True)
    ]
    assert stats.kstest(p, "uniform").pvalue > 0.01
    assert abs(np.corrcoef(p[:-1], p[1:])[0, 1]) < 3 / math.sqrt(3000)


def test_p_values_are_uniform_with_ties_too():
    source = np.random.default_rng(1)
    martingale = Martingale(source.integers(0, 3, 50).astype(float))
    p = [martingale.update(float(source.integers(0, 3)), source.random()) for _ in range(2000)]
    assert stats.kstest(p, "uniform").pvalue > 0.01


def test_false_alarms_over_whole_streams_stay_below_the_stated_rate():
    rate, streams, alarms = 0.1, 300, 0
    for seed in range(streams):
        source = np.random.default_rng(seed)
        sensors = [Martingale(source.normal(size=40)) for _ in range(2)]
        for _ in range(200):
            shared = source.normal()  # sensors that depend on each other
            for sensor in sensors:
                sensor.update(shared + source.normal(), source.random())
            if log_mean([s.log_capital for s in sensors]) >= -math.log(rate):
                alarms += 1
                break
    assert stats.binomtest(alarms, streams, rate, alternative="greater").pvalue > 0.01


@pytest.mark.parametrize("shift", [2.0, -2.0])
def test_a_shift_of_scores_in_either_direction_is_found_within_fifty(shift):
    source = np.random.default_rng(0)
    martingale = Martingale(source.normal(size=500))
    for _ in range(50):
        martingale.update(source.normal() + shift, source.random())
    assert martingale.log_capital > math.log(100)


def test_the_capital_is_a_fair_game_against_uniform_p_values():
    """The expectation of each bet over a uniform p is 1: a direct numeric integral."""
    martingale = Martingale([])
    martingale.weights = [0.4, 0.1, 0.1, 0.1, 0.3]
    grid = (np.arange(10_000) + 0.5) / 10_000
    growth = []
    for p in grid:
        one = Martingale([])
        one.weights = list(martingale.weights)
        one.update(0.0, p)  # the only score so far: its p-value is u
        growth.append(math.exp(one.log_capital))
    assert np.mean(growth) == pytest.approx(1, abs=1e-9)


def test_the_model_runs_as_it_is(model, images):
    x, _ = images
    before = {name: value.clone() for name, value in model.state_dict().items()}
    monitor = adapt.Monitor(model, [x[:200]])
    with torch.no_grad():
        assert torch.equal(monitor(x[200:260]), model(x[200:260]))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert monitor.status().images == 60
    assert monitor.status().observed == 15


def test_fog_raises_the_alarm_and_names_layers_and_channels(model, images):
    x, _ = images
    monitor = adapt.Monitor(model, [x[:300]], fraction=1.0)
    monitor(x[300:400])
    assert not monitor.status().alarm
    monitor(data.corrupt(x[400:500], "fog", severity=5, seed=0))
    status = monitor.status()
    assert status.alarm
    assert 100 < status.alarm_at <= 200
    assert status.evidence >= 100
    assert status.layers[0][1] >= status.layers[-1][1] > 0
    assert len(status.channels) == 5
    assert "drift detected" in status.advice


def test_a_restarted_monitor_continues_bit_for_bit(model, images, tmp_path):
    x, y = images
    path = tmp_path / "state.safetensors"
    whole, first = (adapt.Monitor(model, [x[:200]], alarm_rate=0.05, fraction=0.5) for _ in range(2))
    for monitor in (whole, first):
        monitor.calibrate(
            [(x[:100], y[:100])], lambda x, k, s: data.corrupt(x, k, severity=s, seed=0), ["fog", "contrast"]
        )
    first(x[200:250])
    first.save(path)
    second = adapt.Monitor.load(model, path)
    assert second.status() == first.status()
    for part in (x[200:250], x[250:290]):
        whole(part)
    second(x[250:290])
    assert second.status() == whole.status()
    assert second.status().accuracy is not None
    second.save(path)  # replaces the older one
    assert adapt.Monitor.load(model, path).status() == whole.status()


def test_the_state_of_another_model_is_refused_also_after_its_statistics_changed(model, images, tmp_path):
    x, _ = images
    path = adapt.Monitor(model, [x[:200]]).save(tmp_path / "state.safetensors")
    other = trimtab.load("zoo:sample-standard")
    adapt.Monitor.load(other, path)
    norm.recalibrate(norm.steer(other), [x])
    with pytest.raises(BadInput, match="another model"):
        adapt.Monitor.load(other, path)


@pytest.mark.parametrize("damage", ["no tensors", "cut", "shape", "pack"])
def test_a_damaged_state_is_refused_in_one_sentence(model, images, tmp_path, damage):
    from safetensors import safe_open
    from safetensors.torch import save_file

    path = adapt.Monitor(model, [images[0][:200]]).save(tmp_path / "state.safetensors")
    with safe_open(path, "pt") as file:
        header, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-9])
    elif damage == "pack":
        norm.save_pack(norm.steer(trimtab.load("zoo:sample-standard")), path)
    else:
        kept = {} if damage == "no tensors" else tensors | {"capital.0": torch.zeros(2)}
        save_file(kept, path, header)
    with pytest.raises(BadInput, match="not a monitor's state") as refused:
        adapt.Monitor.load(model, path)
    assert "\n" not in str(refused.value)


def test_the_pack_of_the_streams_domain_is_named(model, images):
    x, _ = images
    steered = norm.steer(trimtab.load("zoo:sample-standard"))
    domains = {kind: data.corrupt(x[200:400], kind, severity=5, seed=0) for kind in ("fog", "gaussian_noise")}
    packs = {kind: norm.gather(steered, [shown]) for kind, shown in domains.items()}
    for kind in domains:
        monitor = adapt.Monitor(model, [x[:200]], fraction=1.0, packs=packs)
        monitor(data.corrupt(x[400:600], kind, severity=5, seed=1))
        assert monitor.status().pack == kind
        assert f"load the pack '{kind}'" in monitor.status().advice
    clean = adapt.Monitor(model, [x[:200]], fraction=1.0, packs=packs)
    clean(x[200:400])
    assert clean.status().pack is None


def test_a_model_of_another_task_is_monitored_as_it_is_called(images):
    class Boxes(torch.nn.Module):
        """Takes a list of images and options; runs a second stage on regions, two of each image."""

        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.body = torch.nn.Sequential(torch.nn.Conv2d(1, 6, 3), torch.nn.BatchNorm2d(6))
            self.head = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4))

        def forward(self, images, *, scale=1.0):
            y = self.body(torch.stack(list(images)) * scale).mean((2, 3))
            return [{"boxes": self.head(y.repeat(2, 1)), "features": y}]

    x, _ = images
    net = Boxes().eval()
    call = {"images": list(x[:150]), "scale": 1.0}
    monitor = adapt.Monitor(net, [call], lambda model, batch: model(**batch), fraction=1.0)
    assert monitor.names == ["body.1"]
    found = monitor(list(x[150:200]), scale=1.0)
    torch.testing.assert_close(found[0]["boxes"], net(list(x[150:200]), scale=1.0)[0]["boxes"])
    assert not monitor.status().alarm
    assert monitor.status().images == monitor.status().observed == 50
    monitor(list(x[200:300]), scale=0.3)
    assert monitor.status().alarm
    with pytest.raises(BadInput, match="returns logits"):
        monitor.calibrate([(x[:5], torch.zeros(5).long())], lambda x, k, s: x, ["fog"])


def test_how_the_stream_is_cut_into_batches_does_not_move_the_evidence(model, images):
    x, _ = images
    one, many = adapt.Monitor(model, [x[:200]]), adapt.Monitor(model, [x[:200]])
    one(x[200:300])
    for part in x[200:300].split(7):
        many(part)
    assert one.status().observed == many.status().observed == 25
    assert one.status().evidence == pytest.approx(many.status().evidence, rel=1e-3)


def test_the_regression_recovers_a_planted_relation_and_states_its_error():
    source = np.random.default_rng(0)
    features = source.normal(size=(60, 3))
    accuracy = 1 / (1 + np.exp(-(0.5 + features @ [0.6, -0.3, 0.0])))
    fitted = fit_accuracy(features, accuracy, [f"kind {k % 6}" for k in range(60)])
    assert fitted.error < 0.02
    assert fitted.worst < 0.06
    assert fitted(np.zeros(3)) == pytest.approx(1 / (1 + math.exp(-0.5)), abs=0.02)


def test_the_accuracy_under_an_unseen_corruption_is_estimated(model, images):
    x, y = images
    monitor = adapt.Monitor(model, [x[:200]], fraction=1.0, window=200)
    assert monitor.status().accuracy is None
    kinds = ("gaussian_noise", "defocus_blur", "contrast", "brightness", "pixelate")
    monitor.calibrate([(x[:300], y[:300])], lambda x, k, s: data.corrupt(x, k, severity=s, seed=0), kinds)
    foggy = data.corrupt(x[300:600], "fog", severity=4, seed=0)
    with torch.no_grad():
        logits = monitor(foggy)
    true = float((logits.argmax(1) == y[300:600]).double().mean())
    status = monitor.status()
    assert 0 < status.accuracy_error < 0.2
    assert status.accuracy == pytest.approx(true, abs=0.2)


def test_bad_input_is_refused(model, images):
    x, _ = images
    with pytest.raises(BadInput, match="at least 100"):
        adapt.Monitor(model, [x[:20]])
    with pytest.raises(BadInput, match="alarm_rate"):
        adapt.Monitor(model, [x], alarm_rate=2)
    with pytest.raises(BadInput, match="no batch-norm layer"):
        adapt.Monitor(torch.nn.Linear(2, 2), [torch.rand(200, 2)])
