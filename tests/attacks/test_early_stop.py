"""Each fast path against the plain one, and an image's result against the batch it came in."""

import copy

import pytest
import torch
from torch import nn

from trimtab import models, norm
from trimtab._accel import accelerate
from trimtab.attacks import APGD, L2, PGD, Linf, Square, base, couples_batch
from trimtab.attacks.early_stop import early_stop
from trimtab.attacks.losses import loss_named
from trimtab.runtime import guard

EPS = Linf("4/255")


def test_the_folded_copy_gives_the_models_logits_and_input_gradients(model, images):
    model = copy.deepcopy(model).double()
    x = images[0].double().requires_grad_(True)
    with guard(model):
        quick = accelerate(model, x.detach())
        assert not any(isinstance(m, nn.BatchNorm2d) for m in quick.modules())
        torch.testing.assert_close(quick(x), model(x), atol=1e-9, rtol=1e-9)
        grads = [torch.autograd.grad(net(x).square().sum(), x)[0] for net in (quick, model)]
    torch.testing.assert_close(*grads, atol=1e-9, rtol=1e-9)


def test_under_autocast_it_is_the_folded_copy_that_is_attacked(model, images, monkeypatch):
    used = []
    monkeypatch.setattr(
        base, "accelerate", lambda *given, **how: used.append(accelerate(*given, **how)) or used[-1]
    )
    with torch.autocast("cpu", torch.bfloat16):
        PGD(EPS, steps=1)(copy.deepcopy(model), *images)  # of the model itself there may be a copy already
    assert [m for net in used for m in net.modules() if isinstance(m, nn.BatchNorm2d)] == []
    assert len(used) == 1


def test_pgd_on_the_folded_copy_equals_pgd_on_the_model(model, images, monkeypatch):
    model, (x, y) = copy.deepcopy(model).double(), images
    x = x.double()
    quick = PGD(EPS)(model, x, y)
    monkeypatch.setattr(base, "accelerate", lambda net, *_: net)
    assert ((quick - PGD(EPS)(model, x, y)).abs().flatten(1).amax(1) < 1e-9).double().mean() > 0.98


def test_a_network_that_resizes_its_images_first_is_attacked_as_it_is(monkeypatch):
    torch.manual_seed(0)
    inner = models.build("resnet8", classes=4, width=4).eval()
    model = nn.Sequential(nn.Upsample(scale_factor=2), inner).double()
    x, y = torch.rand(6, 3, 8, 8, dtype=torch.float64), torch.arange(6) % 4
    quick = PGD(EPS, steps=3)(model, x, y)
    monkeypatch.setattr(base, "accelerate", lambda net, *_: net)
    torch.testing.assert_close(quick, PGD(EPS, steps=3)(model, x, y), atol=1e-9, rtol=0)


WAYS = [
    {},
    {"loss": "cw"},
    {"loss": "dlr"},
    {"targeted": True},
    {"budget": L2(0.4)},
    {"steps": 1},
    {"steps": 0},
]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_images_that_left_are_those_that_break_when_all_are_kept(model, images, way):
    model, (x, y) = copy.deepcopy(model).double(), images
    x, y = x.double(), torch.where(torch.arange(len(y)) < 9, (y + 1) % 5, y)  # some are wrong from the start
    left = PGD(**{"budget": EPS, **way}, early_stop=True).outcome(model, x, y)
    kept = PGD(**{"budget": EPS, **way}, early_stop=False).outcome(model, x, y)
    assert torch.equal(left.success_at, kept.success_at)
    assert torch.equal(left.success, kept.success_at >= 0)
    assert int(left.success.sum()) >= int(kept.success.sum())
    with torch.no_grad():
        assert torch.equal(model(left.x).argmax(1) != y, left.success)


@pytest.mark.parametrize("early", [True, False])
def test_images_that_nobody_judges_are_the_same_and_are_spared_their_last_look(model, images, early):
    model, (x, y) = copy.deepcopy(model).double(), images
    x = x.double()
    seen = []
    with guard(model):
        net = accelerate(model, x)
        net.register_forward_pre_hook(lambda _, given: seen.append(len(given[0])))
        found = {}
        for judged in (True, False):
            seen.clear()
            task = base.AttackTask(net, x.clone(), y, 0, list(range(len(x))), coupled=False, judged=judged)
            found[judged] = PGD(Linf("1/255"), steps=4, early_stop=early).run(task), sum(seen)
    (asked, looks), (unasked, fewer) = found[True], found[False]
    assert torch.equal(asked.x, unasked.x)
    ended = (asked.success_at < 0) | (asked.success_at == 4)
    assert looks - fewer == (int(ended.sum()) if early else len(x))
    assert 0 < int(ended.sum()) < len(x)


