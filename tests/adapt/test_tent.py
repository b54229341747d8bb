"""TENT: the paper's loop, collapse noticed, state undone, attacked like the others."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import trimtab
from nets import stack
from trimtab import adapt, attacks, data, runtime
from trimtab.types import BadInput


def network() -> nn.Module:
    return stack(5).eval()


def the_papers_loop(net, batches, optimizer):
    """Wang et al., section 3, with stock PyTorch only."""
    net = copy.deepcopy(net).train().requires_grad_(False)
    parameters = []
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.track_running_stats, module.running_mean, module.running_var = False, None, None
            parameters += [module.weight.requires_grad_(True), module.bias.requires_grad_(True)]
    optimizer = optimizer(parameters)
    outputs = []
    for x in batches:
        z = net(x)
        p = z.exp() / z.exp().sum(1, keepdim=True)
        optimizer.zero_grad()
        (-(p * p.log()).sum(1)).mean().backward()
        optimizer.step()
        outputs.append(z.detach())
    return outputs


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [
        ("adam", lambda parameters: torch.optim.Adam(parameters, 0.01)),
        ("sgd", lambda parameters: torch.optim.SGD(parameters, 0.01, momentum=0.9)),
    ],
)
def test_it_predicts_as_the_papers_loop(name, optimizer):
    net, batches = network(), [torch.rand(16, 3, 9, 9) + k / 4 for k in range(6)]
    adapted = adapt.tent(net, lr=0.01, optimizer=name)
    for x, z in zip(batches, the_papers_loop(net, batches, optimizer), strict=True):
        torch.testing.assert_close(adapted(x), z, rtol=1e-4, atol=1e-5)


def test_the_first_batch_is_predicted_as_by_per_batch_statistics_and_the_model_stays():
    net, x = network(), torch.rand(8, 3, 9, 9)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    torch.testing.assert_close(adapt.tent(net)(x), adapt.per_batch(net)(x))
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())


def test_entropy_of_a_batch_falls_as_it_is_repeated():
    adapted, x = adapt.tent(network(), lr=0.01), torch.rand(32, 3, 9, 9)
    entropy = [float(torch.special.entr(adapted(x).softmax(1)).sum(1).mean()) for _ in range(20)]
    assert entropy[-1] < entropy[0]


def test_reset_rollback_and_episodes_restore_predictions_bit_for_bit():
    adapted, x = adapt.tent(network(), lr=0.05), torch.rand(16, 3, 9, 9)
    source = adapted(x)
    middle = adapted.snapshot()
    second = adapted(x)
    assert not torch.equal(source, second)
    adapted.rollback(middle)
    assert torch.equal(adapted(x), second)
    adapted.reset()
    assert torch.equal(adapted(x), source)
    episodic = adapt.tent(network(), lr=0.05, episodic=True)
    assert torch.equal(episodic(x), episodic(x))


def test_a_copy_adapts_on_its_own():
    first, x = adapt.tent(network(), lr=0.05), torch.rand(16, 3, 9, 9)
    second = copy.deepcopy(first)
    z = first(x)
    assert torch.equal(second(x), z)
    first(x)
    third = copy.deepcopy(second)
    assert torch.equal(second(x), third(x))


def test_a_converted_module_still_learns():
    adapted, x = adapt.tent(network(), lr=0.05), torch.rand(16, 3, 9, 9)
    adapted(x)
    again = copy.deepcopy(adapted).double()
    for z in (adapted(x), adapted(x)):
        torch.testing.assert_close(again(x.double()).float(), z, rtol=1e-3, atol=1e-4)


def test_a_guard_undoes_what_it_learned():
    adapted, x = adapt.tent(network(), lr=0.05), torch.rand(16, 3, 9, 9)
    with runtime.guard(adapted), torch.no_grad():
        first, second = adapted(x), adapted(x)
    assert not torch.equal(first, second)  # it does adapt while it is measured
    assert torch.equal(adapted(x), first)


def test_an_attack_differentiates_through_the_batch_and_leaves_no_trace():
    net = trimtab.load("zoo:sample-standard")
    batch = next(iter(data.load("sample", "test").batches(64)))
    adapted = adapt.tent(net)
    before = adapted.snapshot()
    x_adv = attacks.PGD(attacks.Linf("16/255"), steps=5, early_stop=False)(adapted, batch.x, batch.y, seed=0)
    assert all(torch.equal(a, b) for a, b in zip(before.affine, adapted.snapshot().affine, strict=True))
    clean = float((adapted(batch.x).argmax(1) == batch.y).float().mean())
    adapted.reset()
    attacked = float((adapted(x_adv).argmax(1) == batch.y).float().mean())
    assert clean > 0.7
    assert attacked < clean - 0.4


def test_the_gradient_of_an_attack_is_that_of_the_next_prediction():
    adapted, x = adapt.tent(network(), lr=0.05), torch.rand(6, 3, 9, 9, dtype=torch.float64)
    adapted = adapted.double()
    direction = torch.randn_like(x)
    leaf = x.clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(adapted(leaf).square().sum(), leaf)

    def loss(t):
        state = adapted.snapshot()
        value = adapted(x + t * direction).square().sum()
        adapted.rollback(state)
        return float(value)

    numeric = (loss(1e-6) - loss(-1e-6)) / 2e-6
    assert float((gradient * direction).sum()) == pytest.approx(numeric, rel=1e-4)


def test_collapse_raises_the_alarm_and_sound_adaptation_does_not():
    net = trimtab.load("zoo:sample-standard")
    batch = next(iter(data.load("sample", "test").batches(1536)))
    sound, collapsed = adapt.tent(net), adapt.tent(net, lr=0.05)
    for x in batch.x.split(128):
        sound(x)
    assert sound.alarm is None
    for x in batch.x[batch.y.argsort()].split(128):  # class by class, at a large rate
        collapsed(x)
    assert collapsed.alarm is not None
    assert collapsed.alarm.startswith("collapse: over the last 256 images")
    collapsed.reset()
    assert collapsed.alarm is None


@pytest.mark.parametrize(
    ("options", "words"),
    [({"optimizer": "lion"}, "adam, sgd"), ({"lr": 0}, "positive lr"), ({"steps": 0}, "1 step or more")],
)
def test_bad_options_are_refused(options, words):
    with pytest.raises(BadInput, match=words):
        adapt.tent(network(), **options)


def test_models_without_anything_to_adapt_are_refused():
    with pytest.raises(BadInput, match="no batch-norm layer"):
        adapt.tent(nn.Linear(2, 2))
    with pytest.raises(BadInput, match="no gamma and beta"):
        adapt.tent(nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2, affine=False)))
