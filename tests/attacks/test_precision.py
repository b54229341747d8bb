"""Gradients in bfloat16: the images are judged by the model as it is, and break it about as often."""

import copy

import pytest
import torch
from torch import nn

from trimtab import adapt, load
from trimtab.attacks import CW, L2, PGD, CurvePGD, Linf
from trimtab.attacks.precision import Bf16Gradients
from trimtab.data import load as images_of
from trimtab.types import BadInput

EPS = Linf("4/255")


@pytest.mark.parametrize("early_stop", [False, True])
@pytest.mark.parametrize("budget", [EPS, L2(0.4)], ids=str)
def test_what_counts_as_broken_is_what_the_model_itself_misclassifies(model, images, early_stop, budget):
    x, y = images
    found = PGD(budget, steps=8, early_stop=early_stop, precision="bfloat16").outcome(model, x, y)
    assert 0 < int(found.success.sum()) < len(x)
    with torch.no_grad():
        assert torch.equal(model(found.x).argmax(1) != y, found.success)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
@pytest.mark.parametrize(
    "changed", [{"restarts": 2}, {"targeted": True}, {"early_stop": True, "restarts": 2}]
)
def test_any_way_of_attacking_any_model_is_judged_by_it(model, images, dtype, changed):
    x, y = images[0].to(dtype), images[1]
    net = copy.deepcopy(model).to(dtype)
    found = PGD(EPS, steps=4, precision="bfloat16", **changed).outcome(net, x, y)
    assert found.x.dtype == dtype
    with torch.no_grad():
        wrong = net(found.x).argmax(1) != y
    allowed = 0 if dtype == torch.float64 else 1  # in half precision rounding depends on the batch
    assert int((wrong != found.success).sum()) <= allowed
    assert bool(((found.success_at >= 0) | ~found.success).all())


def test_images_that_nobody_asks_about_are_not_judged(model, images, monkeypatch):
    asked = []
    monkeypatch.setattr(Bf16Gradients, "forward", counting(Bf16Gradients.forward, asked))
    PGD(EPS, steps=4, precision="bfloat16")(model, *images)
    assert asked
    assert all(asked)


def counting(forward, asked):
    def counted(self, x):
        if len(x) > 2:  # more than a probe
            asked.append(x.requires_grad)
        return forward(self, x)

    return counted


@pytest.mark.parametrize("attack", [PGD, CW])
def test_it_breaks_as_many_images_of_a_real_network_as_full_precision_does(attack):
    net, test = load("zoo:sample-adversarial"), images_of("sample", "test")
    x, y, _ = test.take(torch.arange(200))
    broken = [
        attack(Linf("8/255"), steps=10, precision=precision).outcome(net, x, y).success
        for precision in ("full", "bfloat16")
    ]
    assert 20 < int(broken[0].sum()) < 180
    assert int((broken[0] != broken[1]).sum()) <= 4


def test_it_takes_other_steps_than_full_precision_does(model, images):
    x, y = images
    full, rough = (PGD(EPS, steps=3, precision=p)(model, x, y) for p in ("full", "bfloat16"))
    assert not torch.equal(full, rough)
    assert (full - rough).abs().mean() < 0.1 * EPS.radius


def test_no_image_counts_that_only_the_copy_gets_wrong(images):
    """One that lies nearer to the border than bfloat16 can tell is on its right side in full precision."""

    class OnTheBorder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.edge = nn.Parameter(torch.tensor(1 + 2**-12))  # 1 in bfloat16

        def forward(self, x):
            right = 0 * x.mean((1, 2, 3)) + self.edge - 1
            return torch.stack([right - 2**-13, 0 * right], 1)

    x = images[0]
    for early_stop in (False, True):
        found = PGD(EPS, steps=3, early_stop=early_stop, precision="bfloat16").outcome(
            OnTheBorder(), x, torch.zeros(len(x), dtype=torch.long)
        )
        assert not bool(found.success.any())
        assert bool((found.success_at == -1).all())


def test_the_marks_of_a_curve_are_judged_by_the_model(model, images):
    x, y = images
    marks = CurvePGD(EPS, steps=6, step_size="1/255", marks=(2, 4), precision="bfloat16")
    for mark, broken in marks.outcome(model, x, y).marks.items():
        short = PGD(EPS, steps=mark, step_size="1/255", precision="bfloat16")
        assert torch.equal(short.outcome(model, x, y).success, broken)


def test_a_coupled_batch_stays_in_full_precision(model, images):
    x, y = images
    defence = adapt.per_batch(copy.deepcopy(model))
    full, rough = (PGD(EPS, steps=3, precision=p)(defence, x, y) for p in ("full", "bfloat16"))
    assert torch.equal(full, rough)


def test_a_model_that_cannot_is_told_in_one_sentence(images):
    class Stubborn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2, 768))
            self.offset = torch.zeros(768)  # neither parameter nor buffer: it keeps its precision

        def forward(self, x):
            return (x.flatten(1) + self.offset) @ self.weight.T

    x, y = images
    with pytest.raises(BadInput, match="does not run in bfloat16"):
        PGD(EPS, precision="bfloat16")(Stubborn(), x, y % 2)
    with pytest.raises(BadInput, match="precision must be one of full, bfloat16"):
        PGD(EPS, precision="float8")