@pytest.mark.parametrize("loss", ["ce", "cw"])
def test_flips_are_predicted_on_a_linear_model_and_cost_no_gradient(loss):
    """With two classes, and far from the box, the first order is exact."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 2)).double()
    x = 0.5 + 0.1 * torch.rand(40, 3, 2, 2, dtype=torch.float64)
    y = model(x).argmax(1)
    passes, looks = [], []
    model[0].register_forward_pre_hook(
        lambda _, given: (passes if given[0].requires_grad else looks).append(len(given[0]))
    )
    task = base.AttackTask(model, x, y, 0, list(range(40)), coupled=False)
    found = early_stop(task, x.clone(), y, loss_named(loss, False), Linf(0.1), steps=20, step=0.003)
    assert 0 < int(found.success.sum()) < len(x)
    assert bool((found.success_at != 0).all())
    assert sum(passes) == int(torch.where(found.success, found.success_at, 20).sum())
    assert sum(looks) == len(x)  # each once: when it falls, or at the end


def test_images_take_turns_so_that_the_working_batch_is_full_to_the_end(monkeypatch):
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 2)).double()
    x = torch.rand(40, 3, 2, 2, dtype=torch.float64)
    passes = []
    model[0].register_forward_pre_hook(lambda _, given: passes.append(len(given[0])))
    y = model(x).argmax(1)
    monkeypatch.setattr(base, "SLICE", 16)
    task = base.AttackTask(model, x, y, 0, list(range(40)), coupled=False, judged=False)
    passes.clear()
    found = early_stop(task, x.clone(), y, loss_named("ce", False), Linf(1e-9), steps=20, step=1e-9)
    assert not bool(found.success.any())  # so that everyone takes every step
    assert passes == [16] * (40 * 20 // 16)


@pytest.mark.parametrize("restarts", [1, 3])
def test_waiting_images_take_the_places_of_broken_ones_without_changing_a_result(
    model, images, restarts, monkeypatch
):
    model, (x, y) = copy.deepcopy(model).double(), images
    attack = PGD(EPS, steps=6, early_stop=True, restarts=restarts)
    whole = attack.outcome(model, x.double(), y, seed=3)
    monkeypatch.setattr(base, "SLICE", 5)
    refilled = attack.outcome(model, x.double(), y, seed=3)
    assert torch.equal(whole.success_at, refilled.success_at)
    torch.testing.assert_close(whole.x, refilled.x, atol=1e-12, rtol=0)


def test_later_tries_go_on_with_the_images_that_stand(model, images):
    model, (x, y) = copy.deepcopy(model).double(), images
    few, many = (PGD(Linf("1/255"), steps=2, early_stop=True, restarts=n) for n in (1, 4))
    once, often = (attack.outcome(model, x.double(), y) for attack in (few, many))
    assert bool((often.success | ~once.success).all())
    assert torch.equal(often.x[once.success], once.x[once.success])
    with torch.no_grad():
        assert torch.equal(model(often.x).argmax(1) != y, often.success)


INDEPENDENT = [
    PGD(EPS, steps=5),
    PGD(EPS, steps=5, early_stop=True, restarts=2),
    PGD(EPS, steps=5, targeted=True, clean_start=0.2),
    APGD(EPS, steps=8),
    Square(EPS, queries=20),
]


@pytest.mark.parametrize("attack", INDEPENDENT, ids=str)
def test_an_images_result_does_not_depend_on_its_batch(model, images, attack):
    model, (x, y) = copy.deepcopy(model).double(), images
    x = x[:30].double()
    y = y[:30]
    whole = attack.outcome(model, x, y, seed=7)
    for size in (7, 30):
        order = torch.randperm(30, generator=torch.Generator().manual_seed(size))
        for ids in order.split(size):
            part = attack.outcome(model, x[ids], y[ids], seed=7, ids=ids)
            assert torch.equal(part.success, whole.success[ids])
            torch.testing.assert_close(part.x, whole.x[ids], atol=1e-12, rtol=0)


def test_a_coupled_model_is_recognized_and_keeps_its_batch(model, images):
    x, y = images
    coupled = copy.deepcopy(model)
    for module in coupled.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean = module.running_var = None
            module.track_running_stats = False
    assert couples_batch(coupled, x)
    assert not couples_batch(model, x)
    found = PGD(EPS, steps=3, early_stop=True).outcome(coupled, x, y)
    with torch.no_grad():
        assert torch.equal(coupled(found.x).argmax(1) != y, found.success)


def test_the_branch_in_use_is_the_one_attacked(model, images):
    x, y = images
    branched = norm.add_branch(norm.steer(copy.deepcopy(model)), "adv")
    with torch.no_grad():
        for layer in norm.layers(branched).values():
            layer.holder("adv").weight.mul_(-1)
    plain = norm.release(copy.deepcopy(branched), branch="adv")
    with norm.use(branched, branch="adv"):
        through_branch = PGD(EPS, steps=5)(branched, x, y)
    torch.testing.assert_close(through_branch, PGD(EPS, steps=5)(plain, x, y))
