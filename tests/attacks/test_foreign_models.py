"""Models as they come: scripted, traced, wrapped for training, exported, broken. Attacked alike, or told."""

import copy
import threading
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn

from trimtab import adapt, attacks, certify, measure, norm
from trimtab.attacks import PGD, Linf
from trimtab.runtime import couples_batch, guard
from trimtab.types import BadInput

ATTACK = PGD(Linf("4/255"), steps=3)


@pytest.fixture
def model(trained):
    return norm.release(norm.steer(copy.deepcopy(trained)))  # stock, whatever other tests did to it


def scripted(model: nn.Module, way: str) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch means to give TorchScript up
        return (
            torch.jit.script(model)
            if way == "script"
            else torch.jit.trace(model, torch.rand(2, 3, 16, 16).double())
        )


@pytest.mark.parametrize("way", ["script", "trace"])
def test_a_scripted_model_is_attacked_and_measured_as_what_it_was_made_from(model, images, way) -> None:
    x, y = images[0].double(), images[1]
    model.double()
    closed = scripted(copy.deepcopy(model), way)
    assert torch.allclose(ATTACK(closed, x, y), ATTACK(model, x, y), atol=1e-9)
    assert torch.allclose(measure.ligs(closed, x, y), measure.ligs(model, x, y), atol=1e-9)
    assert measure.accuracy(closed, [(x, y)]) == measure.accuracy(model, [(x, y)])
    found = [certify.certify(one, x[:2], sigma=0.1, n0=10, n=50).classes for one in (closed, model)]
    assert torch.equal(*found)
    assert norm.audit(closed).layers[0].warnings[0].kind == "scripted"
    with pytest.raises(BadInput, match="no batch-norm layer"):
        adapt.per_batch(closed)


def test_a_model_with_a_scripted_part_keeps_its_modes_flags_and_gradients() -> None:
    part = scripted(nn.Flatten(), "script")
    mixed = nn.Sequential(part, nn.Linear(768, 16), nn.BatchNorm1d(16), nn.Linear(16, 5)).train()
    x, y = torch.rand(8, 3, 16, 16), torch.arange(8) % 5
    mixed(x).sum().backward()
    grads = [p.grad for p in mixed.parameters()]
    measure.accuracy(mixed, [(x, y)])
    ATTACK(mixed, x, y)
    assert all(p.requires_grad for p in mixed.parameters())
    assert all(p.grad is grad for p, grad in zip(mixed.parameters(), grads, strict=True))
    assert all(module.training for module in mixed.modules())


def test_flags_are_put_back_although_a_module_cannot_be() -> None:
    class Stubborn(nn.Linear):
        def __setattr__(self, name: str, value: object) -> None:
            if name == "training" and value is True and "weight" in self._parameters:
                raise RuntimeError("stays in eval mode")
            super().__setattr__(name, value)

    model = Stubborn(4, 2)
    with pytest.raises(RuntimeError, match="stays in eval mode"), guard(model):
        assert not model.weight.requires_grad
    assert model.weight.requires_grad


def test_an_exported_model_is_refused_in_a_sentence(model, images) -> None:
    exported = torch.export.export(model.eval(), (images[0],)).module()
    with pytest.raises(BadInput, match=r"torch\.export"):
        ATTACK(exported, *images)


