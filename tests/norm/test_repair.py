"""Repair: statistics that no longer fit the weights are re-estimated, and kept only if that helps."""

from __future__ import annotations

import pytest
import torch
from scipy import stats
from torch import nn

import trimtab
from trimtab import data, norm
from trimtab.types import BadInput


@pytest.fixture(scope="module")
def batches():
    return [(b.x, b.y) for b in data.load("sample", "train").subset(slice(0, 256)).batches(64)]


def zoo() -> nn.Module:
    return trimtab.load("zoo:sample-standard")


def test_repair_restores_the_accuracy_that_wrong_statistics_cost(batches):
    net = zoo()
    intact = norm.repair(zoo(), batches).before
    with torch.no_grad():
        for layer in norm.layers(trimtab.steer(net)).values():
            layer.running_mean.add_(3 * layer.running_var.sqrt())
    report = norm.repair(net, batches)
    assert report.kept
    assert report.before.accuracy < 0.5 * intact.accuracy
    assert report.after.accuracy > 0.9 * intact.accuracy
    assert report.p_value < 1e-6
    assert len(report.layers) == len(norm.layers(net))


def test_an_error_while_the_new_statistics_are_scored_leaves_the_original_ones(batches):
    net = zoo()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    calls = 0

    def forward(model: nn.Module, batch):
        nonlocal calls
        calls += 1
        if calls > 2 * len(batches):  # scored once, then estimated
            raise RuntimeError("the disk is gone")
        return model(0.5 * batch[0])

    with pytest.raises(RuntimeError, match="the disk is gone"):
        norm.repair(net, batches, forward)
    assert calls == 2 * len(batches) + 1
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())


def test_statistics_that_do_not_help_are_not_kept_and_the_report_says_so(batches):
    net = zoo()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    dark = [(0.02 * x, y) for x, y in batches]
    bright = [(x, y) for x, y in batches]

    class Mixed(list):
        """Dark images while estimating (the second pass), the original ones while scoring."""

        passes = 0

        def __iter__(self):
            self.passes += 1
            return iter(dark if self.passes == 2 else bright)

    mixed = Mixed()
    report = norm.repair(net, mixed)
    assert mixed.passes == 3
    assert not report.kept
    assert "does not help" in str(report)
    assert report.after.accuracy < report.before.accuracy
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())


def test_without_labels_agreement_and_entropy_are_reported(batches):
    report = norm.repair(zoo(), [x for x, _ in batches])
    assert report.before.accuracy is None
    assert report.p_value is None
    assert 0 <= report.agreement <= 1
    assert "mean entropy" in str(report)


def test_the_interval_is_scipys_and_the_p_value_mcnemars(batches):
    net = zoo()
    with torch.no_grad():
        for layer in norm.layers(trimtab.steer(net)).values():
            layer.running_var.mul_(4)
    x, y = (torch.cat(part) for part in zip(*batches, strict=True))
    with torch.no_grad():
        first = net(x).argmax(1) == y
        report = norm.repair(net, batches, always=True)
        second = net(x).argmax(1) == y
    expected = stats.binomtest(int(first.sum()), len(y)).proportion_ci(0.95)
    assert report.before.interval == pytest.approx((expected.low, expected.high))
    table = [int((second & ~first).sum()), int((first & ~second).sum())]
    assert report.p_value == pytest.approx(stats.binomtest(table[0], sum(table)).pvalue)


def test_only_chosen_layers_change(batches):
    net = trimtab.steer(zoo())
    last = list(norm.layers(net))[-1]
    before = norm.running(net)
    report = norm.repair(net, batches, only=[last], always=True)
    changed = [n for n, m in norm.running(net).items() if not torch.equal(m.mean, before[n].mean)]
    assert changed == [last] == list(report.layers)


def test_a_failing_forward_leaves_the_statistics_as_they_were(batches):
    net = trimtab.steer(zoo())
    before = norm.running(net)
    calls = []

    def forward(model, batch):
        calls.append(1)
        if len(calls) > len(batches) + 2:
            raise RuntimeError("lost")
        return model(batch[0])

    with pytest.raises(RuntimeError, match="lost"):
        norm.repair(net, batches, forward)
    assert all(torch.equal(m.mean, before[n].mean) for n, m in norm.running(net).items())


def test_a_generator_is_refused():
    with pytest.raises(BadInput, match="three times"):
        norm.repair(zoo(), (x for x in [torch.rand(2, 3, 32, 32)]))
