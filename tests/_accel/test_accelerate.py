"""An accelerated copy is built once, and built anew once anything changes that its results depend on."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from trimtab import models, norm
from trimtab._accel import accelerate
from trimtab.attacks import PGD, Linf, guard
from trimtab.attacks.base import prepare

X = torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))


class Scaled(nn.Module):
    """Logits over a temperature that is a plain attribute, plus an offset that is a plain tensor."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = models.build("resnet8", classes=4, width=4)
        self.temperature, self.offset = 1.0, torch.zeros(4)
        self.table = {"weights": [1.0, 2.0]}

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.net(x) * self.table["weights"][0] / self.temperature + self.offset
        return z


def fresh() -> nn.Module:
    """A steered network whose norm layers have statistics worth folding, with a second branch."""
    model = norm.add_branch(norm.steer(Scaled()), "adv")
    model.train()(X * 2)
    with torch.no_grad():
        for layer in norm.layers(model).values():
            layer.holder("adv").weight.mul_(0.5)
    return model.eval()


def accelerated(model: nn.Module) -> nn.Module:
    with guard(model):
        return accelerate(model, X)


def expected(model: nn.Module) -> Tensor:
    with guard(model), torch.no_grad():
        return model(X)


def test_an_unchanged_model_keeps_its_copy() -> None:
    model = fresh()
    net = accelerated(model)
    assert accelerated(model) is net
    PGD(Linf("8/255"), steps=2)(model, X, torch.arange(4))
    assert accelerated(model) is net
    model.train()
    assert accelerated(model) is net  # the guard puts it into eval mode
    assert not any(isinstance(module, nn.BatchNorm2d) for module in net.modules())


def first_conv(model: nn.Module) -> nn.Conv2d:
    return next(module for module in model.modules() if isinstance(module, nn.Conv2d))


def in_place(model: nn.Module) -> None:
    with torch.no_grad():
        first_conv(model).weight.mul_(1.5)


def through_data(model: nn.Module) -> None:
    first_conv(model).weight.data.mul_(1.5)  # the version stays


def replaced_parameter(model: nn.Module) -> None:
    conv = first_conv(model)
    conv.weight = nn.Parameter(conv.weight * 2)


def loaded(model: nn.Module) -> None:
    state = model.state_dict()
    model.load_state_dict({k: v * 1.1 if v.is_floating_point() else v for k, v in state.items()})


def statistics(model: nn.Module) -> None:
    model.train()(X * 3)
    model.eval()


def plain_attribute(model: nn.Module) -> None:
    model.temperature = 3.0


def plain_tensor(model: nn.Module) -> None:
    model.offset.add_(1)


def nested_value(model: nn.Module) -> None:
    model.table["weights"][0] = 5.0


def module_replaced(model: nn.Module) -> None:
    name = next(name for name, module in model.named_modules() if isinstance(module, nn.ReLU))
    model.set_submodule(name, nn.Tanh())


def module_attribute(model: nn.Module) -> None:
    next(iter(norm.layers(model).values())).eps = 0.5


CHANGES = [
    in_place, through_data, replaced_parameter, loaded, statistics, plain_attribute, plain_tensor,
    nested_value, module_replaced, module_attribute,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_changed_model_gets_a_new_copy(change: Callable[[nn.Module], None]) -> None:
    model = fresh()
    before = accelerated(model)(X)
    change(model)
    after = accelerated(model)(X)
    assert not torch.allclose(before, after, atol=1e-3)
    torch.testing.assert_close(after, expected(model), atol=1e-4, rtol=1e-4)


def test_steering_changes_the_copy() -> None:
    model = fresh()
    main = accelerated(model)(X)
    with norm.use(model, branch="adv"):
        adv = accelerated(model)(X)
        torch.testing.assert_close(adv, expected(model), atol=1e-4, rtol=1e-4)
    assert not torch.allclose(main, adv, atol=1e-3)
    torch.testing.assert_close(accelerated(model)(X), main)


def test_statistics_of_the_batch_are_not_folded_though_a_folded_copy_exists() -> None:
    model = fresh()
    accelerated(model)
    with guard(model, running=False), norm.use(model, source="batch"):
        by_batch = model(X)
        torch.testing.assert_close(accelerate(model, X)(X), by_batch, atol=1e-4, rtol=1e-4)


def test_a_model_with_hooks_gets_a_copy_each_time_and_the_hook_is_heard() -> None:
    model = fresh()
    accelerated(model)
    calls: list[int] = []
    handle = model.net.fc.register_forward_hook(lambda *_: calls.append(1))
    assert accelerated(model) is not accelerated(model)
    accelerated(model)(X)
    assert calls
    handle.remove()
    assert accelerated(model) is accelerated(model)


class Counting(Scaled):
    """Its logits depend on how often it was called."""

    passes = 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        return super().forward(x) * self.passes


def test_a_copy_that_its_passes_change_is_built_anew() -> None:
    model = Counting().eval()
    with torch.no_grad():
        first, again = (accelerated(model)(X) for _ in range(2))
    assert torch.equal(first, again)


def test_images_of_another_size_get_another_copy() -> None:
    model = models.wrap(Scaled()).eval()
    small, large = torch.rand(2, 3, 16, 16), torch.rand(2, 3, 24, 24)
    for x in (small, large, small):
        with guard(model):
            torch.testing.assert_close(accelerate(model, x)(x), model(x), atol=1e-4, rtol=1e-4)


def test_a_copy_keeps_neither_its_model_nor_the_models_features_alive() -> None:
    model = fresh()
    accelerated(model)
    alive = weakref.ref(model)
    del model
    gc.collect()
    assert alive() is None


def test_copies_of_a_model_have_copies_of_their_own() -> None:
    model = fresh()
    net = accelerated(model)
    other = copy.deepcopy(model)
    with torch.no_grad():
        first_conv(other).weight.mul_(2)
    assert accelerated(other) is not net
    assert accelerated(model) is net


def test_an_unchanged_model_is_probed_once_and_a_changed_one_again() -> None:
    class Counted(Scaled):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            Counted.calls += 1
            return super().forward(x)

    model, y, attack = Counted().eval(), torch.arange(4), PGD(Linf("8/255"), steps=2)

    def calls() -> int:
        before = Counted.calls
        attack(model, X, y)
        return Counted.calls - before

    first, second = calls(), calls()
    assert second == 2  # one for each step
    assert first > second
    in_place(model)
    assert calls() == first


def test_what_couples_a_batch_is_found_after_a_call_with_one_image() -> None:
    model = models.build("resnet8", classes=4, width=4).eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.track_running_stats = False
            module.running_mean = module.running_var = None
    for count in (1, 4):
        with guard(model):
            _, coupled, *_ = prepare(model, X[:count], torch.zeros(count, dtype=torch.long))
        assert coupled == (count > 1)