@pytest.fixture
def alone(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_what_ddp_wraps_is_attacked_as_it_is(model, images) -> None:
    x, y = images
    wrapped = nn.parallel.DistributedDataParallel(model)
    assert torch.equal(ATTACK(wrapped, x, y), ATTACK(model, x, y))
    assert torch.equal(measure.ligs(wrapped, x, y), measure.ligs(model, x, y))
    assert torch.equal(measure.loss_gradients(wrapped, x, y), measure.loss_gradients(model, x, y))
    wrapped.train()(x).sum().backward()  # and goes on training


def test_a_model_that_says_nan_is_neither_robust_nor_right(model, images) -> None:
    x, y = images[0], torch.zeros(len(images[0]), dtype=torch.long)  # of NaN, argmax says 0
    sick = copy.deepcopy(model)
    sick[-1].weight.data.fill_(torch.nan)
    assert measure.accuracy(sick, [(x, y)]).correct == 0
    assert measure.top_k(sick, [(x, y)], (1, 3))[3].correct == 0
    with pytest.raises(BadInput, match="NaN"):
        attacks.AutoAttack(steps=2, queries=2)(sick, x, y)


def test_images_on_which_a_model_breaks_down_are_broken() -> None:
    class Fragile(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            level = x.mean((1, 2, 3))
            z = torch.stack([1 - level, level], 1)
            return torch.where((level > 0.5)[:, None], torch.nan, z)

    x, y = torch.full((8, 1, 4, 4), 0.49), torch.zeros(8, dtype=torch.long)
    for place in (0, 5):  # wherever an image stands, it does not keep others from being attacked
        sick = x.clone()
        sick[place] = 0.6
        found = PGD(Linf(0.005), steps=1).outcome(Fragile(), sick, y).success
        assert found.nonzero().flatten().tolist() == [place]
    for early_stop in (False, True):
        found = PGD(Linf(0.1), steps=4, random_start=False, early_stop=early_stop).outcome(Fragile(), x, y)
        assert bool(found.success.all())


def test_coupling_is_seen_in_a_batch_of_two() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, track_running_stats=False)).eval()
    assert couples_batch(nn.Sequential(model, nn.Flatten()), torch.rand(2, 3, 8, 8))
    assert not couples_batch(nn.Sequential(nn.Flatten(), nn.Linear(192, 2)), torch.rand(2, 3, 8, 8))


def test_a_coupled_model_that_cannot_be_copied_is_attacked_as_it_is() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False), nn.Flatten(), nn.Linear(144, 5)
    ).eval()
    model.lock = threading.Lock()
    assert ATTACK(model, torch.rand(8, 3, 8, 8), torch.arange(8) % 5).shape == (8, 3, 8, 8)


def test_what_a_stream_has_no_gradient_for_is_refused(model, images) -> None:
    stream = adapt.stream(model)
    for measured in (measure.ligs, measure.loss_gradients):
        with pytest.raises(BadInput, match="a stream adapts"):
            measured(stream, *images)


@pytest.mark.parametrize(
    "kind", [attacks.Ascent, attacks.SignStep, attacks.RandomSign, attacks.RandomUniform, attacks.Scaled]
)
def test_a_negative_radius_of_statistics_is_refused(model, images, kind) -> None:
    with pytest.raises(BadInput, match="must not be negative"):
        kind(eps=-0.1)(norm.steer(model), *images)


def test_labels_beyond_the_classes_are_told_wherever_a_loss_is_taken(model, images) -> None:
    x, y = images
    steered = norm.steer(model)
    for taken in (measure.loss_gradients, measure.landscape, attacks.Ascent(), attacks.SignStep()):
        with pytest.raises(BadInput, match="labels must lie in"):
            taken(steered, x, y + 100)
    assert attacks.SignStep(groups=16)(steered, x, y)  # whose few first images are no sixteen groups
    with pytest.raises(BadInput, match="found none"):
        attacks.Ascent()(steered, x[:0], y[:0])


def test_numbers_may_be_written_as_people_write_them(model, images) -> None:
    steered = norm.steer(model).eval()
    x, y = images
    assert adapt.per_batch(steered, rho="1/2").rho == 0.5
    assert adapt.stream(steered, prior="16").prior == 16
    with norm.use(steered, source="blend", rho="1/4"):
        assert all(layer.setting.rho == 0.25 for layer in norm.layers(steered).values())
    assert attacks.Ascent(step_size="1/8").step_size == 0.125
    for wrong in (lambda: PGD(steps="20"), lambda: PGD(steps=2.0), lambda: attacks.Ascent(steps=1.5)):
        with pytest.raises(BadInput, match="steps must be a whole number"):
            wrong()
    with pytest.raises(BadInput, match="needs marks"):
        attacks.curve(PGD(), steered, x, y, marks=[])
    with pytest.raises(BadInput, match="one per image"):
        ATTACK(steered, x, y, ids=torch.arange(len(x))[:, None])
